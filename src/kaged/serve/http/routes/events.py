"""`WS /api/v1/events`: everything that happens, with resume by sequence number.

The daemon speaks, the client listens. First comes `hello` (epoch, newest and oldest number), then
`gap` if something the client asked for is gone, then one `event` per event. `mark` tells a client
that filters how far it is. Before the daemon hangs up it sends one `error` in the one error shape.
"""

from __future__ import annotations

import asyncio
import json
import re

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from kaged.base import JsonObject, KagedError
from kaged.base.log import get_logger
from kaged.events.hub import (
    SESSION_TOPIC,
    Event,
    EventHub,
    TooManySubscribers,
    topic_filter,
)
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import AccessAction, may, may_answer
from kaged.serve.http.connection import STATE_KEY, PeerConnection, accept
from kaged.serve.http.errors import (
    DaemonStopping,
    InvalidHttpRequest,
    error_body,
    error_response,
    request_id_of,
)
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import API_PREFIX, Services, Who
from kaged.store import Store
from kaged.store.work_errors import SessionNotFound

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX)

SEND_TIMEOUT_S = 10.0
MARK_EVERY = 256
MAX_TOPICS = 32
MAX_SESSIONS_KNOWN = 1000

_log = get_logger("kaged.http")
_TOPIC = re.compile(r"[a-z][a-z0-9_]{0,31}(:[A-Za-z0-9._@/-]{1,128})?")
_EPOCH = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_NUMBER = re.compile(r"[0-9]{1,15}")
_CLOSE_CODES = {"daemon_stopping": 1001, "unexpected_message": 1003, "slow_client": 1013}


@router.websocket("/events")
async def events(websocket: WebSocket, services: Services, who: Who) -> None:
    """Stream events to one client until either side ends it."""
    hub = services.hub
    try:
        resume = _Resume.parse(websocket, hub, EventAudience(who, services.store))
        with hub.subscribe() as waker:
            if not await accept(websocket):
                return
            ended = await _converse(websocket, hub, waker, resume)
            if ended is not None:
                await _hang_up(websocket, ended)  # a reader until then: a stop waits for readers
    except (InvalidHttpRequest, TooManySubscribers) as refusal:
        answer = error_response(refusal, request_id_of(websocket))
        await answer(websocket.scope, websocket.receive, websocket.send)


class _Resume:
    """Where a client resumes, and which events it asked for."""

    def __init__(
        self,
        after: int,
        topics: frozenset[str],
        audience: EventAudience,
        *,
        epoch_changed: bool,
    ) -> None:
        self.after = after
        self.wanted = topic_filter(topics)
        self.audience = audience
        self.epoch_changed = epoch_changed

    @classmethod
    def parse(cls, websocket: WebSocket, hub: EventHub, audience: EventAudience) -> _Resume:
        query = websocket.query_params
        topics = frozenset(part for part in query.get("topics", "").split(",") if part)
        if len(topics) > MAX_TOPICS or not all(_TOPIC.fullmatch(topic) for topic in topics):
            raise InvalidHttpRequest(
                "topics is a comma-separated list such as `audit,project,plugin:memory`.",
                limit=MAX_TOPICS,
            )
        epoch, after = query.get("epoch"), query.get("after")
        if epoch is not None and _EPOCH.fullmatch(epoch) is None:
            raise InvalidHttpRequest("epoch is the value of an earlier `hello`.")
        if after is None:
            return cls(hub.latest, topics, audience, epoch_changed=False)
        if _NUMBER.fullmatch(after) is None:
            raise InvalidHttpRequest("after is the number of the last event seen.")
        # Numbers of an earlier run, or beyond what this one has given out, say nothing: the client
        # gets all there is and is told that it missed the rest.
        if (epoch is not None and epoch != hub.epoch) or int(after) > hub.latest:
            return cls(0, topics, audience, epoch_changed=True)
        return cls(int(after), topics, audience, epoch_changed=False)


