"""Sidecars: helper processes of providers on loopback, behind signed short-lived tokens.

One way to ask and one way to answer, for every sidecar there will ever be. A sidecar serves one
scope (one user's browser, say) and one target; its tokens name all of it, and every refusal looks
the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import field
from ipaddress import ip_address
from typing import Final

import structlog

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.http_exchange import HttpExchange
from kaged.wire.strictjson import NotJson, decode_json
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, TokenRejected, mint_token, verify_token

TOKEN_TTL_S: Final = 600  # SC-AMB-36
MIN_TTL_S: Final = 10
BODY_LIMIT_BYTES: Final = 1024 * 1024
HEAD_LIMIT_BYTES: Final = 16 * 1024
REQUEST_TIMEOUT_S: Final = 30.0
CONNECTIONS_LIMIT: Final = 32
ROUTE: Final = "/call"
_SUBJECT: Final = "kaged-host"
_UNAUTHORIZED: Final = b'{"error":"unauthorized"}'

Handler = Callable[[JsonObject], Awaitable[JsonObject]]

_log = structlog.get_logger("kaged.services")


@dataclass(frozen=True, slots=True)
class SidecarIdentity:
    """Which sidecar: of which provider, for which scope, for what."""

    provider: str
    scope: str
    target: str
    key: TokenKey = field(repr=False)

    @property
    def id(self) -> str:
        """A name that two scopes never share, for containers and directories."""
        parts = json.dumps([self.provider, self.scope, self.target]).encode()
        return f"sidecar-{hashlib.sha256(parts).hexdigest()[:32]}"

    def token(self, clock: Clock, ttl_s: int = TOKEN_TTL_S) -> str:
        """Make a token for one request, alive for ten seconds to ten minutes."""
        return mint_token(
            self.key,
            _SUBJECT,
            clock=clock,
            routing=RoutingClaims(
                provider=self.provider, session_key=self.scope, thread_id=self.target
            ),
            audience=f"sidecar:{self.provider}",
            ttl_s=max(MIN_TTL_S, min(ttl_s, TOKEN_TTL_S)),
        )

    def admits(self, token: str, clock: Clock) -> bool:
        """Return whether a token is this sidecar's: subject, provider, scope and target."""
        try:
            found = verify_token(
                self.key,
                token,
                clock=clock,
                audience=f"sidecar:{self.provider}",
                audience_required=True,
                max_lifetime_s=TOKEN_TTL_S,
            )
        except TokenRejected:
            return False
        routing = found.routing
        theirs = (routing.provider, routing.session_key, routing.thread_id)
        own = (self.provider, self.scope, self.target)
        return found.effective_user_id == _SUBJECT and theirs == own


class SidecarServer:
    """Answers `POST /call` on loopback for those who bring this sidecar's token; nobody else."""

    def __init__(self, identity: SidecarIdentity, handler: Handler, clock: Clock) -> None:
        self._identity = identity
        self._handler = handler
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._slots = asyncio.Semaphore(CONNECTIONS_LIMIT)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port.

        Raises:
            CapabilityBackendUnavailable: the address is not loopback.
        """
        try:
            loopback = ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise CapabilityBackendUnavailable(
                f"a sidecar listens on loopback only, not on {host[:64]}"
            )
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=HEAD_LIMIT_BYTES, backlog=CONNECTIONS_LIMIT
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._slots, asyncio.timeout(REQUEST_TIMEOUT_S):
                status, body = await self._answer(reader)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode("ascii") + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            _log.info("sidecar.connection_lost", sidecar=self._identity.id)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        """Reveal nothing without a token: no route, no method, no size."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (one.partition(":") for one in rest if ":" in one)
        }
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._identity.admits(token.strip(), self._clock):
            return "401 Unauthorized", _UNAUTHORIZED
        if line.split(" ")[:2] != ["POST", ROUTE]:
            return "404 Not Found", b'{"error":"not found"}'
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_LIMIT_BYTES:
            return "413 Content Too Large", b'{"error":"too large"}'
        return await self._handled(await reader.readexactly(int(length)))

    async def _handled(self, data: bytes) -> tuple[str, bytes]:
        try:
            given = decode_json(data, max_depth=32, unique_keys=True)
        except NotJson:
            given = None
        if not isinstance(given, dict):
            return "400 Bad Request", b'{"error":"not an object"}'
        try:
            answer = json.dumps(await self._handler(given)).encode()
        except asyncio.CancelledError:
            raise
        # Boundary: what an executor raises stays inside; the caller learns that it failed.
        except BaseException as error:  # noqa: BLE001 - see above
            _log.warning("sidecar.failed", sidecar=self._identity.id, error=type(error).__name__)
            return "500 Internal Server Error", b'{"error":"failed"}'
        return "200 OK", answer


class SidecarClient:
    """Asks a sidecar, with a fresh token each time."""

    def __init__(self, identity: SidecarIdentity, port: int, clock: Clock) -> None:
        self._identity = identity
        self._port = port
        self._clock = clock

    async def call(self, params: JsonObject) -> JsonObject:
        """Send one request.

        Raises:
            CapabilityBackendUnavailable: it cannot be reached, refused or failed.
        """
        headers = {"Authorization": f"Bearer {self._identity.token(self._clock)}"}
        url = f"http://127.0.0.1:{self._port}{ROUTE}"
        exchange = HttpExchange("the sidecar", BODY_LIMIT_BYTES, timeout_s=REQUEST_TIMEOUT_S)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S), exchange as http:
                answer = await http.ask("POST", url, json=params, headers=headers)
        except (CapabilityBackendUnavailable, TimeoutError) as error:
            raise CapabilityBackendUnavailable(
                "the sidecar does not answer within its limits"
            ) from error
        if answer.status != 200:
            raise CapabilityBackendUnavailable("the sidecar refused or failed")
        try:
            found = decode_json(answer.body, max_depth=32)
        except NotJson:
            found = None
        if not isinstance(found, dict):
            raise CapabilityBackendUnavailable("the sidecar's answer is no object")
        return found
