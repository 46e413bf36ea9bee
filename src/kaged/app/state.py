"""`DaemonState`: what changes while the daemon runs, and what is worked out from it on request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kaged import __version__
from kaged.app.settings import Settings
from kaged.audit import AuditLog
from kaged.base import Clock, iso_utc
from kaged.config.coresections import AuthMode, AuthSection
from kaged.serve.http.access import LOOPBACK_HOSTS, AccessRules
from kaged.serve.http.hub import EventHub
from kaged.serve.http.models import AuditHealthOut, StatusOut
from kaged.store import Store


@dataclass(slots=True)
class DaemonState:
    """The settings in force, the addresses in use, and whether the end has begun.

    `bound_settings` are those that the sockets were bound with: how safe it is to let everybody in
    depends on where the daemon really listens, not on what a newer file says.
    """

    settings: Settings
    clock: Clock
    url: str | None
    stopping: bool = False
    started_ms: int = field(init=False)
    _started_s: float = field(init=False)
    bound_settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()
        self._started_s = self.clock.monotonic_s()
        self.bound_settings = self.settings

    @property
    def uptime_s(self) -> float:
        """Seconds since the start, whatever the wall clock did meanwhile."""
        return self.clock.monotonic_s() - self._started_s

    @property
    def auth(self) -> AuthSection:
        """The access settings in force."""
        return self.settings.daemon.value.auth

    @property
    def mode(self) -> AuthMode:
        """The mode in force: insecure only while the bound address stays on this machine."""
        bind = self.bound_settings.daemon.value.daemon.bind
        if bind is not None and not bind.loopback:
            return AuthMode.SECURE
        return self.auth.mode


def access_rules(state: DaemonState) -> AccessRules:
    """Work out the rules of both doors from the settings in force."""
    auth = state.auth
    bind = state.bound_settings.daemon.value.daemon.bind
    own = set() if bind is None else {f"[{bind.host}]" if ":" in bind.host else bind.host}
    return AccessRules(
        mode=state.mode,
        owner_uid=os.getuid(),
        operator_id=auth.operator,
        hosts=LOOPBACK_HOSTS | own | {host.lower() for host in auth.allowed_hosts},
        origins=frozenset(origin.lower() for origin in auth.allowed_origins),
        trusted_proxies=auth.trusted_proxies,
    )


def status_of(
    state: DaemonState,
    store: Store,
    audit: AuditLog,
    hub: EventHub,
    projects: int,
    *,
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
        found.append("insecure mode: every program on this machine may use the TCP door")
    found += [f"{key} was changed and needs a restart" for key in needs_restart(state)]
    return found


def needs_restart(state: DaemonState) -> Sequence[str]:
    """Name the settings in the files that the running daemon cannot take up."""
    now, bound = state.settings.daemon.value, state.bound_settings.daemon.value
    changed = {
        "daemon.bind": now.daemon.bind != bound.daemon.bind,
        "daemon.home": now.daemon.home != bound.daemon.home,
        "storage.url": now.storage.url != bound.storage.url,
        "auth.mode": now.auth.mode is not state.mode,
    }
    return [key for key, differs in changed.items() if differs]


__all__ = ["DaemonState", "access_rules", "needs_restart", "status_of"]
