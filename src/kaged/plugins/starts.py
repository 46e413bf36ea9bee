"""`Starts`: how many plugins of a host start at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

# All plugins together would be ready no sooner, but each one of them later, and on a busy machine
# too late for its handshake.
AT_ONCE = 8
# A start that takes longer waits for something else than a CPU and no longer counts, so that
# plugins which never answer do not hold up the others.
SLOT_S = 2.0
# Less than this is not worth another look.
_LEAST_S = 0.01


class StartSlot:
    """One start that counts, until it ends or has had its time.

    Time in which its process stood in line for a CPU is not held against it: were the slot given
    away for that, a busy machine would start all plugins at once and none of them in time.
    """

    def __init__(self, seconds: float, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._waited: Callable[[], float] = float
        self._allowed_s = 0.0
        self._held = True
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._due)

    def watch(self, waited: Callable[[], float]) -> None:
        """Ask `waited` how many seconds the process has stood in line for a CPU."""
        self._waited = waited

    def close(self) -> None:
        """End it; nothing happens when its time was over already."""
        self._timer.cancel()
        if self._held:
            self._held = False
            self._give_back()

    def _due(self) -> None:
        more_s = self._waited() - self._allowed_s
        if more_s < _LEAST_S:
            self.close()
            return
        self._allowed_s += more_s
        self._timer = self._loop.call_later(more_s, self._due)


class Starts:
    """Hands out slots to plugins that start, first come, first served."""

    def __init__(self, at_once: int = AT_ONCE, slot_s: float = SLOT_S) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._slot_s = slot_s

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[StartSlot]:
        """Hold a slot for a block, but not for ever; the block goes on without one."""
        await self._free.acquire()
        slot = StartSlot(self._slot_s, self._free.release)
        try:
            yield slot
        finally:
            slot.close()


def waited_for_cpu_s(pid: int | None) -> float:
    """Return how long a process was ready to run and had to wait for a CPU; 0 if not known."""
    if pid is None:
        return 0.0
    try:
        # Nanoseconds on a CPU, nanoseconds in line for one, turns.
        words = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(words[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
