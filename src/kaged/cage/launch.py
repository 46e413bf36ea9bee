"""`Launch`: from a prepared cage to a running command, in the one order that is safe.

bwrap waits at a pipe until limits, ceilings and the network gate are in place. A closed pipe means
"go" to it, so what it reads from is open for writing on its own side too: neither an error here nor
the death of the daemon can release a cage.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.base.open_files import restore_open_files
from kaged.cage.child import Child
from kaged.cage.errors import CageError, CageStartFailed, CageUnavailable, SpawnFailed
from kaged.cage.gate_port import NetGatePort, NetSessionPort
from kaged.cage.hints import resource_fix
from kaged.cage.launcher_main import FIRST_DESCRIPTOR, NOT_STARTED
from kaged.cage.launchers import Launchers, Order
from kaged.cage.limits import LimitGroup, LimitsBackend
from kaged.cage.prepare import PreparedCage
from kaged.cage.process import CageDetails, CageProcess
from kaged.cage.protected.copies import CoverLink
from kaged.cage.report import ExitReport
from kaged.cage.request import Pty, UncagedRequest
from kaged.cage.setup_helper import SetupDone, SetupHelper, SetupTask, inotify_ceilings
from kaged.cage.startgate import StartGate
from kaged.cage.stdio import StdioEnds

_UMASK = 0o022

OnEnd = Callable[[CageProcess, ExitReport], Awaitable[None]]

# What bwrap says when it gives up, and the row of `kaged doctor` that explains it.
_MESSAGES: tuple[tuple[str, str], ...] = (
    ("No permissions to create", "cage.namespaces"),
    ("Creating new namespace failed", "cage.namespaces"),
    ("setting up uid map", "cage.namespaces"),
    ("loopback:", "cage.loopback"),
    ("Failed to make / slave", "cage.mounts"),
    ("Can't mount proc", "cage.mounts"),
    ("seccomp", "cage.seccomp"),
    (f"{NOT_STARTED}: [Errno 2]", "cage.bwrap"),
)


@dataclass
class _Started:
    """What there is to take back."""

    stdio: StdioEnds | None = None
    child: Child | None = None
    group: LimitGroup | None = None
    init_pidfd: int = -1


class Launch:
    """One caged start. Use once."""

    def __init__(
        self,
        prepared: PreparedCage,
        serial: int,
        *,
        backend: LimitsBackend,
        setup_helper: SetupHelper,
        launchers: Launchers,
        gate: NetGatePort | None,
        gates: Path,
        on_end: OnEnd,
        discard: Callable[[LimitGroup], None],
        links: tuple[CoverLink, ...] = (),
    ) -> None:
        self._prepared = prepared
        self._serial = serial
        self._backend = backend
        self._setup_helper = setup_helper
        self._launchers = launchers
        self._gate = gate
        self._gates = gates
        self._on_end = on_end
        self._discard = discard
        self._links = links
        self._session: NetSessionPort | None = None

    async def start(self) -> CageProcess:
        """Start bwrap, put everything in place, release it.

        Raises:
            CageError: nothing runs and nothing is left over.
        """
        request = self._prepared.request
        started = _Started()
        with StartGate(self._gates) as gate:
            try:
                stdio = started.stdio = StdioEnds(request.stdio)
                group = started.group = self._make_group()
                self._setup_helper.start()  # from now on a dying daemon leaves no cage behind
                child = started.child = self._begin(gate, stdio, group)
                stdio.started()
                init_pid = await gate.init_pid(child)
                started.init_pidfd = os.pidfd_open(init_pid)
                _check_parent(init_pid, child.pid)
                done = await self._put_in_place(init_pid, child, group)
                await gate.release(child)
                group.settle()
                self._launchers.restock()
            except BaseException as error:
                raise await self._undone(error, gate, started) from error
        details = CageDetails(
            init_pid=init_pid,
            init_pidfd=started.init_pidfd,
            identity=self._prepared.identity,
            limits=request.policy.limits,
            group=group,
            backend=self._backend.name,
            ceilings=done.ceilings,
            covered=done.covered,
            weaknesses=self._prepared.weaknesses,
        )
        process = CageProcess(
            request.name,
            child,
            stdio,
            cage_id=self._prepared.command.cage_id,
            cage=details,
            on_end=self._ended,
        )
        if details.limits.walltime_sec:
            process.limit_walltime(details.limits.walltime_sec)
        return process

    async def _undone(
        self, error: BaseException, gate: StartGate, started: _Started
    ) -> BaseException:
        """Take everything back; return the error to raise."""
        said = ""
        async with AsyncExitStack() as undo:  # in reverse order, each step whatever another does
            if self._session is not None:
                undo.push_async_callback(self._session.close)
            if started.stdio is not None:
                undo.callback(started.stdio.close)
            if started.group is not None:
                undo.callback(self._discard, started.group)
            if started.init_pidfd >= 0:
                undo.callback(os.close, started.init_pidfd)
            # First the processes, then the pipes: an open gate would be the cage's release.
            if started.child is not None:
                undo.callback(self._setup_helper.forget, self._serial)
                if started.init_pidfd >= 0:  # after the release it is in a group of its own
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(started.init_pidfd, signal.SIGKILL)
                gate.kill(started.child)
            if started.stdio is not None:
                said = started.stdio.peek_errors()
        if isinstance(error, CageStartFailed):
            return _explained(error, said)
        if isinstance(error, OSError):
            return CageStartFailed(
                f"the cage could not be started: {error}", fix=resource_fix(error)
            )
        return error

    def _make_group(self) -> LimitGroup:
        limits = self._prepared.request.policy.limits
        try:
            return self._backend.create(f"cage-{self._serial}", limits)
        except OSError as error:
            raise CageUnavailable(
                f"the limits of the cage could not be made: {error}", row="cage.limits"
            ) from error

    def _begin(self, gate: StartGate, stdio: StdioEnds, group: LimitGroup) -> Child:
        identity = self._prepared.identity
        if identity.switches:
            stdio.give_to(identity.uid, identity.gid)
        child = self._from_stock(gate, stdio, group) or self._from_scratch(gate, stdio, group)
        gate.started()
        return child

    def _from_stock(self, gate: StartGate, stdio: StdioEnds, group: LimitGroup) -> Child | None:
        """Turn a launcher into bwrap; None when there is none in stock for this cage."""
        if not self._launchers.in_stock:
            return None
        prepared = self._prepared
        args, inherited = prepared.descriptors(gate.info_end, gate.block_end, FIRST_DESCRIPTOR)
        pid = self._launchers.start(
            Order(
                argv=prepared.command.argv(args),
                groups=group.enter_files,
                identity=prepared.identity,
                descriptors=(*stdio.theirs, *inherited),
            )
        )
        return None if pid is None else _watched(pid)

    def _from_scratch(self, gate: StartGate, stdio: StdioEnds, group: LimitGroup) -> Child:
        prepared = self._prepared
        args, inherited = prepared.descriptors(gate.info_end, gate.block_end)
        read_in, write_out, write_err = stdio.theirs
        try:
            process = subprocess.Popen(  # noqa: S603 - compiled and checked, no shell
                # Each of these becomes the next by exec; the process is bwrap from then on.
                [*group.enter_words, *self._as_user(), *prepared.command.argv(args)],
                stdin=read_in,
                stdout=write_out,
                stderr=write_err,
                env={},  # what bwrap is given here, the cage can read in /proc/1/environ
                cwd="/",
                umask=_UMASK,
                start_new_session=True,
                pass_fds=inherited,
            )
        except FileNotFoundError as error:
            raise CageUnavailable("bubblewrap is no longer installed", row="cage.bwrap") from error
        return _watched(process.pid, process)

    def _as_user(self) -> tuple[str, ...]:
        """Return the words that make bwrap another user's, when it must be.

        Python can switch users only with a full fork, which copies the daemon's page tables; this
        program execs bwrap in its own place and costs a fraction of that.
        """
        identity = self._prepared.identity
        if not identity.switches:
            return ()
        tool = self._prepared.setpriv
        if tool is None:
            raise CageUnavailable("setpriv is not installed", row="cage.identity")
        user, group = str(identity.uid), str(identity.gid)
        return (tool, "--reuid", user, "--regid", group, "--clear-groups", "--")

    async def _put_in_place(self, init_pid: int, child: Child, group: LimitGroup) -> SetupDone:
        """Set limits and ceilings and open the network, all at once, while bwrap mounts."""
        request, identity = self._prepared.request, self._prepared.identity
        setup_task = SetupTask(
            number=self._serial,
            pid=init_pid,
            uid=identity.uid,
            gid=identity.gid,
            groups=group.join_files,
            rlimits=self._prepared.rlimits,
            ceilings=inotify_ceilings(),
            links=self._links,
        )
        if self._gate is None or not (request.policy.net or request.services):
            return await self._setup_helper.run(setup_task)
        try:
            async with asyncio.TaskGroup() as tasks:
                # The setup helper first: until it knows the cage, nobody kills it for a dying
                # daemon.
                setup_task_done = tasks.create_task(self._setup_helper.run(setup_task))
                tasks.create_task(self._open_gate(self._gate, init_pid, child.pid))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return setup_task_done.result()

    async def _open_gate(self, gate: NetGatePort, init_pid: int, outer_pid: int) -> None:
        request = self._prepared.request
        self._session = await gate.attach(
            init_pid,
            self._prepared.net_plan,
            cage=request.name,
            cage_id=self._prepared.command.cage_id,
            services=request.services,
            parent_pid=outer_pid,
            bound=request.bound,
        )

    async def _ended(self, process: CageProcess, report: ExitReport) -> None:
        self._setup_helper.forget(self._serial)
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            await self._on_end(process, report)


def start_uncaged(request: UncagedRequest, cage_id: str, on_end: OnEnd) -> CageProcess:
    """Start a program with the daemon's own powers, in a process group of its own.

    Raises:
        SpawnFailed: it could not be started; the message has the system's reason.
    """
    controlling = isinstance(request.stdio, Pty) and request.stdio.keys
    session = shutil.which("setsid") if controlling else None
    command = request.command if session is None else (session, "--ctty", *request.command)
    try:
        stdio = StdioEnds(request.stdio)
    except OSError as error:
        raise _not_started(request, error) from error
    try:
        read_in, write_out, write_err = stdio.theirs
        process = subprocess.Popen(  # noqa: S603 - the caller's command, no shell, a stated reason
            command,
            stdin=read_in,
            stdout=write_out,
            stderr=write_err,
            env=dict(request.env),
            cwd=request.cwd,
            start_new_session=session is None,
        )
        restore_open_files(process.pid)
        child = Child(process.pid, process, lambda: _kill_group(process.pid))
    except OSError as error:
        stdio.close()
        raise _not_started(request, error) from error
    except BaseException:
        stdio.close()
        raise
    stdio.started()
    return CageProcess(request.name, child, stdio, cage_id=cage_id, cage=None, on_end=on_end)


def _not_started(request: UncagedRequest, error: OSError) -> SpawnFailed:
    return SpawnFailed(
        f"{request.command[0]} could not be started: {error.strerror or error}",
        fix=resource_fix(error),
        program=request.command[0],
        cwd=request.cwd,
    )


def _watched(pid: int, process: subprocess.Popen[bytes] | None = None) -> Child:
    try:
        return Child(pid, process)
    except SpawnFailed as error:
        raise CageStartFailed(error.message, fix=error.fix) from error


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _check_parent(pid: int, parent: int) -> None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        found = int(text.rpartition(")")[2].split()[1])
    except OSError:
        found = -1
    if found != parent:
        raise CageStartFailed("the process that bwrap named is not its child")


def _explained(error: CageStartFailed, said: str) -> CageError:
    """Turn bwrap's own words into an error that names the row of `kaged doctor`."""
    if not said:
        return error
    first = said.splitlines()[0]
    for words, row in _MESSAGES:
        if words in said:
            return CageUnavailable(f"the cage could not be set up: {first}", row=row, said=said)
    return CageStartFailed(f"the cage could not be set up: {first}", said=said)
