"""`Frames`: the stacks of a stopped program, as far as they were asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from kaged.base import JsonObject

MAX_FRAMES: Final = 10_000

Ask: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Asks the adapter: a command and its arguments."""


class Frames:
    """What is known of the stacks since the program stopped."""

    def __init__(self) -> None:
        self._known: dict[int, list[JsonObject]] = {}
        self._totals: dict[int, int] = {}
        self._age = 0

    def forget(self) -> None:
        """Drop everything: the program goes on, or has stopped anew."""
        self._age += 1
        self._known.clear()
        self._totals.clear()

    async def top(self, thread_id: int, levels: int, ask: Ask) -> list[JsonObject]:
        """Return the top frames of a thread; asks the adapter only for what is not known."""
        known, age = self._known.get(thread_id, []), self._age
        if len(known) >= levels or len(known) == self._totals.get(thread_id):
            return known[:levels]
        asked: JsonObject = {"threadId": thread_id, "startFrame": 0, "levels": levels}
        body = await ask("stackTrace", asked)
        known = _frames(body)
        if self._age == age:  # else the program has gone on meanwhile
            self._known[thread_id] = known
            total = body.get("totalFrames")
            if type(total) is int and total >= len(known):
                self._totals[thread_id] = total
            elif 0 < len(known) < levels:
                self._totals[thread_id] = len(known)
        return known[:levels]

    async def count(self, thread_id: int, ask: Ask) -> int:
        """Return how many frames a thread has; an adapter that has not said is asked for all."""
        known, age = self._known.get(thread_id, []), self._age
        total = self._totals.get(thread_id)
        if total is None:
            total = max(len(_frames(await ask("stackTrace", {"threadId": thread_id}))), len(known))
            if self._age == age:
                self._totals[thread_id] = total
        return total


def _frames(body: JsonObject) -> list[JsonObject]:
    listed = body.get("stackFrames")
    frames = listed if isinstance(listed, list) else []
    return [one for one in frames[:MAX_FRAMES] if isinstance(one, dict)]
