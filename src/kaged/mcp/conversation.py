"""`McpConversation`: one running server process, from its handshake to its end.

Everything a server can do to us is bounded: how long a line is, what it says unasked, how much of
what it writes is no MCP, and how long an answer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Self, cast

from kaged import __version__
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import ExitReport, Spawner, SpawnRequest
from kaged.mcp.errors import McpServerUnavailable
from kaged.mcp.progress import Report
from kaged.mcp.texts import one_line
from kaged.peer import Connection, ConnectionLimits, PeerProcess
from kaged.wire.correlator import Ignored
from kaged.wire.errors import ErrorCode, RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response

PROTOCOL_VERSION: Final = "2025-06-18"
KNOWN_VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", PROTOCOL_VERSION, "2025-11-25"})
INITIALIZE_TIMEOUT_S: Final = 30.0
PING_TIMEOUT_S: Final = 5.0
SHUTDOWN_TIMEOUT_S: Final = 2.0
MAX_NOISE: Final = 100
MAX_PROGRESS: Final = 1000
LIMITS: Final = ConnectionLimits(unasked_per_s=500)

_log = get_logger("kaged.mcp")


@dataclass(frozen=True, slots=True)
class McpServerInfo:
    """What a server said about itself in its handshake: claims, made harmless."""

    version: str
    claims: str
    offers: frozenset[str]


class _McpConnection(Connection):
    """A connection that cancels in MCP's words."""

    def _say_cancel(self, call_id: int) -> None:
        try:
            self.notify("notifications/cancelled", {"requestId": call_id, "reason": "given up"})
        except KagedError:
            return  # it is ending or stuck; there is nobody to tell


class McpConversation:
    """A server that has shaken hands. Made by `open`; `close` or `stop` it in the end."""

    def __init__(
        self, name: str, peer: PeerProcess, owner: _ServerOwner, greeting: McpServerInfo
    ) -> None:
        self._name = name
        self._owner = owner
        self.peer = peer
        self.greeting = greeting

    @classmethod
    async def open(
        cls,
        spawner: Spawner,
        request: SpawnRequest,
        *,
        name: str,
        on_changed: Callable[[str], None] = lambda _what: None,
        on_line: Callable[[str], None] = lambda _line: None,
        timeout_s: float = INITIALIZE_TIMEOUT_S,
    ) -> Self:
        """Start the process and shake hands.

        `on_changed` hears which of its lists a server says has changed.

        Raises:
            McpServerUnavailable: it does not start or does not speak the protocol.
        """
        owner = _ServerOwner(name, on_changed, on_line)
        connection = _McpConnection(owner, name=name, limits=LIMITS)
        try:
            peer = await PeerProcess.start(spawner, request, connection, owner.printed)
        except KagedError as error:
            raise McpServerUnavailable(
                f"{name} did not start: {error.message}", fix=error.fix or ""
            ) from error
        owner.kill = peer.process.close
        try:
            greeting = await _shake_hands(connection, name, timeout_s)
        except KagedError as error:
            await peer.close()
            last = one_line("; ".join(peer.stderr.lines[-3:]))
            said = f"; it said: {last}" if last else ""
            raise McpServerUnavailable(
                f"{name} did not start: {error.message}{said}", fix=error.fix or ""
            ) from error
        except BaseException:
            await peer.close()
            raise
        return cls(name, peer, owner, greeting)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self.peer.connection.is_open

    @property
    def broke(self) -> str:
        """Why we ended it; empty when we did not."""
        return self._owner.broke_because

    async def ask(
        self, method: str, params: JsonObject, timeout_s: float, report: Report | None = None
    ) -> JsonValue:
        """Ask something; a caller that stops waiting leads to a cancellation on the wire.

        Raises:
            RpcError: the server answered with an error.
            PeerTimeout, PeerGone, PeerStalled, TooManyOpen, Unsendable: there is no answer.
        """
        if report is None:
            return await self.peer.connection.request(method, params, timeout_s, cancel=True)
        token = self._owner.listen(report)
        meta = params.get("_meta")
        known = meta if isinstance(meta, dict) else {}
        told: JsonObject = {**params, "_meta": {**known, "progressToken": token}}
        try:
            return await self.peer.connection.request(method, told, timeout_s, cancel=True)
        finally:
            self._owner.unlisten(token)

    async def alive(self) -> bool:
        """Return whether it still answers anything at all."""
        try:
            await self.peer.connection.request("ping", {}, PING_TIMEOUT_S)
        except RpcError:
            return True  # it refuses pings, but it is there
        except KagedError:
            return False
        return True

    def kill(self, why: str) -> None:
        """End a server that can no longer be talked to."""
        self._owner.end(why)

    async def exited(self) -> ExitReport:
        """Wait until the process has ended."""
        return await self.peer.wait()

    async def stop(self) -> None:
        """Close its input, then signal."""
        self._owner.leaving = True
        await self.peer.stop(None, SHUTDOWN_TIMEOUT_S)

    async def close(self) -> None:
        """End it at once."""
        self._owner.leaving = True
        await self.peer.close()


