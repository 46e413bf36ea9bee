"""`Spending` and `RunEnd`: what a run took, and how it ended."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.models.turn import Usage
from kaged.store.agent_run_rows import AgentRunRecord, AgentRunStatus

MAX_DEPTH: Final = 8
"""How deep agents may call agents; a deeper tree is legal, but nobody gets that far."""


@dataclass(slots=True)
class Spending:
    """Counts what a run takes. Shared by the root agent and all agents that it sets to work."""

    steps: int = 0
    usage: Usage = field(default_factory=Usage)

    def add(self, usage: Usage) -> None:
        """Count one turn of a model."""
        self.steps += 1
        self.usage = self.usage.plus(usage)

    def add_unfinished(self, usage: Usage) -> None:
        """Count what answers took that were canceled or cut off."""
        self.usage = self.usage.plus(usage)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended. `interaction` is what it asked when it paused."""

    run_id: str
    session_id: str
    status: AgentRunStatus
    text: str = ""
    steps: int = 0
    usage: JsonObject = field(default_factory=dict)
    error: JsonObject | None = None
    interaction: JsonObject | None = None
    finish_reason: str = "stop"


def error_of(error: KagedError) -> JsonObject:
    """Write an error as runs keep it: with what a vendor said about it, where one did."""
    written: JsonObject = {"code": error.code, "message": str(error)}
    says = error.data.get("vendor_says")
    if isinstance(says, str) and says and says not in error.message:
        written["vendor_says"] = says
    return written


def end_of(record: AgentRunRecord) -> RunEnd:
    """Return what the store knows of a run's end; the text is in the transcript."""
    return RunEnd(
        record.id,
        record.session_id,
        record.status,
        steps=record.steps,
        usage=record.usage,
        error=record.error,
    )


def asks_tools(content: JsonObject) -> bool:
    """Return whether the content of a message asks for tool calls."""
    blocks = content.get("content")
    return isinstance(blocks, list) and any(
        isinstance(one, dict) and one.get("type") == "tool_call" for one in blocks
    )
