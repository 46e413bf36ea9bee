"""How long an event loop did not come round while it had work to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from scoreboard.row import Row, at_most, row

ROUNDS = 5
TICK_S = 0.0005


async def longest_stall(name: str, work: Callable[[], Awaitable[None]], target_ms: float) -> Row:
    """Find how long the loop did not come round at most, in the quietest of the rounds.

    Time in the queue for a processor does not count: that is what else the machine does. Beside it
    stands the same for a loop with nothing to do; on a busy machine that is no small figure.
    """
    rounds: list[float] = []
    idle: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        rounds.append(await _longest_gap(work))
        took = time.perf_counter() - start
        idle.append(await _longest_gap(lambda took=took: asyncio.sleep(took)))
    stall_ms, idle_ms = min(rounds) * 1e3, min(idle) * 1e3
    return row(
        f"longest stall of the event loop by {name}",
        stall_ms,
        "ms",
        against="an idle loop in the same run",
        peer=idle_ms,
        target=at_most(round(max(target_ms, idle_ms), 1), stall_ms, "ms"),
        samples=rounds,
    )


async def _longest_gap(work: Callable[[], Awaitable[None]]) -> float:
    worst = 0.0
    running = True

    async def tick() -> None:
        nonlocal worst
        last, queued = time.perf_counter(), _queued_s()
        while running:
            await asyncio.sleep(TICK_S)
            now, waited = time.perf_counter(), _queued_s()
            worst = max(worst, now - last - (waited - queued))
            last, queued = now, waited

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        await work()
        running = False
    return worst


def _queued_s() -> float:
    """Return how long this thread was ready to run while the machine had no processor for it."""
    return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


__all__ = ["longest_stall"]
