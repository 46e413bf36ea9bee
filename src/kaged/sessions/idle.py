"""`IdleWatch`: notices that nothing has happened in a session for a while, once.

Timers live in memory only: after a restart a session is not idle until something happened in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kaged.base import Clock, Tasks

DEFAULT_IDLE_S: Final = 300.0
MAX_WATCHED: Final = 10_000
_LOOK_S: Final = 1.0
"""How often the clock is looked at, which need not be the loop's."""

OnIdle = Callable[[str], Awaitable[None]]


class IdleWatch:
    """Calls `on_idle` with each session that had no activity for `idle_s`."""

    def __init__(
        self, on_idle: OnIdle, *, clock: Clock, tasks: Tasks, idle_s: Callable[[], float]
    ) -> None:
        self._on_idle = on_idle
        self._clock = clock
        self._tasks = tasks
        self._idle_s = idle_s
        self._since_s: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Count the sessions that are watched."""
        return len(self._since_s)

    def touched(self, session_id: str) -> None:
        """Note that a session's run ended: from now on it may become idle."""
        self._since_s.pop(session_id, None)
        if len(self._since_s) >= MAX_WATCHED:
            self._since_s.pop(next(iter(self._since_s)))
        self._since_s[session_id] = self._clock.monotonic_s()
        if self._watching is None:
            self._watching = self._tasks.start(self._watch(), "idle sessions")

    def busy(self, session_id: str) -> None:
        """Note that a session runs: it is not idle, however long that takes."""
        self._since_s.pop(session_id, None)

    def sweep(self) -> list[str]:
        """Start what is due by the clock; returns the sessions that have become idle."""
        limit_s = self._clock.monotonic_s() - self._idle_s()
        # In the order of last activity, because every touch puts a session at the end.
        due: list[str] = []
        for session_id, since_s in self._since_s.items():
            if since_s > limit_s:
                break
            due.append(session_id)
        for session_id in due:
            del self._since_s[session_id]
            self._tasks.start(self._told(session_id), f"idle {session_id}")
        return due

    async def _told(self, session_id: str) -> None:
        await self._on_idle(session_id)

    async def _watch(self) -> None:
        try:
            while self._since_s:
                await asyncio.sleep(_LOOK_S)
                self.sweep()
        finally:
            self._watching = None
