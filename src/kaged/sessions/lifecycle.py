"""`Lifecycle`: tells whoever listens what happens in sessions, in the order in which it does.

`tool.started` and `tool.finished` come from the dispatcher, for every caller; `entry.appended`,
`session.*` and `run.*` come from the book. The loop tells the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from kaged.base import JsonObject

EVENTS: Final = frozenset({
    "session.created", "session.forked", "session.switched", "session.switch_vetoed",
    "session.fork_vetoed", "session.titled", "session.deleted", "session.idle",
    "entry.appended", "run.started", "run.ended", "run.completed", "turn.started", "turn.ended",
    "text.delta", "thinking.delta", "tool.started", "tool.updated", "tool.finished",
    "model.selected", "model.retried", "compaction.started", "compaction.finished",
    "attention.required",
})  # fmt: skip
"""Every event that a listener may hear."""

_log = structlog.get_logger("kaged.sessions")


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Something that happened in a session."""

    name: str
    session_id: str
    project_id: str
    run_id: str | None = None
    data: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the event's data with what it is about."""
        about: JsonObject = {"session_id": self.session_id, "project_id": self.project_id}
        if self.run_id is not None:
            about["run_id"] = self.run_id
        return {**about, **self.data}


Listener = Callable[[SessionEvent], None]


class Lifecycle:
    """The listeners. Use it from the event loop only."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, at once; returns a function that ends this.

        It must not wait. One that raises is logged and harms nobody.
        """
        self._listeners.append(listener)

        def off() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return off

    def emit(self, event: SessionEvent) -> None:
        """Publish an event. Raises ValueError for one that is not declared."""
        if event.name not in EVENTS:
            raise ValueError(f"there is no event {event.name!r}")
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # Boundary: who listens never changes what happened.
            except Exception as error:  # noqa: BLE001 - see above
                _log.error("session.listener_failed", name=event.name, error=repr(error))
