"""What happens in sessions, on the event stream and in the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.sessions.navigation import OPERATOR

if TYPE_CHECKING:
    from kaged.audit import AuditLog
    from kaged.base import JsonValue
    from kaged.events import EventHub
    from kaged.sessions.lifecycle import SessionEvent

TOPIC: Final = "session"

_log = structlog.get_logger("kaged.sessions")


def publish_session(hub: EventHub, event: SessionEvent) -> None:
    """Publish what happens in a session."""
    # A topic of each session's own: `session` hears them all, `session:<id>` that one.
    hub.publish(f"{TOPIC}:{event.session_id}", event.name, event.as_json())


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


def redacted_params(audit: AuditLog, params: JsonValue) -> JsonValue:
    """Take secrets out of params exactly as the audit trail does with the same call."""
    return audit.redactor.redact(AuditEvent("tool.called", _about(params)))["params"]


def _about(params: JsonValue) -> dict[str, JsonValue]:
    fields = ("tool_name", "caller", "session_id", "run_id", "request_id")
    return {**dict.fromkeys(fields, ""), "params": params}
