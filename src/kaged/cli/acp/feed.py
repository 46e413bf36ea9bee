"""`EventFeed`: what happens in the sessions that an editor has open, as it happens.

One connection to the daemon's event stream for all of them. Cut off, it connects again and goes on
behind the last event; where events are lost, every listener is told to look for itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

TOPICS: Final = "session,attention"
OPEN_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
TRIES: Final = 60
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
MAX_WAITING: Final = 10_000
GAP: Final = "stream.gap"
"""The name of the event that stands for events that may have been missed."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event of a session."""

    name: str
    data: dict[str, Any]


Listener: TypeAlias = asyncio.Queue[FeedEvent]


class EventFeed:
    """Distributes events by session. Run it beside those who listen."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._listeners: dict[str, set[Listener]] = {}
        self._connected = asyncio.Event()
        self._epoch = ""
        self._seq: int | None = None

    async def ready(self) -> None:
        """Wait until nothing that happens from now on is missed."""
        await self._connected.wait()

    @contextmanager
    def listening(self, session_id: str) -> Generator[Listener]:
        """Collect the events of a session for as long as the block runs."""
        queue: Listener = asyncio.Queue(MAX_WAITING)
        self._listeners.setdefault(session_id, set()).add(queue)
        try:
            yield queue
        finally:
            self._listeners[session_id].discard(queue)
            if not self._listeners[session_id]:
                del self._listeners[session_id]

    async def run(self) -> None:
        """Read the stream until canceled. Raises `daemon_unreachable` when the daemon is gone."""
        tries = 0
        while tries < TRIES:
            try:
                async with self._open() as stream:
                    await self._greeted(stream)
                    tries = 0
                    await self._read(stream)
            except (OSError, WebSocketException, TimeoutError, ValueError):
                tries += 1
            self._connected.clear()
            await asyncio.sleep(RETRY_S)
        raise KagedError(
            "The daemon ended and did not come back.",
            code="daemon_unreachable",
            fix="Check `kaged status`, then start the editor's agent again.",
        )

    def _open(self) -> Any:
        resume = "" if self._seq is None else f"&after={self._seq}&epoch={self._epoch}"
        return unix_connect(
            str(self._socket),
            f"ws://kaged/api/v1/events?topics={TOPICS}{resume}",
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=OPEN_TIMEOUT_S,
        )

    async def _greeted(self, stream: ClientConnection) -> None:
        hello = json.loads(await asyncio.wait_for(stream.recv(), OPEN_TIMEOUT_S))
        self._epoch = str(hello["epoch"])
        if self._seq is None:
            self._seq = int(hello["latest"])
        self._connected.set()

    async def _read(self, stream: ClientConnection) -> None:
        async for raw in stream:
            message = json.loads(raw)
            match message["type"]:
                case "event":
                    self._seq = message["seq"]
                    self.hand_on(FeedEvent(str(message["name"]), message["data"]))
                case "mark":
                    self._seq = message["seq"]
                case "gap":
                    # A daemon that was restarted counts anew.
                    self._seq = message.get("last", self._seq)
                    for session_id in self._listeners:
                        self._give(session_id, FeedEvent(GAP, {}))
                case _:
                    continue

    def hand_on(self, event: FeedEvent) -> None:
        """Deliver an event to those who listen to its session."""
        for word in ("session_id", "chat_id"):
            session_id = event.data.get(word)
            if isinstance(session_id, str) and session_id in self._listeners:
                self._give(session_id, event)
                return

    def _give(self, session_id: str, event: FeedEvent) -> None:
        for queue in self._listeners[session_id]:
            if queue.full():
                # Whoever is this far behind has missed something: it looks for itself.
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(FeedEvent(GAP, {}))
            queue.put_nowait(event)
