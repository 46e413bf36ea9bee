"""What one more audit row costs in a log of up to five million; finding and checking rows in it.

The rows between the points are sealed with the log's own key and kept by the real store, in batches
of 10,000, each checked for continuing the chain. The queue and the redaction in front of that are
left out, which is what makes five million rows possible in minutes. A durable event goes through
the whole log and counts bare commits on the same disk. What works hard counts CPU time, which other
programs do not bend.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kaged.audit import (
    Anchor,
    AuditEvent,
    AuditFilter,
    AuditLog,
    AuditRow,
    ChainHead,
    ChainKey,
    HeadFile,
    open_key,
)
from kaged.base import Ids, JsonObject, SystemClock
from kaged.store import Store, sqlite_url
from kaged.store.audit_rows import AuditRows
from scoreboard import Curve, Point, counts, show
from scoreboard.commits import BareCommits

POINTS = counts((1, 1000, 10_000, 100_000, 1_000_000, 5_000_000), (1, 1000, 3000))
CHECKED_FROM = 1000
BATCH = 10_000
DURABLE = 40
QUERIES = 15
PROJECTS = 40
RARE_EVERY = 100
PAGE = 10
DATA = (
    '{"caller":"primary.subagents.builder","params":{"limit":200,"offset":%d,'
    '"path":"src/kaged/audit/log.py"},"tool_name":"file.read"}'
)

Costs = dict[str, list[Point]]


def run() -> list[Curve]:
    """Measure the curves."""
    costs = asyncio.run(_run())
    family = "audit rows 1 to 5 million"
    shapes = (
        ("bulk", "a row written in bulk", "CPU µs each"),
        ("durable", "an event, durable when recorded", "bare commits"),
        ("verify", "verify, for each row", "CPU µs each"),
        ("request", "a page by request", "ms"),
        ("project", "the newest page of a project", "ms"),
        ("rare", "the newest page of a rare event", "ms"),
    )
    return [Curve(family, work, "rows", unit, tuple(costs[key])) for key, work, unit in shapes]


async def _run() -> Costs:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-scale-"))
    clock = SystemClock()
    ids = Ids(clock)
    costs: Costs = {}
    try:
        store = await Store.open(
            sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
        )
        key = open_key(root / "audit.key", chain_exists=False)
        head_file = HeadFile(root / "audit.head")
        make = _Rows(clock, ids, key)
        commits = BareCommits(root / "peer.db")
        there = 0
        for count in POINTS:
            bulk_us = await asyncio.to_thread(_fill, store.audit, head_file, make, there, count)
            there = count
            if count >= CHECKED_FROM:
                _add(costs, "bulk", count, bulk_us)
                started = time.process_time()
                report = await store.audit.verify(key, head_file)
                took = time.process_time() - started
                assert report.ok, report.findings
                _add(costs, "verify", count, took / report.rows * 1e6)
            for name, wanted in make.questions().items():
                # With fewer rows there is no full page of a project to compare with.
                if count >= CHECKED_FROM or name == "request":
                    _add(costs, name, count, await _query_ms(store, wanted))
            log = await AuditLog.open(
                store.audit, clock=clock, ids=ids, key=key, head_file=head_file
            )

            async def durable(_number: int, log: AuditLog = log) -> None:
                await log.record(make.event(), durable=True)

            _add(costs, "durable", count, await commits.times(durable, DURABLE))
            await log.close()
        commits.close()
        await store.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return costs


def _add(costs: Costs, name: str, count: int, cost: float) -> None:
    costs.setdefault(name, []).append(Point(count, cost))


class _Rows:
    """Events as a daemon records them: forty projects, every request of its own."""

    def __init__(self, clock: SystemClock, ids: Ids, key: ChainKey) -> None:
        self._clock = clock
        self._ids = ids
        self._key = key
        self._projects = [ids.tagged("prj") for _ in range(PROJECTS)]
        self._last_request = ""

    def event(self) -> AuditEvent:
        """Make an event of a call, for the log itself."""
        data: JsonObject = {
            "tool_name": "file.read",
            "caller": "primary.subagents.builder",
            "session_id": self._ids.tagged("ses"),
            "run_id": self._ids.tagged("run"),
            "request_id": self._ids.tagged("req"),
            "params": {"path": "src/kaged/audit/log.py", "offset": 1, "limit": 200},
        }
        return AuditEvent("tool.called", data, project_id=self._projects[0])

    def sealed(self, head: ChainHead, first: int, count: int) -> list[AuditRow]:
        """Make rows that continue the chain behind `head`."""
        seq, last_hash = head
        ts_ms, seal, ulid = self._clock.now_ms(), self._key.hash, self._ids.ulid
        rows: list[AuditRow] = []
        for number in range(first, first + count):
            seq += 1
            self._last_request = f"req_{seq:026d}"
            parts = (
                seq,
                ulid(),
                ts_ms,
                "tool.called" if number % RARE_EVERY else "project.loaded",
                self._projects[number % PROJECTS],
                self._last_request,
                DATA % number,
                last_hash,
            )
            last_hash = seal(*parts)
            rows.append(AuditRow(*parts, last_hash))
        return rows

    def anchor(self, last: AuditRow) -> Anchor:
        """Sign the end of the chain."""
        return self._key.sign_anchor(ChainHead(last.seq, last.hash), last.ts_ms)

    def questions(self) -> dict[str, AuditFilter]:
        """Return what is asked of the log at each point."""
        return {
            "request": AuditFilter(request_id=self._last_request),
            "project": AuditFilter(project_id=self._projects[0]),
            "rare": AuditFilter(names=("project.loaded",)),
        }


def _fill(audit: AuditRows, head_file: HeadFile, make: _Rows, there: int, count: int) -> float:
    """Keep rows until there are `count`; return the µs for each, the last batches' median."""
    times: list[float] = []
    for start in range(there, count, BATCH):
        rows = make.sealed(audit.head(), start, min(BATCH, count - start))
        anchor = make.anchor(rows[-1])
        began = time.process_time()
        audit.append(rows, anchor)
        times.append((time.process_time() - began) / len(rows) * 1e6)
        if start + BATCH >= count:
            head_file.write(anchor)
    # The last ones: those before were kept while there were fewer rows.
    return statistics.median(times[-20:])


async def _query_ms(store: Any, wanted: AuditFilter) -> float:
    async def one() -> None:
        assert (await store.audit.query(wanted, limit=PAGE)).items

    return await _best_ms(one, QUERIES)


async def _best_ms(call: Callable[[], Awaitable[None]], times: int) -> float:
    found: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        await call()
        found.append((time.perf_counter() - started) * 1000)
    return min(found)


if __name__ == "__main__":
    show(run())
