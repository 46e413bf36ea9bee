"""`EventHub`: everything that happens, numbered, in one bounded ring that clients read along.

There is no queue per client. A client is a place in the ring; one that is overtaken has lost
events, is told so once and dropped. Memory is bounded by the ring, whatever clients do.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

import msgspec

from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass

RING_EVENTS = 4096
RING_BYTES = 16 * 1024 * 1024
MAX_EVENT_BYTES = 256 * 1024
MAX_SUBSCRIBERS = 64
READ_BATCH = 256
SESSION_TOPIC: Final = "session"
"""What happens in sessions: `session` hears all of it, `session:<id>` what happens in one."""

_encode_fast = msgspec.json.Encoder().encode
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode


class TooManySubscribers(KagedError):
    """The event stream serves only so many clients at a time."""

    code = "too_many_subscribers"


@dataclass(frozen=True, slots=True)
class AskedOf:
    """Of whom something is asked, and in which of their chats; None: of the operator, in any.

    `project_id` is the project that it is about, if any.
    """

    owner: JsonValue
    asked_in: JsonValue
    project_id: JsonValue = None


@dataclass(frozen=True, slots=True)
class Event:
    """One numbered event, already written as JSON so that it is encoded once for all clients."""

    seq: int
    topic: str
    text: str
    asked_of: AskedOf | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """The events from `first` to `last` are no longer in the ring."""

    first: int
    last: int


class EventHub:
    """Numbers events and keeps the latest of them for whoever reads along.

    `epoch` names this run of the daemon; numbers of another epoch mean nothing here. Use it from
    the event loop only.
    """

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        *,
        ring_events: int = RING_EVENTS,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self.epoch = ids.ulid()
        self._clock = clock
        self._ring: deque[Event] = deque()
        self._ring_events = ring_events
        self._ring_bytes = ring_bytes
        self._bytes = 0
        self._latest = 0
        self._wakers: set[asyncio.Event] = set()
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._closed = False

    @property
    def latest(self) -> int:
        """The number of the newest event, 0 before the first."""
        return self._latest

    @property
    def oldest(self) -> int:
        """The number of the oldest event still held; `latest + 1` when none is."""
        return self._ring[0].seq if self._ring else self._latest + 1

    @property
    def subscribers(self) -> int:
        """How many clients read along."""
        return len(self._wakers)

    @property
    def closed(self) -> bool:
        """Whether the daemon is stopping and no more events will come."""
        return self._closed

    def publish(
        self,
        topic: str,
        name: str,
        data: JsonObject,
        *,
        ts_ms: int | None = None,
        asked_of: AskedOf | None = None,
    ) -> int:
        """Number an event and wake the readers. Gives its number. Never waits."""
        self._latest += 1
        record: JsonObject = {
            "type": "event",
            "seq": self._latest,
            "ts_ms": self._clock.now_ms() if ts_ms is None else ts_ms,
            "topic": topic,
            "name": name,
            "data": data,
        }
        text = _encode(record)
        if len(text) > MAX_EVENT_BYTES:
            text = _encode({**record, "data": {"truncated": True, "bytes": len(text)}})
        self._ring.append(Event(self._latest, topic, text, asked_of))
        self._bytes += len(text)
        while len(self._ring) > self._ring_events or self._bytes > self._ring_bytes:
            self._bytes -= len(self._ring.popleft().text)
        for waker in self._wakers:
            waker.set()
        return self._latest

    def close(self) -> None:
        """Wake all readers for the last time."""
        self._closed = True
        for waker in self._wakers:
            waker.set()

    async def readers_gone(self, within_s: float) -> None:
        """Wait until nobody reads any more, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._nobody.wait()

    def gap_after(self, after: int) -> Gap | None:
        """Return which events a reader that has seen up to `after` can no longer get."""
        return Gap(after + 1, self.oldest - 1) if after + 1 < self.oldest else None

    def read(self, after: int, limit: int = READ_BATCH) -> list[Event]:
        """Return up to `limit` events with numbers above `after`, oldest first."""
        if not self._ring or after >= self._latest:
            return []
        start = max(0, after + 1 - self._ring[0].seq)
        return list(islice(self._ring, start, start + limit))

    @contextmanager
    def subscribe(self) -> Generator[asyncio.Event]:
        """Yield a flag that is set whenever there may be something new.

        Raises:
            TooManySubscribers: the limit is reached.
        """
        if len(self._wakers) >= MAX_SUBSCRIBERS:
            raise TooManySubscribers(
                f"The event stream serves {MAX_SUBSCRIBERS} clients at a time.",
                fix="Close another client and try again.",
            )
        waker = asyncio.Event()
        self._wakers.add(waker)
        self._nobody.clear()
        try:
            yield waker
        finally:
            self._wakers.discard(waker)
            if not self._wakers:
                self._nobody.set()


def topic_filter(topics: frozenset[str]) -> Callable[[str], bool]:
    """Make the test for wanted topics: `plugin` covers `plugin:memory`; no topics mean all."""
    if not topics:
        return lambda _topic: True
    return lambda topic: topic in topics or topic.partition(":")[0] in topics


def _encode(record: JsonObject) -> str:
    """Write ASCII: its length is its size on the wire, and no lone surrogate breaks the socket."""
    try:
        data = _encode_fast(record)
    except (UnicodeEncodeError, TypeError, ValueError):  # half a pair, or what only the other takes
        return _encode_ascii(record)
    return data.decode("ascii") if data.isascii() else _encode_ascii(record)
