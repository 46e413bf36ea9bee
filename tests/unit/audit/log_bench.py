"""A log on a sink in memory, for the tests of the log."""

from __future__ import annotations

from fakes.audit_sink import MemorySink
from kaged.audit import (
    AuditEvent,
    AuditLimits,
    AuditLog,
    ChainKey,
    HeadFile,
    verify_chain,
)
from kaged.base import Ids, ManualClock

KEY = ChainKey(b"k" * 32)
# No test waits for a retry; those that want one ask for it.
LIMITS = AuditLimits(retry_first_s=60, retry_max_s=60, record_timeout_s=20, post_timeout_s=0.01)
BOUND_S = 20


class Bench:
    """A log on a sink in memory, with the clock in hand."""

    def __init__(self, clock: ManualClock, ids: Ids) -> None:
        self.clock = clock
        self.ids = ids
        self.sink = MemorySink()
        self.opened: list[AuditLog] = []

    async def open(
        self,
        limits: AuditLimits = LIMITS,
        head_file: HeadFile | None = None,
        key: ChainKey = KEY,
    ) -> AuditLog:
        log = await AuditLog.open(
            self.sink, clock=self.clock, ids=self.ids, key=key, head_file=head_file, limits=limits
        )
        self.opened.append(log)
        return log

    def sound(self) -> bool:
        return verify_chain(self.sink.rows, KEY, {"table": self.sink.signed}).ok


def edited(path: str = "a.py") -> AuditEvent:
    return AuditEvent("file.edited", {"path": path, "replacements": 1, "caller": "primary"})


def enabled(name: str = "memory") -> AuditEvent:
    return AuditEvent("plugin.enabled", {"name": name})
