"""`ToolStart` and `ToolOutcome`: that a call began and how it ended; who keeps and shows that."""

from __future__ import annotations

from typing import Protocol

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.tools.context import ToolCallContext


@dataclass(frozen=True, slots=True, eq=False)
class ToolStart:
    """A call that begins. The object itself names the call: its outcome refers to it."""

    context: ToolCallContext
    tool_name: str
    params: JsonValue


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """One finished call. Exactly one of `result` and `error` counts; `error` is None on success.

    `params` are as the caller sent them. `tool_version` and `schema_hash` say which edition of the
    tool answered; both are empty when there is no such tool. `start` is None when nobody listens
    for beginnings.
    """

    context: ToolCallContext
    tool_name: str
    alias: str | None
    params: JsonValue
    result: JsonValue
    error: JsonObject | None
    denied: bool
    duration_ms: float
    tool_version: str
    schema_hash: str
    start: ToolStart | None = None
    cancelled: bool = False


class OutcomeSink(Protocol):
    """Keeps or streams outcomes. Called on the loop, must not block; its faults harm no call."""

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take note of a finished call."""
        ...


class StartSink(Protocol):
    """Hears of calls when they begin, under the same rules as an `OutcomeSink`."""

    def tool_started(self, start: ToolStart) -> None:
        """Take note of a call before any gate has looked at it."""
        ...