async def _shake_hands(connection: Connection, name: str, timeout_s: float) -> McpServerInfo:
    answer = await connection.request(
        "initialize",
        {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": {},
            "clientInfo": {"name": "kaged", "version": __version__},
        },
        timeout_s,
    )
    said: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    version = said.get("protocolVersion")
    if version not in KNOWN_VERSIONS:
        raise McpServerUnavailable(
            f"{name} uses MCP version {one_line(version, 40)}, which is not supported",
            fix=f"use a server that supports {PROTOCOL_VERSION}",
        )
    connection.notify("notifications/initialized", {})
    info, offers = said.get("serverInfo"), said.get("capabilities")
    claims = cast("dict[str, Any]", info) if isinstance(info, dict) else {}
    return McpServerInfo(
        version=str(version),
        claims=one_line(f"{claims.get('name', '')} {claims.get('version', '')}", 120),
        offers=frozenset(map(str, cast("dict[str, Any]", offers)))
        if isinstance(offers, dict)
        else frozenset(),
    )


class _ServerOwner:
    """Hears what a server does unasked: pings are answered, the rest is noted or refused."""

    def __init__(
        self, name: str, on_changed: Callable[[str], None], on_line: Callable[[str], None]
    ) -> None:
        self._name = name
        self._on_changed = on_changed
        self._on_line = on_line
        self._noise = 0
        self._progress: dict[int, tuple[Report, int]] = {}
        self._last_token = 0
        self.kill: Callable[[], None] = lambda: None
        self.broke_because = ""
        self.leaving = False

    def listen(self, report: Report) -> int:
        self._last_token += 1
        self._progress[self._last_token] = (report, 0)
        return self._last_token

    def unlisten(self, token: int) -> None:
        self._progress.pop(token, None)

    def end(self, why: str) -> None:
        if not self.broke_because:
            self.broke_because = why
            _log.warning("mcp.server_ended_by_host", server=self._name, why=why)
            self.kill()

    async def answer(self, request: Request) -> JsonValue:
        if request.method == "ping":
            return {}
        # No sampling, no elicitation, no roots: an outside server gets nothing from the host.
        raise RpcError("this client offers nothing", number=ErrorCode.METHOD_NOT_FOUND)

    def printed(self, line: str) -> None:
        self._on_line(line)
        _log.info("mcp.server_output", server=self._name, line=one_line(line))

    def asked(self, request: Request) -> None:
        """Called for a request as it arrives; `answer` answers it."""

    def notified(self, notification: Notification) -> None:
        params = notification.params if isinstance(notification.params, dict) else {}
        match notification.method:
            case "notifications/tools/list_changed":
                self._on_changed("tools")
            case "notifications/progress":
                self._tell_progress(params)
            case _:
                return  # logs and the like mean nothing here

    def _tell_progress(self, params: JsonObject) -> None:
        token, done, total = (
            params.get("progressToken"),
            params.get("progress"),
            params.get("total"),
        )
        known = self._progress.get(token) if type(token) is int else None
        if known is None or not isinstance(done, int | float) or known[1] >= MAX_PROGRESS:
            return
        report, count = known
        self._progress[cast("int", token)] = (report, count + 1)
        limit = float(total) if isinstance(total, int | float) else None
        report(float(done), limit, one_line(params.get("message") or "", 200))

    def refused(self, refused: Refused) -> None:
        self._noise += 1
        if self._noise == 1:
            _log.warning("mcp.server_message_invalid", server=self._name)
        if self._noise > MAX_NOISE:
            self.end(f"it wrote more than {MAX_NOISE} lines that are no messages")

    def ignored(self, response: Response, why: Ignored) -> None:
        """Called when an answer arrives after its caller has given up."""

    def out_of_step(self, message_id: MessageId) -> None:
        """Called for request ids out of order; MCP does not number requests in order."""

    def broke(self, error: KagedError) -> None:
        if not self.leaving:
            self.end(one_line(error.message))

    def closed(self) -> None:
        """Called when its output ended: without it there is no conversation."""
        if not self.leaving:
            self.end("it closed its output")