class EventAudience:
    """Which events one client may see: the operator all, a person what is theirs.

    An event is a person's by its session or because they are asked; of all others, audit rows and
    plugins among them, people hear nothing.
    """

    def __init__(self, actor: Actor, store: Store) -> None:
        self._actor = actor
        self._store = store
        self._sessions: dict[str, bool] = {}

    async def sees(self, event: Event) -> bool:
        """Return whether the client may see an event."""
        if not self._actor.is_person:
            return True
        if event.asked_of is not None:
            asked = event.asked_of
            about = (asked.owner, asked.asked_in, asked.project_id)
            return may_answer(
                self._actor, *(one if isinstance(one, str) else None for one in about)
            )
        kind, _, session_id = event.topic.partition(":")
        return kind == SESSION_TOPIC and await self._sees_session(session_id)

    async def _sees_session(self, session_id: str) -> bool:
        if session_id not in self._sessions:
            if len(self._sessions) >= MAX_SESSIONS_KNOWN:
                self._sessions.clear()
            try:
                found = await self._store.sessions.of_id(session_id)
            except SessionNotFound:
                return False  # it may be there a moment later
            self._sessions[session_id] = may(self._actor, AccessAction.SEE, found.ownership)
        return self._sessions[session_id]


async def _converse(
    websocket: WebSocket, hub: EventHub, waker: asyncio.Event, resume: _Resume
) -> KagedError | None:
    """Send until there is a reason to stop; None when the client left by itself."""
    async with asyncio.TaskGroup() as group:
        sender = group.create_task(_send_events(websocket, hub, waker, resume))
        listener = group.create_task(_listen(websocket))
        await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
        ended = (sender if sender.done() else listener).result()
        sender.cancel()
        listener.cancel()
    return ended


async def _send_events(
    websocket: WebSocket, hub: EventHub, waker: asyncio.Event, resume: _Resume
) -> KagedError | None:
    after, marked = resume.after, resume.after
    try:
        await _send(websocket, _hello(hub, resume))
        gap = hub.gap_after(after)
        if gap is not None or resume.epoch_changed:
            first, last = (gap.first, gap.last) if gap else (None, None)
            reason = "epoch_changed" if resume.epoch_changed else "too_old"
            await _send(
                websocket,
                _text({"type": "gap", "reason": reason, "first": first, "last": last}),
            )
            after = marked = gap.last if gap else after
        while True:
            waker.clear()
            if hub.gap_after(after) is not None:
                return _slow(after)
            for event in hub.read(after):
                after = event.seq
                if resume.wanted(event.topic) and await resume.audience.sees(event):
                    await _send(websocket, event.text)
                    marked = after
            if after - marked >= MARK_EVERY:
                await _send(websocket, _text({"type": "mark", "seq": after}))
                marked = after
            if after < hub.latest:
                continue
            if hub.closed:
                return DaemonStopping("The daemon is stopping.", fix="Connect again later.")
            await waker.wait()
    except TimeoutError:
        return _slow(after)
    except WebSocketDisconnect:
        return None


async def _listen(websocket: WebSocket) -> KagedError | None:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    return KagedError(
        "This stream is for listening; the daemon takes no messages on it.",
        code="unexpected_message",
        fix="Use the HTTP routes to ask for something.",
    )


async def _send(websocket: WebSocket, text: str) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await websocket.send_text(text)


async def _hang_up(websocket: WebSocket, error: KagedError) -> None:
    """Send the reason, then close; a client that does not read it is cut off."""
    _log.info("events.client_dropped", code=error.code)
    try:
        async with asyncio.timeout(1.0):
            body = error_body(error, request_id_of(websocket))
            await websocket.send_text(_text({"type": "error", **body}))
            await websocket.close(_CLOSE_CODES.get(error.code, 1011), error.code)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        connection = websocket.scope["state"].get(STATE_KEY)
        if isinstance(connection, PeerConnection):
            connection.abort()
        websocket.application_state = WebSocketState.DISCONNECTED


def _hello(hub: EventHub, resume: _Resume) -> str:
    return _text(
        {
            "type": "hello",
            "epoch": hub.epoch,
            "latest": hub.latest,
            "oldest": hub.oldest,
            "after": resume.after,
        }
    )


def _slow(after: int) -> KagedError:
    return KagedError(
        "The client reads more slowly than events arrive; the daemon keeps no queue for it.",
        code="slow_client",
        fix="Connect again with after= the last number you saw; `gap` says what was lost.",
        last_seq=after,
    )


def _text(message: JsonObject) -> str:
    return json.dumps(message, separators=(",", ":"))
