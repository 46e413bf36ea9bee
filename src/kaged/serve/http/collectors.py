"""Collectors for Prometheus: what plugins (PH-BEY-04) and tool calls (AT-BEY-15) did and cost.

They read at the moment of asking and keep nothing themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kaged.base import JsonObject
from kaged.tools.metrics import BUCKETS_MS, ToolSeries

_MS_PER_S = 1000.0
_LABELS = ("project", "agent", "tool")
_TOPS = (*(f"{top / _MS_PER_S:g}" for top in BUCKETS_MS), "+Inf")
_COUNTERS = {
    "calls": ("kaged_plugin_calls", "Method and tool calls of a plugin."),
    "hooks": ("kaged_plugin_hooks", "Lifecycle hooks sent to a plugin."),
    "hook_timeouts": ("kaged_plugin_hook_timeouts", "Hooks that a plugin did not answer in time."),
    "restarts": ("kaged_plugin_restarts", "Restarts of a plugin after a failure."),
    "notifications_dropped": (
        "kaged_plugin_notifications_dropped",
        "Notifications of a plugin beyond the rate limit.",
    ),
}


class PluginCollector(Collector):
    """Turns the plugins' status into families at the moment of asking; keeps nothing itself."""

    def __init__(self, read: Callable[[], Sequence[JsonObject]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Return nothing ahead of time: collecting needs the plugin host, which may come later."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        plugins: list[Any] = list(self._read())
        state = GaugeMetricFamily(
            "kaged_plugin_state", "1 for the state a plugin is in.", labels=["plugin", "state"]
        )
        uptime = GaugeMetricFamily(
            "kaged_plugin_uptime_seconds", "How long a plugin's process runs.", labels=["plugin"]
        )
        for one in plugins:
            state.add_metric([one["name"], one["state"]], 1)
            if one.get("uptime_s") is not None:
                uptime.add_metric([one["name"]], one["uptime_s"])
        yield state
        yield uptime
        counted = [(one["name"], one["metrics"]) for one in plugins if "metrics" in one]
        for field, (name, words) in _COUNTERS.items():
            family = CounterMetricFamily(name, words, labels=["plugin"])
            for plugin, metrics in counted:
                family.add_metric([plugin], metrics[field])
            yield family
        yield _errors(counted)
        yield _latency(counted)


def _errors(counted: list[tuple[str, Any]]) -> Metric:
    family = CounterMetricFamily(
        "kaged_plugin_errors",
        "Failed calls of a plugin, by JSON-RPC error code.",
        labels=["plugin", "code"],
    )
    for plugin, metrics in counted:
        for code, count in metrics["errors"].items():
            family.add_metric([plugin, code], count)
    return family


def _latency(counted: list[tuple[str, Any]]) -> Metric:
    family = HistogramMetricFamily(
        "kaged_plugin_call_seconds", "Time that a plugin's calls took.", labels=["plugin"]
    )
    for plugin, metrics in counted:
        below = 0
        buckets: list[tuple[str, float]] = []
        for name, count in metrics["latency_ms"].items():
            top = name.removeprefix("le_")
            below += count
            le = "+Inf" if top == "inf" else f"{float(top) / _MS_PER_S:g}"
            buckets.append((le, below))
        family.add_metric([plugin], buckets, metrics["latency_sum_ms"] / _MS_PER_S)
    return family


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
