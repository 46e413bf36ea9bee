"""`Spawner`: the one way to start a process, in a cage or, with an explicit value, without one.

The walk of a caged start: open the grants → find the programs → compile → start bwrap, which
waits → limits, ceilings, network gate → release. An error anywhere kills bwrap before it is let go.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from kaged.base import Clock, JsonObject, KagedError, SystemClock, Tasks
from kaged.cage.arguments import check_command, check_environment, check_path
from kaged.cage.budget import ProcessBudget
from kaged.cage.errors import CageError, CageStartFailed, CageUnavailable, SpawnFailed, WrongThread
from kaged.cage.facts import BWRAP_MIN_VERSION, HostFacts, gather_facts
from kaged.cage.gate_port import NetGatePort
from kaged.cage.hints import resource_fix
from kaged.cage.launch import Launch, start_uncaged
from kaged.cage.launchers import Launchers
from kaged.cage.limits import (
    LimitGroup,
    LimitsBackend,
    ScopeRequest,
    choose_backend,
    weaker_limits,
)
from kaged.cage.named_pipes import NamedPipes, PipesFound
from kaged.cage.orphan_processes import MARK, remove_stale_gates
from kaged.cage.prepare import Preparer, granted_paths
from kaged.cage.process import CageProcess
from kaged.cage.protected.granted import (
    can_write,
    pin,
    protect_policy,
    show_read_only,
    writable_roots,
)
from kaged.cage.protected.guard import ProtectedGuard, Watch
from kaged.cage.report import ExitReport
from kaged.cage.request import CageKind, CageRequest, HostMount, SpawnRequest, UncagedRequest
from kaged.cage.settings import CageSettings
from kaged.cage.setup_helper import SetupHelper
from kaged.kernel.policy import FsGrant, FsMode
from kaged.kernel.protected_paths import ProtectedRules, rules_for

OnEvent = Callable[[str, JsonObject], None]

GIT = "git"
DESTROY_RETRY_S = 0.02
DESTROY_SLOWER = 1.1
DESTROY_MAX_S = 0.5
DESTROY_TRIES = 250
CLOSE_TRIES = 500


class Spawner:
    """Starts processes and knows every one that still runs.

    Lives on the event loop of a thread that lives as long as the daemon: bwrap ends with the
    *thread* that started it. `open` gathers facts and chooses back ends; `close` kills what runs.
    """

    def __init__(
        self,
        settings: CageSettings,
        *,
        gate: NetGatePort | None = None,
        on_event: OnEvent | None = None,
        clock: Clock | None = None,
        facts: HostFacts | None = None,
        backend: LimitsBackend | None = None,
        setup_helper: SetupHelper | None = None,
    ) -> None:
        self.settings = settings
        self.gate = gate
        self._on_event = on_event or _no_event
        self._clock = clock or SystemClock()
        self._thread = threading.get_ident()
        self.facts = facts or gather_facts(
            settings.cache_dir, bwrap=settings.bwrap, search_path=settings.search_path
        )
        self.backend = backend or choose_backend(
            allow_cgroups=settings.allow_cgroups,
            scope=ScopeRequest() if settings.ask_systemd else None,
        )
        self.swept = self.backend.sweep()
        remove_stale_gates(settings.cache_dir)
        self.setup_helper = setup_helper or SetupHelper()
        self.launchers = Launchers()
        self.budget = ProcessBudget()
        self._preparer = Preparer(settings, self.facts, self.backend, self._clock)
        self._tasks = Tasks("cage", _report_failure)
        self._protected = ProtectedGuard(
            self._protected_rules,
            settings.kept_in or settings.cache_dir,
            settings.cache_dir,
            self._on_event,
            self._clock,
            self._tasks,
        )
        self._pipes = NamedPipes()
        self._watches: dict[CageProcess, Watch] = {}
        self._running: set[CageProcess] = set()
        self._started_at: dict[CageProcess, float] = {}
        self._serial = 0
        self._starting = 0
        self._closed = False

    @property
    def running(self) -> frozenset[CageProcess]:
        """Every process of this spawner that has not ended."""
        return frozenset(self._running)

    async def spawn(self, request: SpawnRequest) -> CageProcess:
        """Start a process; when this returns, bwrap has set up the cage and runs the command.

        Raises:
            CageError: it was not started, and why; never is anything started uncaged instead.
        """
        self._check_thread()
        if self._closed:
            raise SpawnFailed("the spawner is closed")
        self.budget.require_room(len(self._running) + self._starting)
        self._serial += 1
        serial = self._serial
        self._starting += 1
        try:
            async with self.budget.starting:
                process = await self._start(request, serial)
            self._running.add(process)
            self._started_at[process] = self._clock.monotonic_s()
            self._tasks.start(process.watch(), f"watch {process.pid}")
        finally:
            self._starting -= 1
        if self._closed:  # closed while this one was on its way
            process.close()
            raise SpawnFailed("the spawner is closed")
        return process

    async def _start(self, request: SpawnRequest, serial: int) -> CageProcess:
        try:
            match request:
                case CageRequest():
                    return await self._caged(request, serial)
                case UncagedRequest():
                    return self._uncaged(request, serial)
                case _:
                    assert_never(request)
        except KagedError as error:
            self._refused(request, error)
            raise
        except OSError as error:
            kind = CageStartFailed if isinstance(request, CageRequest) else SpawnFailed
            failed = kind(f"{request.name} could not be started: {error}", fix=resource_fix(error))
            self._refused(request, failed)
            raise failed from error

    def recover_protected(self) -> None:
        """Put back protected paths that guests of a killed daemon had written. Blocks.

        Call it once, when no process of that daemon is left and before any other is started.
        """
        self._protected.recover()

    def operator_had(self, root: str, path: str, data: bytes) -> bool:
        """Return whether the operator had this content at a protected path below a root. Blocks.

        That is, it lay there when no guest could have written it.
        """
        return self._protected.operator_had(root, path, data)

    async def close(self) -> None:
        """Kill every process, wait for all of them, end the helper. Safe to call twice."""
        self._closed = True
        for _ in range(CLOSE_TRIES):
            for process in tuple(self._running):
                process.kill()
            await asyncio.gather(*(process.wait() for process in tuple(self._running)))
            if not self._starting and not len(self._tasks):
                break
            await asyncio.sleep(DESTROY_RETRY_S)
        await self._tasks.close()
        self.launchers.close()
        self.setup_helper.close()
        self.backend.close()

    def check_available(self) -> None:
        """Raise CageUnavailable unless the sandbox tool is there and new enough."""
        facts = self.facts
        if facts.bwrap is None:
            raise CageUnavailable(
                "bubblewrap is not installed, and nothing is started without a cage instead",
                row="cage.bwrap",
                fix="install bubblewrap (apt install bubblewrap)",
            )
        if facts.bwrap_version < BWRAP_MIN_VERSION or facts.bwrap_missing_options:
            wanted = ".".join(map(str, BWRAP_MIN_VERSION))
            raise CageUnavailable(f"bubblewrap is too old: {wanted} is needed", row="cage.bwrap")
        missing = weaker_limits(self.backend)
        if missing and self.settings.require_limits:
            raise CageUnavailable(
                f"{', '.join(missing)} cannot be limited for a cage as a whole, and "
                "[sandbox] require_limits asks for that",
                row="cage.limits",
                fix="see the row cage.limits of `kaged doctor`, or take require_limits out",
            )

    async def _caged(self, request: CageRequest, serial: int) -> CageProcess:
        self.check_available()
        if request.needs_gate and self.gate is None:
            raise CageUnavailable(
                "there is no network gate, and network was granted", row="cage.net"
            )
        agent = request.kind is not CageKind.PLUGIN
        policy = protect_policy(request.policy, self._protected_rules, patterns=agent)
        # A plugin has the programs that it was granted, and no other.
        git = agent or any(entry.binary.rpartition("/")[2] == GIT for entry in policy.exec)
        roots = writable_roots(policy, request.own_dirs)
        watch = await self._protected.enter(
            request.name, roots, git=git, writable=lambda path: can_write(policy, path)
        )
        try:
            copies = (HostMount(source, dest, FsMode.RW) for source, dest in watch.copies)
            shown = replace(
                request,
                policy=show_read_only(pin(policy, watch.pinned), watch.read_only),
                mounts=(*request.mounts, *copies),
            )
            granted = granted_paths(shown)
            pipes = await self._pipes.find(granted)
            try:
                return await self._launch(shown, serial, watch, granted, pipes)
            except CageError:
                # One that is gone cannot be covered; whoever took it away must not stop a start.
                now = await self._pipes.find(granted)
                if now.paths == pipes.paths:
                    raise
                self._serial += 1
                return await self._launch(shown, self._serial, watch, granted, now)
        except BaseException:
            self._protected.forget(watch)
            raise

    async def _launch(
        self,
        request: CageRequest,
        serial: int,
        watch: Watch,
        granted: tuple[FsGrant, ...],
        pipes: PipesFound,
    ) -> CageProcess:
        prepared = self._preparer.prepare(request, granted, pipes.paths, self.gate, serial)
        watch.mounted(prepared.granted_ids())
        launch = Launch(
            prepared,
            serial,
            backend=self.backend,
            setup_helper=self.setup_helper,
            launchers=self.launchers,
            gate=self.gate,
            gates=self.settings.cache_dir,
            on_end=self._ended,
            discard=self._discard,
            links=watch.links,
        )
        try:
            process = await launch.start()
        finally:
            prepared.close()
        watch.cage_id = process.cage_id
        watch.covered = process.cage is None or process.cage.covered
        watch.first_pid = process.cage.init_pid if process.cage is not None else 0
        self._watches[process] = watch
        weaknesses = prepared.weaknesses
        if not watch.findings.complete:
            weaknesses = (*weaknesses, "protected paths: the tree is too large to look at whole")
        if not watch.covered:
            weaknesses = (*weaknesses, "git's configuration is looked at after it was written")
        for tree in pipes.too_large:
            weaknesses = (*weaknesses, f"named pipes: {tree} could not be looked at whole")
        self._started(process, request, weaknesses)
        return process

    def _uncaged(self, request: UncagedRequest, serial: int) -> CageProcess:
        check_command(request.command)
        check_environment(request.env)
        check_path(request.cwd, "working directory")
        if any(name == MARK for name, _ in request.env):
            self.setup_helper.start()  # it ends whoever carries the mark, should the daemon die
        process = start_uncaged(request, f"uncaged-{serial}", self._ended)
        self._on_event(
            "cage.started",
            {
                "cage_id": process.cage_id,
                "pid": process.pid,
                "what": request.name,
                "caged": False,
                "argv": list(request.command),
                "weaknesses": [f"no cage: {request.uncaged.reason}"],
            },
        )
        return process

    def _protected_rules(self, root: str) -> ProtectedRules:
        settings = self.settings
        return rules_for(root, settings.allow_protected, refuse_reviewed=settings.refuse_reviewed)

    def _check_thread(self) -> None:
        main = threading.main_thread().ident
        current = threading.get_ident()
        if current != self._thread or current != main:
            raise WrongThread(
                "processes are started from the daemon's main thread only: a cage ends with the "
                "thread that started it"
            )

    def _started(
        self, process: CageProcess, request: CageRequest, weaknesses: tuple[str, ...]
    ) -> None:
        policy = request.policy
        self._on_event(
            "cage.started",
            {
                "cage_id": process.cage_id,
                "pid": process.pid,
                "what": request.name,
                "caged": True,
                "argv": list(request.command),
                "grants": [f"{grant.mode} {grant.path}" for grant in policy.fs],
                "seccomp": policy.seccomp.value,
                "network": [f"{one.host or '*'}:{one.port or '*'}" for one in policy.net],
                "limits": process.cage.backend if process.cage is not None else "",
                "identity": process.cage.identity.kind.value if process.cage is not None else "",
                "weaknesses": list(weaknesses),
            },
        )

    def _refused(self, request: SpawnRequest, error: KagedError) -> None:
        data: JsonObject = {
            "what": request.name,
            "reason": error.message,
            "code": error.code,
        }
        path = error.data.get("path")
        if isinstance(path, str):
            data["path"] = path
        self._on_event("cage.refused", data)

    def _discard(self, group: LimitGroup) -> None:
        if not group.destroy():
            self._tasks.start(_destroy(group), "remove limits")

    async def _ended(self, process: CageProcess, report: ExitReport) -> None:
        watch = self._watches.pop(process, None)
        if watch is not None:
            process.findings = await self._protected.leave(watch)
        self._running.discard(process)
        started = self._started_at.pop(process, self._clock.monotonic_s())
        if process.cage is not None:
            self._discard(process.cage.group)
        self._on_event(
            "cage.exited",
            {
                "cage_id": process.cage_id,
                "pid": process.pid,
                "what": process.name,
                "exit_code": report.exit_code,
                "signal": report.signal,
                "cause": report.cause.value,
                "duration_ms": round((self._clock.monotonic_s() - started) * 1000, 1),
            },
        )


async def _destroy(group: LimitGroup) -> None:
    # The kernel keeps a group busy for some milliseconds after its last process is gone; on a
    # machine that is short of processors that end itself takes its time.
    pause_s = DESTROY_RETRY_S
    for _ in range(DESTROY_TRIES):
        if group.destroy():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * DESTROY_SLOWER, DESTROY_MAX_S)


def _no_event(name: str, data: JsonObject) -> None:
    """Record nothing."""


def _report_failure(name: str, error: BaseException) -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"{name} failed", "exception": error})
