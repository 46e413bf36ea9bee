"""`ToolCollector`: what agents' tool calls came to and cost, for Prometheus (AT-BEY-15)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kaged.tools.metrics import BUCKETS_MS, ToolSeries

_LABELS = ("project", "agent", "tool")
_MS_PER_S = 1000.0
_TOPS = (*(f"{top / _MS_PER_S:g}" for top in BUCKETS_MS), "+Inf")


class ToolCollector(Collector):
    """Turns dispatch's counters into families at the moment of asking; keeps nothing itself."""

    def __init__(self, series: Iterable[ToolSeries]) -> None:
        self._series = series

    def describe(self) -> list[Metric]:
        """Return nothing ahead of time: which tools there are is known when they are called."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        calls = CounterMetricFamily(
            "kaged_tool_calls", "Tool calls, by how they ended.", labels=[*_LABELS, "outcome"]
        )
        errors = CounterMetricFamily(
            "kaged_tool_errors", "Tool calls without a result, by code.", labels=[*_LABELS, "code"]
        )
        seconds = HistogramMetricFamily(
            "kaged_tool_call_seconds", "Time that tool calls took.", labels=_LABELS
        )
        for one in self._series:
            labels = [one.project_id, one.agent, one.tool]
            ended = {"failed": one.failed, "denied": one.denied, "cancelled": one.cancelled}
            ended["ok"] = one.calls - sum(ended.values())
            for outcome, count in ended.items():
                calls.add_metric([*labels, outcome], count)
            for code, count in one.errors.items():
                errors.add_metric([*labels, code], count)
            below = [float(count) for count in accumulate(one.buckets)]
            seconds.add_metric(labels, list(zip(_TOPS, below, strict=True)), one.sum_ms / _MS_PER_S)
        yield calls
        yield errors
        yield seconds
