"""`build_sessions`: the session service of the daemon, and its events on the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.sessions.navigation import OPERATOR, Navigation
from kaged.sessions.session_service import SessionService
from kaged.sessions.session_services import SessionServices
from kaged.sessions.tool_log import ToolCallLog
from kaged.sessions.transcript import Transcript

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from kaged.audit import AuditLog
    from kaged.base import Clock, Ids, JsonValue
    from kaged.events import EventHub
    from kaged.store import Store

TOPIC: Final = "session"

_log = structlog.get_logger("kaged.sessions")


def build_sessions(
    store: Store,
    audit: AuditLog,
    hub: EventHub,
    *,
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
) -> SessionServices:
    """Build the book and publish what happens in sessions on the event stream."""
    lifecycle = Lifecycle()
    lifecycle.subscribe(lambda event: _publish(hub, event))
    lifecycle.subscribe(lambda event: _record(audit, event))
    transcript = Transcript(store, lifecycle, clock=clock, ids=ids)
    service = SessionService(store, transcript, lifecycle)
    calls = ToolCallLog(
        store.tool_calls,
        lifecycle,
        lambda params: _redacted(audit, params),
        clock=clock,
    )
    closing.push_async_callback(calls.close)
    return SessionServices(
        store=store,
        lifecycle=lifecycle,
        transcript=transcript,
        service=service,
        navigation=Navigation(store, transcript, service, lifecycle),
        calls=calls,
    )


def _publish(hub: EventHub, event: SessionEvent) -> None:
    # A topic of each session's own: `session` hears them all, `session:<id>` that one.
    hub.publish(f"{TOPIC}:{event.session_id}", event.name, event.as_json())


def _record(audit: AuditLog, event: SessionEvent) -> None:
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


def _redacted(audit: AuditLog, params: JsonValue) -> JsonValue:
    """Take secrets out of params exactly as the audit trail does with the same call."""
    return audit.redactor.redact(AuditEvent("tool.called", _about(params)))["params"]


def _about(params: JsonValue) -> dict[str, JsonValue]:
    fields = ("tool_name", "caller", "session_id", "run_id", "request_id")
    return {**dict.fromkeys(fields, ""), "params": params}
