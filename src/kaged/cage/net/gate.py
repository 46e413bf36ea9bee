"""`NetGate`: serves the network grants of all cages from outside them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kaged.base import Clock, SystemClock, Tasks
from kaged.base.open_files import open_files
from kaged.cage.gate_port import AskHost, BoundHosts
from kaged.cage.net.dial import Dialler, Resolver, SystemResolver
from kaged.cage.net.events import AuditSink, DenialLog, Recorder
from kaged.cage.net.forward import Forwarder
from kaged.cage.net.limits import GateLimits
from kaged.cage.net.namespace import NamespaceHelper, NamespaceUnavailable, SocketSpec
from kaged.cage.net.plan import LOOPBACK, ListenerKind, NetFacts, NetPlan, plan_network
from kaged.cage.net.probe import NetProbe, facts_from, probe_network
from kaged.cage.net.relay import RelayBuffer
from kaged.cage.net.session import ConnectionBudget, LoopbackService, NetSession
from kaged.kernel.net import NetTarget

_DESCRIPTORS_PER_CONNECTION = 2
_SHARE_OF_LIMIT = 4


class NetGate:
    """Opens and keeps the gates of cages.

    One per daemon. Attach each cage while it waits at its start; close the session it returns
    when the cage has ended, and the gate itself when the daemon ends.
    """

    def __init__(
        self,
        audit: AuditSink,
        *,
        facts: NetFacts | None = None,
        resolver: Resolver | None = None,
        clock: Clock | None = None,
        limits: GateLimits | None = None,
        helper: NamespaceHelper | None = None,
        on_failure: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        self._audit = audit
        self._resolver = resolver or SystemResolver()
        self._clock = clock or SystemClock()
        self._limits = limits or GateLimits()
        self._helper = helper or NamespaceHelper()
        self._on_failure = on_failure or _report
        limit = _connection_limit(self._limits.total_connections)
        self._budget = ConnectionBudget(limit)
        # No single cage may take what all of them share.
        share = min(self._limits.connections, max(1, limit // _SHARE_OF_LIMIT))
        self._limits = replace(self._limits, connections=share)
        self._buffer = RelayBuffer()
        self._sessions: set[NetSession] = set()
        self.facts = facts or NetFacts()

    async def start(self, bwrap: str | None = None) -> list[NetProbe]:
        """Start the helper and find out what this machine can do; returns the rows for `doctor`."""
        rows = await probe_network(self._helper, bwrap)
        self.facts = facts_from(rows)
        return rows

    def prepare(self, targets: tuple[NetTarget, ...], asks: bool = False) -> NetPlan:
        """Plan for these grants, before the cage is compiled. Starts nothing."""
        return plan_network(targets, self.facts, asks)

    async def attach(
        self,
        child_pid: int,
        plan: NetPlan,
        *,
        cage: str,
        cage_id: str,
        services: Sequence[LoopbackService] = (),
        parent_pid: int | None = None,
        audit: AuditSink | None = None,
        bound: BoundHosts | None = None,
        ask: AskHost | None = None,
    ) -> NetSession:
        """Open the gate in the network namespace of `child_pid`, while the cage still waits.

        `parent_pid`, when given, must be the parent of `child_pid`: it makes sure that the number
        was not given to another process in the meantime. With neither grants nor services nothing
        is opened. Connections to what `bound` binds are served by it instead of being relayed
        unseen; `ask` is asked about destinations that are not granted. An exception means that the
        cage must be killed, not released.

        Raises:
            NamespaceUnavailable: the namespace is gone, is the daemon's own, or cannot be used.
        """
        sink = audit or self._audit
        denials = DenialLog(
            sink,
            self._clock,
            limit=self._limits.denials_per_window,
            window_s=self._limits.denial_window_s,
        )
        recorder = Recorder(cage, cage_id, sink, self._clock, denials)
        dialler = Dialler(plan.targets, self._resolver, self._limits, ask)
        net_fd = _open_namespace(child_pid, parent_pid)
        session = NetSession(
            plan,
            net_fd=net_fd,
            helper=self._helper,
            forwarder=Forwarder(dialler, recorder, self._limits, self._buffer, bound),
            recorder=recorder,
            limits=self._limits,
            budget=self._budget,
            tasks=Tasks(f"net/{cage}", self._on_failure),
            on_close=self._sessions.discard,
        )
        self._sessions.add(session)
        try:
            await self._open_sockets(session, net_fd, plan, services)
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """Close every session and end the helper. Safe to call twice."""
        for session in tuple(self._sessions):
            await session.close()
        await self._helper.close()
        if isinstance(self._resolver, SystemResolver):
            self._resolver.close()

    async def _open_sockets(
        self, session: NetSession, net_fd: int, plan: NetPlan, services: Sequence[LoopbackService]
    ) -> None:
        specs = [
            SocketSpec(
                "udp" if one.kind is ListenerKind.DNS else "tcp",
                one.address,
                one.port,
                transparent=one.kind is ListenerKind.TRAP,
            )
            for one in plan.listeners
        ]
        specs += [SocketSpec("tcp", LOOPBACK, service.port) for service in services]
        if not specs:
            return
        opened = deque(await self._helper.open(net_fd, specs, plan.netlink))
        try:
            for listener in plan.listeners:
                session.serve(listener, opened.popleft())
            for service in services:
                session.serve_loopback(service, opened.popleft())
        except BaseException:
            for sock in opened:  # those that the session does not know yet
                sock.close()
            raise


def _open_namespace(child_pid: int, parent_pid: int | None) -> int:
    # The descriptor pins the namespace: from here on it does not matter what becomes of the pid.
    try:
        net_fd = os.open(f"/proc/{child_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_namespace(
            "the cage has ended or does not belong to this daemon", error
        ) from error
    try:
        if os.path.samestat(os.fstat(net_fd), Path("/proc/self/ns/net").stat()):
            raise _no_namespace("the process is not in a network of its own")
        if parent_pid is not None and _parent_of(child_pid) != parent_pid:
            raise _no_namespace("the process is not the cage that was started")
    except BaseException:
        os.close(net_fd)
        raise
    return net_fd


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return -1
    # The program's name stands in brackets and may hold anything, brackets included.
    return int(stat.rpartition(")")[2].split()[1])


def _no_namespace(why: str, error: OSError | None = None) -> NamespaceUnavailable:
    return NamespaceUnavailable(
        f"the cage's network could not be prepared: {why}",
        fix="start the cage again; run `kaged doctor` if that does not help",
        step="namespace",
        errno=error.errno if error is not None else 0,
    )


def _connection_limit(wanted: int) -> int:
    # A quarter of the daemon's descriptors go to connections of cages; `ProcessBudget` has half.
    return max(1, min(wanted, open_files() // 4 // _DESCRIPTORS_PER_CONNECTION))


def _report(name: str, error: BaseException) -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"{name} failed", "exception": error})
