"""An audit sink in memory that can be told to fail, hang or lie about failing."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kaged.audit import Anchor, AuditRow, ChainHead, ChainMoved
from kaged.audit.chain import EMPTY


class MemorySink:
    """Keeps rows in a list. `fail_with` makes `append` raise; `hold` makes it wait."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []
        self.signed: Anchor | None = None
        self.batches: list[int] = []
        self.fail_with: Exception | None = None
        self.fail_times = -1  # how often `fail_with` is raised; below zero means always
        self.keep_then_fail = False
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def append(self, rows: Sequence[AuditRow], anchor: Anchor) -> None:
        self.entered.set()
        if not self.gate.wait(timeout=30):
            raise TimeoutError("the test never opened the gate")
        error = self._failure()
        if error is not None and not self.keep_then_fail:
            raise error
        if ChainHead(rows[0].seq - 1, rows[0].prev_hash) != self.head():
            raise ChainMoved("the chain is elsewhere")
        self.rows.extend(rows)
        self.signed = anchor
        self.batches.append(len(rows))
        if error is not None:
            raise error

    def head(self) -> ChainHead:
        return ChainHead(self.rows[-1].seq, self.rows[-1].hash) if self.rows else EMPTY

    def anchor(self) -> Anchor | None:
        return self.signed

    def hash_at(self, seq: int) -> str | None:
        return next((row.hash for row in self.rows if row.seq == seq), None)

    def names(self) -> list[str]:
        """Return the names of the kept rows, in order."""
        return [row.name for row in self.rows]

    def _failure(self) -> Exception | None:
        if self.fail_with is None or self.fail_times == 0:
            return None
        self.fail_times -= 1
        return self.fail_with


__all__ = ["MemorySink"]
