"""`open_cages`: what starts cages and what serves their network, for as long as a daemon lives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from kaged.audit import AuditEvent
from kaged.base import Clock, JsonValue, KagedError
from kaged.cage.configured import cage_settings
from kaged.cage.net import NetGate
from kaged.cage.orphan_processes import end_stale
from kaged.cage.spawn import Spawner
from kaged.config.settings import Settings


def open_cages(
    settings: Settings,
    post: Callable[[AuditEvent], None],
    clock: Clock,
    closing: AsyncExitStack,
) -> tuple[NetGate, Spawner]:
    """Prepare cages and their gate; end what a daemon before this one has left running.

    Raises:
        KagedError: `home_unusable`; the cages' folder cannot be written.
    """
    net_gate = NetGate(lambda event: post(AuditEvent(event.name, event.data())))
    closing.push_async_callback(net_gate.close)
    try:
        spawner = Spawner(
            cage_settings(settings),
            gate=net_gate,
            on_event=lambda name, data: post(AuditEvent(name, data)),
            clock=clock,
        )
    except OSError as error:
        raise KagedError(
            f"Cages cannot be prepared: {error.strerror or error}.",
            code="home_unusable",
            fix="Free some disk space, or make the home writable.",
        ) from error
    closing.push_async_callback(spawner.close)
    if orphans := end_stale():
        named: list[JsonValue] = [{"pid": one.pid, "name": one.name} for one in orphans]
        post(AuditEvent("cage.orphans_ended", {"processes": named}))
    spawner.recover_protected()
    return net_gate, spawner
