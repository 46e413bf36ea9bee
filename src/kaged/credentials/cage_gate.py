"""`CageGate`: serves the bound connections of one cage."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from kaged.base import Clock
from kaged.cage.gate_port import BoundConnection, BoundResult
from kaged.credentials.authority import H2, HTTP1, CageAuthority
from kaged.credentials.conversation import Conversation
from kaged.credentials.events import RequestLog
from kaged.credentials.link import Link
from kaged.credentials.needles import Needles
from kaged.credentials.rates import Rates
from kaged.credentials.refusals import RefusalRule, without_value
from kaged.kernel.bindings import CageCredentials, NoValue, NoValueReason, SecretValue, ValueOf

_HANDSHAKE_S: Final = 15.0
_TLS_RECORD: Final = 0x16
_OFFERS_H2: Final = b"\x02h2"


class CageGate:
    """Serves the bound hosts of one cage; a `BoundHosts` for the network gate."""

    def __init__(
        self, credentials: CageCredentials, value_of: ValueOf, log: RequestLog, clock: Clock
    ) -> None:
        self._held = credentials
        self._value_of = value_of
        self._log = log
        self._authority = CageAuthority(credentials.hosts, clock)
        self._secrets = Needles()
        self._rates = Rates(clock)

    @property
    def authority_pem(self) -> str:
        """The certificate that the cage's trust stores need."""
        return self._authority.pem

    def binds(self, host: str, port: int) -> bool:
        """Return whether connections to this normalised host and port are served here."""
        return self._held.binds(host, port)

    def close(self) -> None:
        """Send what was only counted so far; the cage has ended."""
        self._log.flush()

    async def serve(self, connection: BoundConnection) -> BoundResult:
        """Serve a connection until it has ended, and close its sockets."""
        self._log.cage_id = connection.cage_id
        client = Link(connection.client, connection.first)
        talk = Conversation(
            host=connection.host,
            port=connection.port,
            held=self._held,
            secrets=self._secrets,
            rates=self._rates,
            log=self._log,
            value_of=self._learn_value,
            dial=connection.dial_again,
            first_server=connection.server,
            ca_files=self._ca_files(connection.host, connection.port),
        )
        broken, detail = True, ""
        try:
            detail = await self._serve(client, talk)
            broken = bool(detail)
        except (OSError, EOFError) as error:  # ssl.SSLError is one
            detail = type(error).__name__
        finally:
            client.close(broken=broken)
            talk.close(broken=broken)
        return BoundResult(client.bytes_in, client.bytes_out, broken, detail)

    async def _serve(self, client: Link, talk: Conversation) -> str:
        # With the first connection: a daemon without credentials never loads the protocols.
        from kaged.credentials.http1 import serve_http1  # noqa: PLC0415 - see above
        from kaged.credentials.http2 import serve_http2  # noqa: PLC0415 - see above

        first = await client.peek()
        if not first:
            return ""
        tls = first[0] == _TLS_RECORD
        if not tls:
            talk.tls = False
            await serve_http1(client, talk)
            return ""
        offers_h2 = _OFFERS_H2 in first  # a hint; what is agreed on is TLS's to say
        failure = await talk.connect([H2, HTTP1] if offers_h2 else [HTTP1])
        h2 = failure is None and talk.protocol == H2
        context = self._authority.context(talk.host, h2=h2)
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await client.start_tls(context)
        except (TimeoutError, ssl.SSLError, ConnectionError) as error:
            return self._not_agreed(talk, error)
        if client.protocol == H2:
            await serve_http2(client, talk)
        else:
            await serve_http1(client, talk, failure)
        return ""

    def _not_agreed(self, talk: Conversation, error: Exception) -> str:
        reason = getattr(error, "reason", None) or type(error).__name__
        words = str(reason).replace("_", " ").lower()
        if "callback" in words or "unrecognized" in words:
            self._log.refused(
                talk.host,
                talk.port,
                "",
                "",
                "",
                rule=RefusalRule.AUTHORITY.value,
                reason="the name asked for in TLS is another than the connection's",
            )
            return "the name asked for in TLS is another one"
        self._log.client_refused(
            talk.host,
            talk.port,
            f"the program ended TLS without accepting the gate's certificate ({words})",
        )
        return "the program did not accept the gate's certificate"

    async def _learn_value(self, name: str) -> SecretValue:
        try:
            found = await self._value_of(name)
        except asyncio.CancelledError:
            raise
        # Boundary: whatever goes wrong behind the look-up, the request is refused.
        except Exception as error:  # noqa: BLE001 - fail closed, and say only what kind it was
            found = NoValue(NoValueReason.FAILED, f"{type(error).__name__} in the look-up.")
        if isinstance(found, NoValue):
            raise without_value(name, found)
        self._secrets.add(found.text, *found.others)
        return found

    def _ca_files(self, host: str, port: int) -> tuple[str, ...]:
        found = (one.binding.ca_file for one in self._held.bound_at(host, port))
        return tuple(dict.fromkeys(one for one in found if one))
