"""`status_of`: which daemon this is and its status, for `kaged status`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kaged import __version__
from kaged.audit import AuditLog
from kaged.base import iso_utc
from kaged.config.coresections import AuthMode
from kaged.diagnostics.daemon_state import DaemonState, needs_restart, port_moved
from kaged.events import EventHub
from kaged.serve.http.models import AuditHealthOut, StatusOut
from kaged.store import Store


def status_of(
    state: DaemonState,
    store: Store,
    audit: AuditLog,
    hub: EventHub,
    projects: int,
    *,
    limits: str,
    opening: Sequence[str] = (),
    more_warnings: Sequence[str] = (),
) -> StatusOut:
    """Describe the daemon as it is now."""
    health = audit.health
    return StatusOut(
        version=__version__,
        pid=os.getpid(),
        home=str(state.settings.places.home),
        socket=str(state.settings.places.socket),
        url=state.url,
        auth_mode=state.mode.value,
        started_at=iso_utc(state.started_ms),
        uptime_s=round(state.uptime_s, 3),
        epoch=hub.epoch,
        projects=projects,
        event_clients=hub.subscribers,
        audit=AuditHealthOut(
            ok=health.ok,
            last_error=health.last_error,
            queued=health.queued,
            written=health.written,
            head_seq=health.head_seq,
        ),
        limits=limits,
        opening=list(opening),
        warnings=[*_warnings(state, store, audit), *more_warnings],
    )


def _warnings(state: DaemonState, store: Store, audit: AuditLog) -> list[str]:
    health = audit.health
    found: list[str] = [str(problem) for problem in state.settings.warnings]
    if not health.ok:
        found.append(f"the audit trail cannot be written, changes are refused: {health.last_error}")
    elif store.status.last_error is not None:
        found.append(f"the last write to the database failed: {store.status.last_error}")
    if health.chain_mismatch is not None:
        found.append("the audit chain does not end where it should; run `kaged audit verify`")
    if health.head_file_error is not None:
        found.append(f"the head file of the audit chain fails: {health.head_file_error}")
    if state.settings.daemon.value.sandbox.no_sandbox:
        found.append("NO SANDBOX: agents run without cages and may do whatever you may")
    if state.mode is AuthMode.INSECURE:
        found.append("insecure mode: every program on this machine may use the TCP listener")
    moved = port_moved(state.bound_settings.daemon.value.daemon.bind, state.url)
    found += [] if moved is None else [moved]
    found += [f"{key} was changed and needs a restart" for key in needs_restart(state)]
    return found
