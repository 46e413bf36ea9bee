"""The audit log on a real SQLite file: events per second, durable latency, rows checked per second.

Run it alone with `python benchmarks/bench_audit.py`; `run()` returns the suite's rows. Every
peer is measured in the same run on the same disk, in turns, so a busy machine hits both alike.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from kaged.audit import AuditEvent, AuditLog, HeadFile, open_key
from kaged.base import Ids, SystemClock
from kaged.store import Store, sqlite_url
from scoreboard import Row, at_least, at_most, row, show

EVENTS_TARGET = 20_000
VERIFY_TARGET = 50_000
LATENCY_RATIO = 4.0
ROUND_S = 1.5
ROUNDS = 3
DURABLE_SAMPLES = 150
PEER_COMMITS = 150


def run() -> list[Row]:
    return asyncio.run(_run())


async def _run() -> list[Row]:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-audit-"))
    clock = SystemClock()
    ids = Ids(clock)
    try:
        store = await Store.open(
            sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
        )
        key = open_key(root / "audit.key", chain_exists=False)
        head_file = HeadFile(root / "audit.head")
        log = await AuditLog.open(store.audit, clock=clock, ids=ids, key=key, head_file=head_file)
        rates: list[float] = []
        commits: list[float] = []
        for _ in range(ROUNDS):
            rates.append(await _sustained(log))
            commits.extend(_bare_commits(root / "peer.db"))
        durable = await _durable(log)
        commits.extend(_bare_commits(root / "peer.db"))
        commit_s = statistics.median(commits)
        start = time.perf_counter()
        report = await store.audit.verify(key, head_file)
        verify_rate = report.rows / (time.perf_counter() - start)
        assert report.ok, report.findings
        assert report.rows == log.health.written
        await log.close()
        await store.close()
        read_rate = _bare_read(root / "kaged.db")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return [
        row(
            "audit events, sustained, all durable at the end",
            max(rates),
            "events/s",
            against="one commit per event, same disk",
            peer=1 / commit_s,
            target=at_least(EVENTS_TARGET, max(rates), "events/s"),
            samples=rates,
        ),
        row(
            "one durable event, median",
            statistics.median(durable) * 1000,
            "ms",
            against="one bare SQLite commit, same disk",
            peer=commit_s * 1000,
            target=at_most(LATENCY_RATIO, statistics.median(durable) / commit_s, "x a bare commit"),
            samples=durable,
        ),
        row(
            "audit verify",
            verify_rate,
            "rows/s",
            against="reading the rows with sqlite3",
            peer=read_rate,
            target=at_least(VERIFY_TARGET, verify_rate, "rows/s"),
        ),
    ]


async def _sustained(log: AuditLog) -> float:
    """Record for a while, then wait until all of it is durable; return events per second."""
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < ROUND_S:
        for _ in range(500):
            count += 1
            await log.record(_event(count))
    await log.flush()
    return count / (time.perf_counter() - start)


async def _durable(log: AuditLog) -> list[float]:
    taken: list[float] = []
    for number in range(DURABLE_SAMPLES):
        start = time.perf_counter()
        await log.record(_event(number), durable=True)
        taken.append(time.perf_counter() - start)
    return taken


def _event(number: int) -> AuditEvent:
    return AuditEvent(
        "tool.called",
        {
            "tool_name": "file.read",
            "caller": "primary.subagents.builder",
            "session_id": "ses_01J8Z3T6Q9W1K5M7N2P4R6S8T0",
            "run_id": "run_01J8Z3T6Q9W1K5M7N2P4R6S8T1",
            "request_id": f"req_{number:026d}",
            "params": {"path": "src/kaged/audit/log.py", "offset": 1, "limit": 200},
        },
        project_id="prj_01J8Z3T6Q9W1K5M7N2P4R6S8T2",
    )


def _bare_commits(path: Path) -> list[float]:
    """Commit one small row at a time, as durably as the log does; return the time of each."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("CREATE TABLE IF NOT EXISTS peer (id INTEGER PRIMARY KEY, data TEXT)")
    taken: list[float] = []
    for _ in range(PEER_COMMITS):
        start = time.perf_counter()
        conn.execute("INSERT INTO peer (data) VALUES (?)", ("x" * 400,))
        taken.append(time.perf_counter() - start)
    conn.close()
    return taken


def _bare_read(path: Path) -> float:
    conn = sqlite3.connect(path)
    start = time.perf_counter()
    count = len(conn.execute("SELECT * FROM audit_events ORDER BY seq").fetchall())
    taken = time.perf_counter() - start
    conn.close()
    return count / taken


if __name__ == "__main__":
    show(run())
