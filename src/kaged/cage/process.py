"""`CageProcess`: a running child, caged or not, from its start to its report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.child import Child
from kaged.cage.identity import Identity
from kaged.cage.limits import LimitGroup, LimitStat
from kaged.cage.protected.findings import Findings
from kaged.cage.report import ExitReport, ProcessEnd, report_exit
from kaged.cage.stdio import StdioEnds, connect_reader, connect_writer
from kaged.cage.waiting import readable
from kaged.kernel.policy import CageLimits

TERM_GRACE_S = 2.0  # PH-SUP-24
OUTER_GRACE_S = 1.0
INIT_GRACE_S = 10.0

P = TypeVar("P", bound=asyncio.BaseProtocol)


class StopStep(StrEnum):
    """Which step of the stop ladder ended a process."""

    ALREADY = "already"
    ASKED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went."""

    step: StopStep
    exit: ExitReport


@dataclass(frozen=True, slots=True)
class CageDetails:
    """What is particular to a caged process."""

    init_pid: int
    init_pidfd: int
    identity: Identity
    limits: CageLimits
    group: LimitGroup
    backend: str
    ceilings: bool
    covered: bool
    weaknesses: tuple[str, ...] = ()


class CageProcess:
    """A child process. Made by `Spawner.spawn`; `wait` for it, `stop` it, then `close` it.

    `pid` is the daemon's direct child: bwrap for a caged process, the program itself for another.
    `stdin_fd`, `stdout_fd` and `stderr_fd` are the daemon's ends, for a protocol of the caller's
    own; `take_fd` or `connect_*` hand them over.
    """

    def __init__(
        self,
        name: str,
        child: Child,
        stdio: StdioEnds,
        *,
        cage_id: str,
        cage: CageDetails | None,
        on_end: Callable[[CageProcess, ExitReport], Awaitable[None]],
    ) -> None:
        self.name = name
        self.cage_id = cage_id
        self.pid = child.pid
        self.cage = cage
        self._child = child
        self._stdio = stdio
        self._on_end = on_end
        self.findings = Findings()
        """What it wrote of protected paths; known when it has ended."""
        self._walltime: asyncio.TimerHandle | None = None
        self._walltime_hit = False
        self._outer_kill: asyncio.TimerHandle | None = None
        self._killed = False
        self._report: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()

    # ---- what it is

    @property
    def caged(self) -> bool:
        """Whether it runs in a cage."""
        return self.cage is not None

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._child.running

    @property
    def report(self) -> ExitReport | None:
        """How it ended, or None while it runs."""
        return self._report.result() if self._report.done() else None

    @property
    def command_pid(self) -> int | None:
        """The host's number of the program itself; None when it is gone or not there yet."""
        if not self.running:
            return None
        return self.pid if self.cage is None else _command_of(self.cage.init_pid)

    def stat(self) -> LimitStat:
        """Read what a caged process uses now; empty where the back end cannot know."""
        return self.cage.group.stat() if self.cage is not None else LimitStat()

    # ---- talking to it

    @property
    def stdin_fd(self) -> int | None:
        """The writing end of its standard input, while nobody has taken it."""
        return self._stdio.fd("stdin")

    @property
    def stdout_fd(self) -> int | None:
        """The reading end of its standard output, while nobody has taken it."""
        return self._stdio.fd("stdout")

    @property
    def stderr_fd(self) -> int | None:
        """The reading end of its standard error, while nobody has taken it."""
        return self._stdio.fd("stderr")

    def take_fd(self, name: str) -> int:
        """Hand over `stdin`, `stdout` or `stderr`; from now on the caller closes it."""
        return self._stdio.take(name)

    async def connect_stdin(self, factory: Callable[[], P]) -> tuple[asyncio.WriteTransport, P]:
        """Attach a protocol to its standard input; the transport owns the descriptor."""
        return await connect_writer(self._stdio.take("stdin"), factory)

    async def connect_stdout(self, factory: Callable[[], P]) -> tuple[asyncio.ReadTransport, P]:
        """Attach a protocol to its standard output; the transport owns the descriptor."""
        return await connect_reader(self._stdio.take("stdout"), factory)

    async def connect_stderr(self, factory: Callable[[], P]) -> tuple[asyncio.ReadTransport, P]:
        """Attach a protocol to its standard error; the transport owns the descriptor."""
        return await connect_reader(self._stdio.take("stderr"), factory)

    def resize(self, rows: int, cols: int) -> None:
        """Set its pseudo-terminal's new size and signal the programs on it."""
        self._stdio.resize(rows, cols)

    # ---- ending it

    async def wait(self) -> ExitReport:
        """Wait until it has ended and everything of its cage is closed."""
        return await asyncio.shield(self._report)

    def signal(self, number: int) -> bool:
        """Send a signal to the program's own process group; False when there is none to send to.

        In a cage it goes to the command inside: a signal for bwrap itself would end the cage with
        SIGKILL before the program saw anything (PH-SUP-42).
        """
        pid = self.command_pid
        if pid is None:
            return False
        try:
            os.killpg(os.getpgid(pid), number)
        except ProcessLookupError:
            return False
        return True

    def terminate(self) -> bool:
        """Ask the program and its group to end, with SIGTERM."""
        return self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything it started, with SIGKILL. Nothing happens when it is gone."""
        if not self.running:
            return
        self._killed = True
        self.kill_quietly()

    def kill_quietly(self) -> None:
        """Do what `kill` does, without counting as the daemon's decision."""
        if self.cage is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._child.signal(signal.SIGKILL)
            return
        # The cage's first process takes all others with it; bwrap then reaps it and ends by
        # itself. Killing bwrap as well would leave that to whoever is the host's init.
        try:
            signal.pidfd_send_signal(self.cage.init_pidfd, signal.SIGKILL)
        except OSError:
            self._child.signal(signal.SIGKILL)
        if self._outer_kill is None:
            loop = asyncio.get_running_loop()
            self._outer_kill = loop.call_later(OUTER_GRACE_S, self._child.signal, signal.SIGKILL)

    async def stop(
        self,
        shutdown_timeout_s: float = 0.0,
        ask: Callable[[], Awaitable[None]] | None = None,
        term_grace_s: float = TERM_GRACE_S,
    ) -> StopReport:
        """Stop it in steps: ask, wait; SIGTERM, wait; SIGKILL, reap.

        `ask` is the protocol's own goodbye (a `shutdown` message). An error in it does not keep
        the next step from being taken.
        """
        if self._report.done():
            return StopReport(StopStep.ALREADY, self._report.result())
        if ask is not None and await self._ended_after(ask, shutdown_timeout_s):
            return StopReport(StopStep.ASKED, await self.wait())
        if self.terminate() and await self._ends_within(term_grace_s):
            return StopReport(StopStep.TERMINATED, await self.wait())
        ended_by_itself = not self.running
        self.kill()
        report = await self.wait()
        return StopReport(StopStep.TERMINATED if ended_by_itself else StopStep.KILLED, report)

    def limit_walltime(self, seconds: int) -> None:
        """Kill it when it still runs after so many seconds."""
        loop = asyncio.get_running_loop()
        self._walltime = loop.call_later(seconds, self._out_of_time)

    def close(self) -> None:
        """Close the daemon's ends that nobody took, and kill it if it still runs."""
        self.kill()
        self._stdio.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await self.wait()
        self._stdio.close()

    # ---- called by the spawner

    async def watch(self) -> None:
        """Wait for the end, work out the report, clean up. Run once, by the spawner."""
        returncode = await self._child.exited
        for timer in (self._walltime, self._outer_kill):
            if timer is not None:
                timer.cancel()
        await self._cage_is_empty()
        report = report_exit(
            ProcessEnd(
                returncode=returncode,
                caged=self.caged,
                stat=self.stat(),
                limits=self.cage.limits if self.cage is not None else None,
                walltime_hit=self._walltime_hit,
                killed_by_daemon=self._killed,
            )
        )
        try:
            await self._on_end(self, report)
        finally:
            if self.cage is not None:
                os.close(self.cage.init_pidfd)
            if not self._report.done():
                self._report.set_result(report)

    # ---- own

    def _out_of_time(self) -> None:
        if self.running:
            self._walltime_hit = True
            self.kill_quietly()

    async def _cage_is_empty(self) -> None:
        """Wait until the cage's first process is gone, which is after all others in it."""
        if self.cage is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INIT_GRACE_S):
                await readable(self.cage.init_pidfd)

    async def _ended_after(self, ask: Callable[[], Awaitable[None]], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                # The goodbye may fail in any way the peer's protocol can fail; the ladder goes on.
                with contextlib.suppress(Exception):
                    await ask()
                await self.wait()
        except TimeoutError:
            return False
        return True

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return False
        return True


def _command_of(init_pid: int) -> int | None:
    """Find the command in a cage: the second process of its pid namespace."""
    try:
        text = Path(f"/proc/{init_pid}/task/{init_pid}/children").read_text(encoding="ascii")
    except OSError:
        return None
    for word in text.split():
        try:
            status = Path("/proc", word, "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == "2":
                return int(word)
    return None
