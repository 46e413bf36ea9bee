"""`Conversation`: one connection of a cage to a bound host, whichever protocol it speaks."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from kaged.base.authorities import authorities
from kaged.cage.gate_port import DialAgain
from kaged.credentials.events import RequestLog
from kaged.credentials.link import Link
from kaged.credentials.needles import Needles
from kaged.credentials.rates import Rates
from kaged.credentials.refusals import Refusal, RefusalRule, refused
from kaged.credentials.request_places import Header
from kaged.credentials.requests import Admitted, RequestHead, admit
from kaged.kernel.bindings import CageCredentials, SecretValue

LearnValue = Callable[[str], Awaitable[SecretValue]]
_HANDSHAKE_S: Final = 15.0


class Conversation:
    """What the protocols share: the server's side, what is allowed, and what goes on record."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        held: CageCredentials,
        secrets: Needles,
        rates: Rates,
        log: RequestLog,
        value_of: LearnValue,
        dial: DialAgain,
        first_server: socket.socket,
        ca_files: tuple[str, ...],
    ) -> None:
        self.host = host
        self.port = port
        self.secrets = secrets
        self.tls = True
        self.server: Link | None = None
        self._held = held
        self._rates = rates
        self._log = log
        self._value_of = value_of
        self._dial = dial
        self._first_server: socket.socket | None = first_server
        self._ca_files = ca_files

    @property
    def protocol(self) -> str:
        """The protocol that the server agreed on, or empty."""
        return self.server.protocol if self.server is not None else ""

    async def connect(self, protocols: list[str]) -> Refusal | None:
        """Connect to the server anew, with TLS if the program has TLS; return what went wrong."""
        self.drop_server()
        sock, self._first_server = self._first_server, None
        try:
            if sock is None:
                sock = await self._dial()
            self.server = Link(sock)
            if self.tls:
                context = authorities(*self._ca_files, protocols=tuple(protocols))
                async with asyncio.timeout(_HANDSHAKE_S):
                    await self.server.start_tls(context, server_name=self.host)
        except ssl.SSLCertVerificationError as error:
            self.drop_server()
            return Refusal(
                502,
                RefusalRule.SERVER_CERTIFICATE.value,
                f"The certificate of {self.host}:{self.port} is not accepted:"
                f" {error.verify_message}.",
                "name a private authority with ca_file in the credential's section",
            )
        except (TimeoutError, OSError) as error:
            self.drop_server()
            words = (getattr(error, "reason", None) or type(error).__name__).replace("_", " ")
            return Refusal(
                502,
                RefusalRule.SERVER.value,
                f"No connection to {self.host}:{self.port}: {words.lower()}.",
            )
        return None

    def drop_server(self, *, broken: bool = True) -> None:
        """End the connection to the server, if there is one."""
        if self.server is not None:
            self.server.close(broken=broken)
            self.server = None

    def close(self, *, broken: bool) -> None:
        """End what is left."""
        self.drop_server(broken=broken)
        if self._first_server is not None:
            self._first_server.close()
            self._first_server = None

    def admit(self, head: RequestHead) -> Admitted:
        """Decide about a request and count it. Raises RequestRefused."""
        admitted = admit(self._held, self.host, self.port, head, tls=self.tls)
        if not self._rates.take(admitted.binding):
            raise refused(
                RefusalRule.RATE,
                f"The credential {admitted.binding.name} allows"
                f" {admitted.binding.limits.requests_per_minute} requests a minute.",
                "wait a minute",
                status=429,
            )
        return admitted

    async def fill_in(self, admitted: Admitted) -> tuple[bytes, list[Header]]:
        """Return target and headers with the value in its place. Raises RequestRefused."""
        if admitted.found is None:
            return admitted.target, admitted.headers
        value = await self._value_of(admitted.credential)
        return admitted.filled_in(value.text)

    def record_refusal(
        self, head: RequestHead, refusal: Refusal, admitted: Admitted | None = None
    ) -> None:
        """Put on record that a request was not sent, or not to its end."""
        path = head.target.partition(b"?")[0].decode("latin-1")
        self._log.refused(
            self.host,
            self.port,
            head.method.decode("latin-1"),
            path,
            admitted.credential if admitted else "",
            rule=refusal.rule,
            reason=refusal.message,
        )

    def record_use(self, admitted: Admitted, outcome: str) -> None:
        """Put on record that a request was sent."""
        line = admitted.line
        self._log.used(self.host, self.port, line.method, line.path, admitted.credential, outcome)
