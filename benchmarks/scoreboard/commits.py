"""The floor of everything durable: one bare commit of SQLite on the same disk."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path


class BareCommits:
    """A database beside the one that is measured, which takes one small row at a time."""

    def __init__(self, path: Path) -> None:
        self._conn = sqlite3.connect(path, isolation_level=None)
        self._conn.execute("PRAGMA journal_mode=WAL")
        self._conn.execute("PRAGMA synchronous=FULL")
        self._conn.execute("CREATE TABLE peer (id INTEGER PRIMARY KEY, data TEXT)")

    def one_s(self) -> float:
        """Commit a row; return the seconds."""
        start = time.perf_counter()
        self._conn.execute("INSERT INTO peer (data) VALUES (?)", ("x" * 400,))
        return time.perf_counter() - start

    async def times(self, work: Callable[[int], Awaitable[object]], rounds: int) -> float:
        """Return how many bare commits `work` takes: both in turn, the quarter mark of each.

        Not the median: on a busy disk half of all commits may wait for others.
        """
        ours: list[float] = []
        bare: list[float] = []
        for number in range(rounds):
            start = time.perf_counter()
            await work(number)
            ours.append(time.perf_counter() - start)
            bare.append(self.one_s())
        return _quarter(ours) / _quarter(bare)

    def close(self) -> None:
        """End it."""
        self._conn.close()


def _quarter(times: list[float]) -> float:
    return statistics.quantiles(times, n=4)[0]


__all__ = ["BareCommits"]
