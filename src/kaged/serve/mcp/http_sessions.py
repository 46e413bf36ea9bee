"""`HttpSessions`: the HTTP sessions of one served agent, and whose they are.

The SDK makes and ends sessions and knows one limit for all. Here each person has a share of it,
decided before the SDK sees a request that opens a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kaged.base import Clock, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor, ActorKey
from kaged.kernel.shares import Shares

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

SESSION_HEADER = "mcp-session-id"
_GONE = 404
_FAILED = 400


class TooManyMcpClients(KagedError):
    """As many MCP clients are served as there may be, of all or of one person."""

    code = "mcp_too_many_clients"


@dataclass(slots=True, eq=False)
class HttpPlace:
    """A place in the table: that of a session, or of a request that may open one."""

    actor: ActorKey
    session: str = ""
    requests: int = 0
    last_used_s: float = 0.0


class HttpSessions:
    """Passes requests on to the SDK; `left` is told who has ended a session."""

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        limit: int,
        idle_s: float,
        clock: Clock,
        left: Callable[[str, ActorKey], None],
    ) -> None:
        self._manager = manager
        self._shares = Shares(limit, what="MCP sessions", error=TooManyMcpClients)
        self._idle_s = idle_s
        self._clock = clock
        self._left = left
        self._sessions: dict[str, HttpPlace] = {}

    def enter(self, request: Request, actor: Actor) -> HttpPlace | None:
        """Return the place of a request; None for a session that is not theirs, or not there.

        Raises:
            KagedError: `mcp_too_many_clients`; it would open a session, and there is no room.
        """
        session = request.headers.get(SESSION_HEADER)
        if session is not None:
            # The SDK answers such a request alike whether a session is another's or nobody's.
            found = self._sessions.get(session)
            return found if found is not None and found.actor == actor.key else None
        self._forget_idle()
        place = HttpPlace(actor.key)
        self._shares.take(place, actor)
        return place

    async def serve(
        self, place: HttpPlace | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let the SDK answer a request that has entered."""
        if place is None:
            await self._manager.handle_request(scope, receive, send)
            return
        answered: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.append(message["status"])
                if message["status"] < _FAILED and not place.session:
                    self._opened(place, dict(message["headers"]))
            await send(message)

        place.requests += 1
        try:
            await self._manager.handle_request(scope, receive, watched)
        finally:
            place.requests -= 1
            place.last_used_s = self._clock.monotonic_s()
            ended = scope["method"] == "DELETE" and any(one < _FAILED for one in answered)
            if not place.session or ended or _GONE in answered:
                self._end(place)

    def _opened(self, place: HttpPlace, headers: dict[bytes, bytes]) -> None:
        session = headers.get(SESSION_HEADER.encode(), b"").decode("ascii", "replace")
        if session:
            place.session = session
            self._sessions[session] = place

    def _end(self, place: HttpPlace) -> None:
        self._shares.release(place)
        if place.session and self._sessions.pop(place.session, None) is not None:
            self._left(place.session, place.actor)

    def _forget_idle(self) -> None:
        """Free the places of sessions that the SDK has ended because nobody used them."""
        now_s = self._clock.monotonic_s()
        for place in list(self._sessions.values()):
            if place.requests == 0 and now_s - place.last_used_s > self._idle_s:
                self._end(place)
