"""`OutcomeStream`: how tool calls end, on the event stream."""

from __future__ import annotations

from typing import Final

from kaged.events import EventHub
from kaged.tools.outcomes import ToolOutcome

TOPIC: Final = "tool"


class OutcomeStream:
    """Tells everybody who reads the event stream how tool calls end."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Publish an outcome; one that is too large is published without its result."""
        context = outcome.context
        self._hub.publish(
            TOPIC,
            "tool.outcome",
            {
                "request_id": context.request_id,
                "project_id": context.project_id,
                "session_id": context.session_id,
                "run_id": context.run_id,
                "caller": context.caller,
                "tool_name": outcome.tool_name,
                "alias": outcome.alias,
                "tool_version": outcome.tool_version,
                "schema_hash": outcome.schema_hash,
                "duration_ms": outcome.duration_ms,
                "success": outcome.error is None,
                "denied": outcome.denied,
                "error": outcome.error,
                "result": outcome.result,
            },
        )
