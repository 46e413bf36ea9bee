"""`build`: the daemon up to its listeners, put together in one function, top to bottom.

What starts after that is in `subsystems`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from kaged.app.daemon_core import DaemonCore
from kaged.app.startup import Startup
from kaged.audit import AuditEvent, AuditLog, AuditRow, HeadFile, VerifyReport, open_key
from kaged.base import Clock, Ids, Tasks
from kaged.base.instance_lock import InstanceLock
from kaged.base.lazy_dataclass import dataclass
from kaged.base.private_file import require_private
from kaged.config.locations import Locations
from kaged.config.settings import read_settings
from kaged.config.token_file import TokenFile, token_file
from kaged.diagnostics.daemon_state import DaemonState, port_moved
from kaged.diagnostics.gates import Gates, require_engines
from kaged.events import EventHub
from kaged.serve.http import EarlyApp, HttpServices
from kaged.serve.http.access import Credentials, access_rules
from kaged.serve.http.credentials import CookieSessions, LaunchTokens
from kaged.serve.http.invitations import Invitations
from kaged.serve.http.listener import HttpServer, addresses, bind_tcp, bind_tcp_near, bind_unix
from kaged.serve.http.metrics import Metrics
from kaged.serve.http.service_accounts import ServiceAccounts
from kaged.serve.http.services import ReadinessGate
from kaged.serve.signin.sign_in import SignIn
from kaged.store import Store
from kaged.store.invitation_rows import InvitationRows
from kaged.store.service_account_rows import ServiceAccountRows


@dataclass(frozen=True, slots=True)
class Daemon:
    """Everything that `build` made, in the few pieces that running it needs."""

    state: DaemonState
    server: HttpServer
    sockets: Sequence[socket.socket]
    services: HttpServices
    tasks: Tasks
    startup: Startup


async def build(  # noqa: PLR0915  # long and flat on purpose: one function, top to bottom
    places: Locations,
    environ: Mapping[str, str],
    *,
    clock: Clock,
    gates: Gates,
    closing: AsyncExitStack,
) -> Daemon:
    """Build a daemon that has to be served and opened. What must be undone is put on `closing`.

    Raises:
        KagedError: a gate is closed; `gates.rows` ends with the one that is.
    """
    ids = Ids(clock)
    with gates.passing("home", "Your data, in folders that only you can change.") as gate:
        places.ensure()
        settings = read_settings(places, environ)
        if settings.places is not places:
            settings.places.ensure()
        gate.found = str(settings.places.home)
    with gates.passing("lock", "One daemon per home, so that two never write at once.") as gate:
        _take_lock(settings.places.lock, clock, closing)
        stale = _take_lock(settings.home_lock, clock, closing)
        if stale is not None:
            gate.found = f"took over from pid {stale}, which did not end by itself"

    # What remembers: the store, and the audit trail in it.
    with gates.passing("store", "What the daemon remembers, checked before it is used.") as gate:
        store = await Store.open(
            settings.database_url, clock=clock, ids=ids, backup_dir=settings.places.backup_dir
        )
        closing.push_async_callback(store.close)
        gate.found = f"{store.status.place}, schema {store.status.schema_version}"
    with gates.passing("audit", "Every action on record, in a chain that shows changes.") as gate:
        head = await asyncio.to_thread(store.audit.head)
        key = open_key(settings.places.audit_key, chain_exists=head.seq > 0)
        head_file = HeadFile(settings.audit_head)
        audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=key, head_file=head_file)
        closing.push_async_callback(audit.close)
        if audit.health.chain_mismatch is not None:
            gate.warn(
                "the chain does not end where it should: rows were removed or replaced",
                "run `kaged audit verify` and compare with your backups",
            )
    if store.migrated is not None and store.migrated.from_version:
        await audit.record(
            AuditEvent(
                "store.migrated",
                {
                    "from_version": store.migrated.from_version,
                    "to_version": store.migrated.to_version,
                    "backup": str(store.migrated.backup) if store.migrated.backup else None,
                },
            )
        )

    with gates.passing("engines", "The search engines, without which no agent can work.") as gate:
        gate.found = require_engines()

    with gates.passing("vault", "The key of people's accounts, readable only by you.") as gate:
        # It is read when the services start, long after the first request.
        require_private(settings.vault_key, "vault_key_invalid")
        require_private(settings.vault_replacement_key, "vault_key_invalid")
        gate.found = str(settings.vault_key)

    # What lets people in.
    with gates.passing("token", "The token of the TCP listener, readable only by you.") as gate:
        token = TokenFile.open(token_file(settings.places), os.getuid())
        gate.found = str(token.path)
    service_accounts = ServiceAccounts(ServiceAccountRows(store), audit, clock, ids)
    await service_accounts.load()
    invitations = Invitations(InvitationRows(store), audit, clock, ids)
    await invitations.load()
    credentials = Credentials(token, CookieSessions(clock), service_accounts, invitations)
    with gates.passing("socket", "The Unix socket that the command line uses.") as gate:
        unix = bind_unix(settings.places.socket)
        closing.callback(_remove_socket, settings.places.socket)
        closing.callback(unix.close)
        gate.found = str(settings.places.socket)
    sockets = [unix]
    bind = settings.daemon.value.daemon.bind
    with gates.passing("tcp", "The TCP listener for browsers and programs.") as gate:
        gate.found = "off"
        if bind is not None:
            listen = bind_tcp if bind.chosen else bind_tcp_near
            tcp = listen(bind.host, bind.port, settings.daemon.value.auth.mode)
            if tcp is not None:
                closing.callback(tcp.close)
                sockets.append(tcp)
            gate.found = str(addresses(sockets)[1])
            moved = port_moved(bind, addresses(sockets)[1])
            if moved is not None:
                gate.warn(moved, 'Set [daemon] bind to an address of your own, or to "off".')
            if not bind.loopback:
                gate.warn(
                    f"{gate.found} can be reached from other machines, without encryption",
                    "bind to 127.0.0.1 and put a proxy with TLS in front",
                )

    # What happens inside, and who is told.
    hub = EventHub(clock, ids)
    closing.callback(hub.close)
    closing.callback(audit.subscribe(lambda row: _publish(hub, row)))
    tasks = Tasks("daemon")
    closing.push_async_callback(tasks.close)
    state = DaemonState(settings, clock, addresses(sockets)[1])

    readiness = ReadinessGate()

    async def verify() -> VerifyReport:
        return await store.audit.verify(key, head_file)

    sign_in = SignIn(
        settings=lambda: state.settings, store=store, clock=clock, base_url=lambda: state.url
    )
    tasks.start(sign_in.look(), "sign-in provider")
    services = HttpServices(
        clock=clock,
        ids=ids,
        rules=lambda: access_rules(state),
        credentials=credentials,
        service_accounts=service_accounts,
        invitations=invitations,
        sign_in=sign_in,
        launch=LaunchTokens(clock),
        hub=hub,
        metrics=_metrics(audit, hub),
        audit=audit,
        store=store,
        verify_audit=verify,
        export_audit=lambda wanted: store.audit.export(key, wanted),
        stopping=lambda: state.stopping,
        base_url=lambda: state.url,
        readiness=readiness,
    )
    core = DaemonCore(places, environ, state, store, audit, key, hub, tasks, gates, services)
    early_app = EarlyApp(services)
    startup = Startup(core, early_app)
    closing.push_async_callback(startup.close)
    return Daemon(state, HttpServer(early_app), sockets, services, tasks, startup)


def _take_lock(path: Path, clock: Clock, closing: AsyncExitStack) -> int | None:
    lock = InstanceLock.acquire(path, clock.now_ms())
    closing.callback(lock.release)
    return lock.stale.pid if lock.stale else None


def _remove_socket(path: Path) -> None:
    # The locks are still held, so whatever lies there is ours; a leftover would do no harm either.
    with contextlib.suppress(OSError):
        path.unlink()


def _publish(hub: EventHub, row: AuditRow) -> None:
    hub.publish("audit", row.name, row.to_json(), ts_ms=row.ts_ms)


def _metrics(audit: AuditLog, hub: EventHub) -> Metrics:
    metrics = Metrics()
    watched = {
        "kaged_audit_ok": ("1 while the audit trail can be written.", lambda: audit.health.ok),
        "kaged_audit_queued": ("Audit events not on disk yet.", lambda: audit.health.queued),
        "kaged_audit_head": ("Number of the newest audit row.", lambda: audit.health.head_seq),
        "kaged_event_clients": ("Clients of the event stream.", lambda: hub.subscribers),
        "kaged_events_latest": ("Number of the newest event.", lambda: hub.latest),
    }
    for name, (text, read) in watched.items():
        metrics.watch(name, text, read)
    return metrics
