"""`EventStreams`: answers that scripts read as server-sent events, a few frames at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.values import from_bytes

if TYPE_CHECKING:
    from kaged.lua.script import WorkerConnection
    from kaged.lua.web import ScriptWeb

MAX_STREAMS: Final = 4
"""How many one script reads at a time; in a timer it may begin one while another is open."""

MAX_STREAM_BYTES: Final = 32 * 1024 * 1024
MAX_FRAME_BYTES: Final = 1024 * 1024
SILENCE_S: Final = 120.0
"""How long nothing may come; how long all of it takes is not limited."""


@dataclass(slots=True, eq=False)
class _Open:
    frames: AsyncGenerator[JsonObject]
    closing: AsyncExitStack


class EventStreams:
    """The streams of one project's scripts; each belongs to the worker that opened it."""

    def __init__(self, web: ScriptWeb) -> None:
        self._web = web
        self._open: dict[WorkerConnection, dict[int, _Open]] = {}
        self._last = 0

    async def open(self, worker: WorkerConnection, url: str, options: JsonObject) -> JsonObject:
        """Begin one and return `{ id, status, content_type }`. Raises ScriptCallRefused."""
        mine = self._open.setdefault(worker, {})
        if len(mine) >= MAX_STREAMS:
            raise ScriptCallRefused(f"kage.http.post_stream: no more than {MAX_STREAMS} at a time")
        closing = AsyncExitStack()
        limit = options.get("max_bytes")
        try:
            response = await closing.enter_async_context(self._web.stream("post", url, options))
        except BaseException:
            await closing.aclose()
            raise
        self._last += 1
        bound = min(limit, MAX_STREAM_BYTES) if isinstance(limit, int) else MAX_STREAM_BYTES
        mine[self._last] = _Open(_frames(response, bound), closing)
        return {
            "id": self._last,
            "status": response.status_code,
            "content_type": response.headers.get("content-type"),
        }

    async def next(self, worker: WorkerConnection, number: JsonValue) -> JsonObject:
        """Return the next frames, as many as are there, and whether it was the end."""
        opened = self._open.get(worker, {}).get(number if isinstance(number, int) else -1)
        if opened is None:
            raise ScriptCallRefused("kage.http.post_stream: it is over")
        try:
            async with asyncio.timeout(SILENCE_S):
                frame = await anext(opened.frames, None)
        except TimeoutError:
            await self.close(worker, number)
            raise ScriptCallRefused(
                f"kage.http.post_stream: nothing came in {SILENCE_S:g} s"
            ) from None
        except BaseException:
            await self.close(worker, number)
            raise
        frames: list[JsonValue] = [] if frame is None else [frame]
        done = frame is None
        if done:
            await self.close(worker, number)
        return {"frames": frames, "done": done}

    async def close(self, worker: WorkerConnection, number: JsonValue) -> None:
        """End one; harmless when it is over."""
        opened = self._open.get(worker, {}).pop(number if isinstance(number, int) else -1, None)
        if opened is not None:
            await opened.closing.aclose()

    async def drop(self, worker: WorkerConnection) -> None:
        """End what a worker has left open when its script returned."""
        for number in [*self._open.get(worker, {})]:
            await self.close(worker, number)
        self._open.pop(worker, None)


async def _frames(response: Any, limit: int) -> AsyncGenerator[JsonObject]:
    """Read frames until the end; raises ScriptCallRefused beyond a limit."""
    event, data, size, taken = "message", list[str](), 0, 0
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            taken += len(line) + 1
            size += len(line)
            if taken > limit or size > MAX_FRAME_BYTES:
                raise ScriptCallRefused("kage.http.post_stream: the answer is too large")
            text = from_bytes(line)
            if not text:
                if data:
                    yield {"event": event, "data": "\n".join(data)}
                event, data, size = "message", [], 0
                continue
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                event = value
    if data:
        yield {"event": event, "data": "\n".join(data)}


async def _lines(response: Any) -> AsyncGenerator[bytes]:
    rest = b""
    async for piece in response.aiter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_FRAME_BYTES:
            raise ScriptCallRefused("kage.http.post_stream: the answer is too large")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")
