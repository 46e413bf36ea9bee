"""`Done`: what an operation gives its caller, and the audit event that tells of it."""

from __future__ import annotations

from dataclasses import field

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.tools import ToolInvocation


@dataclass(frozen=True, slots=True)
class Done:
    """A result, and what goes on record: an event's name and facts, None if nothing happened."""

    result: JsonObject
    event: str | None = None
    facts: JsonObject = field(default_factory=dict)

    def tell(self, call: ToolInvocation) -> JsonObject:
        """Put it on record as done by a call, and return the result."""
        if self.event is not None:
            call.emit(self.event, **self.facts)
        return self.result
