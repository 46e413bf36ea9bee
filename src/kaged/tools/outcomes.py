"""`ToolOutcome`: how a call ended, for those who keep and show it; `OutcomeSink`: who that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kaged.base import JsonObject, JsonValue
    from kaged.tools.context import ToolCallContext


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """One finished call. Exactly one of `result` and `error` counts; `error` is None on success.

    `params` are as the caller sent them. `tool_version` and `schema_hash` say which edition of the
    tool answered; both are empty when there is no such tool.
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


class OutcomeSink(Protocol):
    """Keeps or streams outcomes. Called on the loop, must not block; its faults harm no call."""

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take note of a finished call."""
        ...


__all__ = ["OutcomeSink", "ToolOutcome"]
