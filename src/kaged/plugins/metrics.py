"""`PluginMetrics`: what one plugin did and cost, for status pages and `/metrics` (PH-BEY-04)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import field

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

BUCKETS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0, 10_000.0)
_BUCKET_NAMES = (*(f"le_{top:g}" for top in BUCKETS_MS), "le_inf")


@dataclass(slots=True)
class PluginMetrics:
    """Counters that only grow; they survive restarts of the process, not of the daemon."""

    calls: int = 0
    errors: Counter[int] = field(default_factory=Counter[int])
    latency_ms: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_MS) + 1))
    latency_sum_ms: float = 0.0
    hooks: int = 0
    hook_timeouts: int = 0
    restarts: int = 0
    notifications_dropped: int = 0

    def called(self, duration_ms: float, error_code: int | None) -> None:
        """Count one method or tool call."""
        self.calls += 1
        self.latency_sum_ms += duration_ms
        self.latency_ms[bisect_left(BUCKETS_MS, duration_ms)] += 1
        if error_code is not None:
            self.errors[error_code] += 1

    def as_json(self) -> JsonObject:
        """Return the counters for a status answer."""
        buckets: JsonObject = dict(zip(_BUCKET_NAMES, self.latency_ms, strict=True))
        return {
            "calls": self.calls,
            "errors": {str(code): count for code, count in sorted(self.errors.items())},
            "latency_ms": buckets,
            "latency_sum_ms": round(self.latency_sum_ms, 3),
            "hooks": self.hooks,
            "hook_timeouts": self.hook_timeouts,
            "restarts": self.restarts,
            "notifications_dropped": self.notifications_dropped,
        }
