"""What the broker adds around a plugin's SQL: a query of one row, and a durable insert.

Run it alone with `python benchmarks/bench_plugin_storage.py`; `run()` returns the suite's rows.
The peer is the sqlite3 module on the same file in the same run: no names changed, nothing guarded,
no other thread, no limits. The broker's figure holds all of that and the answer as JSON objects.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from kaged.audit import AuditLog, ChainKey
from kaged.base import Ids, SystemClock
from kaged.kernel.capabilities import parse_capabilities
from kaged.plugins.storage import StorageBroker
from kaged.store import Store, sqlite_url
from scoreboard import Row, at_most, row, show

QUERY_TARGET_US = 150.0
EXEC_TARGET_RATIO = 3.0
_ROUNDS = 9
_QUERIES = 500
_INSERTS = 60
_QUERY = "SELECT id, body FROM notes WHERE id = ?"
_INSERT = "INSERT INTO notes (body) VALUES (?)"
_WRITE = parse_capabilities(["kaged:storage:write"])


def run() -> list[Row]:
    """Measure both; one row per promise."""
    return uvloop.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        root, clock = Path(folder), SystemClock()
        ids = Ids(clock)
        store = await Store.open(
            sqlite_url(root / "kaged.db"), clock=clock, ids=ids, backup_dir=root / "backups"
        )
        audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=ChainKey(b"k" * 32))
        broker = await StorageBroker.open(store, audit, clock, ids)
        try:
            await _ask(broker, "exec", "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)")
            for number in range(100):
                await _ask(broker, "exec", _INSERT, f"note {number}")
            plain = _plain(root / "kaged.db")
            try:
                return [await _query(broker, plain), await _exec(broker, plain)]
            finally:
                plain.close()
        finally:
            await audit.close()
            await store.close()


async def _ask(broker: StorageBroker, method: str, sql: str, *values: Any) -> Any:
    params: Any = {"sql": sql, "params": list(values)}
    return await broker.answer("bench", _WRITE, f"kaged.storage.{method}", params)


def _plain(path: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA synchronous=FULL")
    return conn


async def _query(broker: StorageBroker, plain: sqlite3.Connection) -> Row:
    sql = _QUERY.replace("notes", "plugin_bench_notes")
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(_ROUNDS):
        ours.append(await _timed(broker, "query", _QUERY, _QUERIES, 50))
        start = time.perf_counter()
        for _ in range(_QUERIES):
            cursor = plain.execute(sql, (50,))
            names = [column[0] for column in cursor.description]
            assert len([dict(zip(names, row, strict=True)) for row in cursor]) == 1
        peer.append((time.perf_counter() - start) / _QUERIES)
    # The median round: half of the rounds, each of hundreds of queries, were at least as quick.
    ours_us, peer_us = statistics.median(ours) * 1e6, statistics.median(peer) * 1e6
    return row(
        "storage query of one row through the broker, rewrite remembered",
        ours_us,
        "µs",
        against="sqlite3 execute on the same table, in the caller's thread, nothing checked",
        peer=peer_us,
        target=at_most(QUERY_TARGET_US, ours_us, "µs"),
        samples=ours,
    )


async def _exec(broker: StorageBroker, plain: sqlite3.Connection) -> Row:
    sql = _INSERT.replace("notes", "plugin_bench_notes")
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(_ROUNDS):
        ours.append(await _timed(broker, "exec", _INSERT, _INSERTS, "one more note"))
        start = time.perf_counter()
        for _ in range(_INSERTS):
            plain.execute(sql, ("one more note",))
        peer.append((time.perf_counter() - start) / _INSERTS)
    ours_us, peer_us = statistics.median(ours) * 1e6, statistics.median(peer) * 1e6
    return row(
        "storage exec of one insert through the broker, on disk when answered",
        ours_us,
        "µs",
        against="sqlite3 execute with the same durability, nothing checked",
        peer=peer_us,
        target=at_most(EXEC_TARGET_RATIO, ours_us / peer_us, "x"),
        samples=ours,
    )


async def _timed(broker: StorageBroker, method: str, sql: str, times: int, value: Any) -> float:
    start = time.perf_counter()
    for _ in range(times):
        await _ask(broker, method, sql, value)
    return (time.perf_counter() - start) / times


if __name__ == "__main__":
    show(run())
