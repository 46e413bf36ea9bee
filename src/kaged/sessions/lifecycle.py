"""`Lifecycle`: tells whoever listens what happens in sessions, in the order in which it does.

`tool.started` and `tool.finished` come from the dispatcher, for every caller; `entry.appended`,
`session.*` and `run.*` come from the book. The loop tells the rest. The event stream and the audit
trail listen, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Final

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.events import EventHub
from kaged.events.hub import SESSION_TOPIC
from kaged.sessions.run_options import OPERATOR
from kaged.tools.kept_results import KeptResults

EVENTS: Final = frozenset({
    "session.created", "session.forked", "session.switched", "session.switch_vetoed",
    "session.fork_vetoed", "session.titled", "session.deleted", "session.idle",
    "entry.appended", "run.started", "run.ended", "run.completed", "turn.started", "turn.ended",
    "text.delta", "thinking.delta", "tool.started", "tool.updated", "tool.finished",
    "model.selected", "model.retried", "compaction.started", "compaction.finished",
    "attention.required",
})  # fmt: skip
"""Every event that a listener may hear."""

_log = get_logger("kaged.sessions")


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


def publish_session(hub: EventHub, event: SessionEvent) -> None:
    """Publish what happens in a session."""
    hub.publish(f"{SESSION_TOPIC}:{event.session_id}", event.name, event.as_json())


def record_switch(audit: AuditLog, event: SessionEvent) -> None:
    """Put a move of the operator on record when it is made, which may be long after the asking.

    Moves of scripts are on record with the script's name.
    """
    if event.name != "session.switched" or event.data["asked_by"] != OPERATOR:
        return
    moved = AuditEvent(
        "kaged.session.switched",
        {"session_id": event.data["to"], "from": event.data["from"]},
        project_id=event.project_id,
        caller=OPERATOR,
    )
    try:
        audit.post(moved)
    except AuditUnavailable as error:
        _log.error("audit.not_recorded", name=moved.name, error=error.message)


def share_results(kept: KeptResults, event: SessionEvent) -> None:
    """Let a fork read the results that its window speaks of."""
    if event.name == "session.forked":
        kept.share(str(event.data["from"]), event.session_id, str(event.data["at"] or ""))


def redacted_params(audit: AuditLog, params: JsonValue) -> JsonValue:
    """Take secrets out of params exactly as the audit trail does with the same call."""
    return audit.redactor.redact(AuditEvent("tool.called", _about(params)))["params"]


def _about(params: JsonValue) -> dict[str, JsonValue]:
    fields = ("tool_name", "caller", "session_id", "run_id", "request_id")
    return {**dict.fromkeys(fields, ""), "params": params}
