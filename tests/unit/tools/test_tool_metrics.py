"""Calls are counted per tool and agent, and nobody can make the numbers grow without end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kaged.base import JsonObject, ManualClock
from kaged.tools import ToolCallContext
from kaged.tools.metrics import MAX_CODES, MAX_SERIES, OTHER, UNKNOWN, ToolMetrics
from kaged.tools.outcomes import ToolOutcome


def outcome(
    tool: str = "file.read",
    caller: str = "primary",
    *,
    error: str | None = None,
    denied: bool = False,
    cancelled: bool = False,
    ms: float = 1.0,
    known: bool = True,
) -> ToolOutcome:
    context = ToolCallContext("ses", "run", caller, "prj", "/p", None, "req")
    said: JsonObject | None = None if error is None else {"code": error}
    return ToolOutcome(
        context,
        tool,
        None,
        {},
        None,
        said,
        denied,
        ms,
        "1" if known else "",
        "abc" if known else "",
        cancelled=cancelled,
    )


def listed(stats: JsonObject) -> list[Any]:
    assert stats["since"]
    return cast("list[Any]", stats["series"])


@pytest.fixture
def metrics(clock: ManualClock) -> ToolMetrics:
    return ToolMetrics(clock)


def test_each_tool_and_agent_is_counted_for_itself(metrics: ToolMetrics) -> None:
    for one in (
        outcome(ms=0.5),
        outcome(ms=3.0),
        outcome(error="file_not_found", ms=7.0),
        outcome(error="capability_denied", denied=True, ms=0.1),
        outcome(error="cancelled", cancelled=True, ms=200_000.0),
        outcome(caller="primary.subagents.coder"),
        outcome("shell.bash"),
    ):
        metrics.tool_called(one)
    stats = metrics.stats(tool="file.read", agent="primary")
    (series,) = listed(stats)
    assert (series["calls"], series["failed"], series["denied"], series["cancelled"]) == (
        5,
        1,
        1,
        1,
    )
    assert series["error_rate"] == 0.6
    assert series["errors"] == {"cancelled": 1, "capability_denied": 1, "file_not_found": 1}
    assert series["mean_ms"] == pytest.approx(40_002.12)
    assert (series["p50_ms"], series["p95_ms"]) == (5.0, None)
    assert {name: count for name, count in series["latency_ms"].items() if count} == {
        "le_1": 2,
        "le_5": 1,
        "le_10": 1,
        "le_inf": 1,
    }
    assert len(listed(metrics.stats())) == 3
    assert metrics.stats(project_id="other")["series"] == []


def test_the_busiest_come_first(metrics: ToolMetrics) -> None:
    for tool in ("file.read", "shell.bash", "shell.bash"):
        metrics.tool_called(outcome(tool))
    assert [one["tool"] for one in listed(metrics.stats())] == ["shell.bash", "file.read"]


def test_names_and_codes_that_others_make_up_are_counted_together(metrics: ToolMetrics) -> None:
    for number in range(50):
        metrics.tool_called(outcome(f"made.up{number}", error="tool_not_found", known=False))
        metrics.tool_called(outcome("plug.in", error=f"own_{number}"))
    by_tool = {one.tool: one for one in metrics}
    assert by_tool.keys() == {UNKNOWN, "plug.in"}
    assert by_tool[UNKNOWN].calls == 50
    assert len(by_tool["plug.in"].errors) == MAX_CODES + 1
    assert by_tool["plug.in"].errors[OTHER] == 50 - MAX_CODES


def test_there_is_an_end_to_the_series(metrics: ToolMetrics) -> None:
    for number in range(MAX_SERIES + 10):
        metrics.tool_called(outcome(f"p{number}.t"))
    series = list(metrics)
    assert len(series) == MAX_SERIES + 1
    assert (series[-1].tool, series[-1].calls) == (OTHER, 10)
    metrics.tool_called(outcome("p0.t"))
    assert series[0].calls == 2
