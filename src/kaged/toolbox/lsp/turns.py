"""`ServerTurns`: whose question a language server gets next, and which may be asked together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class ServerTurns:
    """The turns of one server, in the order in which they were asked for.

    Up to `limit` reading questions share a turn; whatever edits has one for itself. Most servers
    are asked one question at a time, which is a limit of one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = asyncio.Lock()  # one that waits for all room lets nobody pass
        self._room = asyncio.Semaphore(limit)
        self.syncing = asyncio.Lock()
        """Held while files are read and told: an older text must not be told after a newer one."""

    @asynccontextmanager
    async def turn(self, *, shared: bool) -> AsyncGenerator[None]:
        """Wait for a turn and keep it."""
        wanted = 1 if shared else self._limit
        taken = 0
        try:
            async with self._line:
                while taken < wanted:
                    await self._room.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._room.release()
