"""`Starts`: how many plugins of a host start at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

# All plugins together would be ready no sooner, but each one of them later, and on a busy machine
# too late for its handshake.
AT_ONCE = 8
# A start that takes longer waits for something else than a CPU and no longer counts, so that
# plugins which never answer do not hold up the others.
SLOT_S = 2.0


class Starts:
    """Hands out slots to plugins that start, first come, first served."""

    def __init__(self, at_once: int = AT_ONCE, slot_s: float = SLOT_S) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._slot_s = slot_s

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold a slot for a block, but not for ever; the block goes on without one."""
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._slot_s, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


__all__ = ["AT_ONCE", "SLOT_S", "Starts"]
