"""`build_sessions`: the session service of the daemon, and its events on the stream."""

from __future__ import annotations

from contextlib import AsyncExitStack

from kaged.audit import AuditLog
from kaged.base import Clock, Ids
from kaged.events import EventHub
from kaged.projects.readiness import Ready
from kaged.sessions.label_entries import open_labels
from kaged.sessions.lifecycle import (
    Lifecycle,
    publish_session,
    record_switch,
    redacted_params,
    share_results,
)
from kaged.sessions.navigation import Navigation
from kaged.sessions.session_service import SessionService
from kaged.sessions.session_services import SessionServices
from kaged.sessions.tool_log import ToolCallLog
from kaged.sessions.transcript import Transcript
from kaged.store import Store
from kaged.toolbox.project import PersonUploads
from kaged.tools.kept_results import KeptResults


def build_sessions(
    store: Store,
    audit: AuditLog,
    hub: EventHub,
    *,
    clock: Clock,
    ids: Ids,
    ready: Ready,
    closing: AsyncExitStack,
    uploads: PersonUploads,
    kept: KeptResults,
) -> SessionServices:
    """Build the sessions and publish what happens in sessions on the event stream."""
    lifecycle = Lifecycle()
    lifecycle.subscribe(lambda event: publish_session(hub, event))
    lifecycle.subscribe(lambda event: record_switch(audit, event))
    transcript = Transcript(store, lifecycle, clock=clock, ids=ids)
    lifecycle.subscribe(lambda event: share_results(kept, event))
    service = SessionService(store, transcript, lifecycle, (uploads.forget, kept.forget))
    calls = ToolCallLog(
        store.tool_calls,
        lifecycle,
        lambda params: redacted_params(audit, params),
        clock=clock,
    )
    closing.push_async_callback(calls.close)
    return SessionServices(
        store=store,
        lifecycle=lifecycle,
        transcript=transcript,
        service=service,
        navigation=Navigation(store, transcript, service, lifecycle, ready=ready),
        calls=calls,
        labels=open_labels(store, transcript, audit),
    )
