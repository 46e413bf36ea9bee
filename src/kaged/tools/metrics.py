"""`ToolMetrics`: how often each agent calls each tool, how that ends, and how long it takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.tools.outcomes import ToolOutcome

BUCKETS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000, 30_000, 120_000)
MAX_SERIES: Final = 2000  # tools times agents that are told apart; the rest is counted together
MAX_CODES: Final = 24  # error codes that are told apart in one series; plugins make up their own
MAX_CODE_CHARS: Final = 64
OTHER: Final = "(other)"
UNKNOWN: Final = "(unknown)"
"""Stands for every name that means no tool: what a model makes up must not become a label."""

Key = tuple[str, str, str]


@dataclass(slots=True)
class ToolSeries:
    """The calls of one tool by one agent of one project since the daemon started."""

    project_id: str
    agent: str
    tool: str
    calls: int = 0
    failed: int = 0
    denied: int = 0
    cancelled: int = 0
    sum_ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_MS) + 1))
    errors: dict[str, int] = field(default_factory=dict[str, int])

    def count(self, outcome: ToolOutcome) -> None:
        """Take in one call. A denied or cancelled call is not counted as failed."""
        self.calls += 1
        self.sum_ms += outcome.duration_ms
        self.buckets[bisect_left(BUCKETS_MS, outcome.duration_ms)] += 1
        error = outcome.error
        if error is None:
            return
        if outcome.cancelled:
            self.cancelled += 1
        elif outcome.denied:
            self.denied += 1
        else:
            self.failed += 1
        code = str(error.get("code"))[:MAX_CODE_CHARS]
        if code not in self.errors and len(self.errors) >= MAX_CODES:
            code = OTHER
        self.errors[code] = self.errors.get(code, 0) + 1

    def quantile_ms(self, part: float) -> float | None:
        """Estimate below which time that part of the calls stayed; None beyond the last bucket."""
        wanted = part * self.calls
        below = 0
        for top, count in zip(BUCKETS_MS, self.buckets, strict=False):
            below += count
            if below >= wanted:
                return float(top)
        return None

    def as_json(self) -> JsonObject:
        """Return the numbers; `error_rate` counts every call that had no result."""
        unhappy = self.failed + self.denied + self.cancelled
        buckets: JsonObject = {
            f"le_{top}": count
            for top, count in zip((*BUCKETS_MS, "inf"), self.buckets, strict=True)
        }
        errors: JsonObject = dict(sorted(self.errors.items()))
        return {
            "project_id": self.project_id,
            "agent": self.agent,
            "tool": self.tool,
            "calls": self.calls,
            "failed": self.failed,
            "denied": self.denied,
            "cancelled": self.cancelled,
            "error_rate": round(unhappy / self.calls, 4) if self.calls else 0.0,
            "errors": errors,
            "mean_ms": round(self.sum_ms / self.calls, 3) if self.calls else 0.0,
            "p50_ms": self.quantile_ms(0.5),
            "p95_ms": self.quantile_ms(0.95),
            "latency_ms": buckets,
            "latency_sum_ms": round(self.sum_ms, 3),
        }


class ToolMetrics:
    """Counts outcomes; an `OutcomeSink`. Bounded whatever agents and plugins do."""

    def __init__(self, clock: Clock) -> None:
        self._series: dict[Key, ToolSeries] = {}
        self._since = iso_utc(clock.now_ms())

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Count a finished call."""
        context = outcome.context
        # A tool that is not there has no hash; its name is whatever the caller made up.
        name = outcome.tool_name if outcome.schema_hash else UNKNOWN
        key = (context.project_id, context.caller, name)
        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (OTHER, OTHER, OTHER)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = ToolSeries(*key)
        series.count(outcome)

    def __iter__(self) -> Iterator[ToolSeries]:
        """Return all series, in the order of their first calls."""
        return iter(tuple(self._series.values()))

    def stats(
        self, *, project_id: str | None = None, agent: str | None = None, tool: str | None = None
    ) -> JsonObject:
        """Return the numbers of everything, or of one project, agent or tool; busiest first."""
        found = [
            one
            for one in self
            if project_id in {None, one.project_id}
            and agent in {None, one.agent}
            and tool in {None, one.tool}
        ]
        found.sort(key=lambda one: (-one.calls, one.tool, one.agent, one.project_id))
        series: list[JsonValue] = [one.as_json() for one in found]
        return {"since": self._since, "series": series}
