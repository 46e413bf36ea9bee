"""`ConfigLane`: calls under one configuration overlap, calls under different ones take turns.

One process serves every agent of every project (PH-AMB-23). Before a call of an agent whose
effective config differs from the one last delivered, the plugin gets that config first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from kaged.base import JsonObject


class ConfigLane:
    """Who may talk to the plugin now, by configuration. First come, first served."""

    def __init__(self, deliver: Callable[[JsonObject], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._current: JsonObject | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()

    def delivered(self, config: JsonObject) -> None:
        """Take note that a configuration reached the plugin on another way."""
        self._current = config

    async def idle(self) -> None:
        """Wait until no call holds the lane."""
        await self._idle.wait()

    @asynccontextmanager
    async def under(self, config: JsonObject | None) -> AsyncGenerator[None]:
        """Hold the lane for a call under `config`; None means: whatever is delivered will do."""
        if not self.enter_now(config):
            await self.enter(config)
        try:
            yield
        finally:
            self.leave()

    def enter_now(self, config: JsonObject | None) -> bool:
        """Enter for a call under `config` if nobody has to be waited for; `leave` must follow."""
        if self._turn.locked() or not self._fits(config):
            return False
        self._enter()
        return True

    async def enter(self, config: JsonObject | None) -> None:
        """Wait for a turn and enter for a call under `config`; `leave` must follow."""
        async with self._turn:
            if config is not None and not self._fits(config):
                await self._idle.wait()
                await self._deliver(config)
                self._current = config
            self._enter()

    def leave(self) -> None:
        """End a call that entered."""
        self._active -= 1
        if self._active == 0:
            self._idle.set()

    def _fits(self, config: JsonObject | None) -> bool:
        return config is None or config == self._current

    def _enter(self) -> None:
        self._active += 1
        self._idle.clear()
