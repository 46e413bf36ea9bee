"""Events that nobody waits for share a commit; one that somebody waits for never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fakes.audit_sink import MemorySink
from kaged.audit import Anchor, AuditEvent, AuditLimits, AuditLog, AuditRow, ChainKey
from kaged.base import Ids, SystemClock

NEVER_S = 3600.0


class Counting(MemorySink):
    """A sink that remembers how many rows each commit had."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[int] = []

    def append(self, rows: Sequence[AuditRow], anchor: Anchor) -> None:
        self.commits.append(len(rows))
        super().append(rows, anchor)


async def opened(sink: Counting, **limits: float) -> AuditLog:
    clock = SystemClock()
    return await AuditLog.open(
        sink,
        clock=clock,
        ids=Ids(clock),
        key=ChainKey(b"k" * 32),
        limits=AuditLimits(linger_s=NEVER_S, **limits),  # type: ignore[arg-type] # counts only
    )


def post(log: AuditLog, times: int) -> None:
    for _ in range(times):
        log.post(AuditEvent("plugin.stopped", {"name": "p"}))


async def test_posted_events_share_one_commit_and_flush_does_not_wait_for_more() -> None:
    sink = Counting()
    log = await opened(sink)
    post(log, 5)
    async with asyncio.timeout(10):
        await log.flush()
    assert sink.commits == [5]
    await log.close()


async def test_enough_events_are_written_without_waiting_longer() -> None:
    sink = Counting()
    log = await opened(sink, linger_events=4)
    written = asyncio.Event()
    log.subscribe(lambda _: written.set())
    post(log, 4)
    async with asyncio.timeout(10):
        await written.wait()
    await log.close()
    assert sum(sink.commits) == 4


async def test_closing_writes_what_lingers() -> None:
    sink = Counting()
    log = await opened(sink)
    post(log, 3)
    async with asyncio.timeout(10):
        await log.close()
    assert sink.commits == [3]


async def test_a_log_at_rest_is_woken_once_and_never_overlooks_anything() -> None:
    sink = Counting()
    log = await opened(sink, linger_events=4)
    for _ in range(50):
        post(log, 3)  # the first wakes it; then it lingers, or has not had its turn yet
        async with asyncio.timeout(20):
            await log.flush()
    await log.close()
    assert sum(sink.commits) == 150
