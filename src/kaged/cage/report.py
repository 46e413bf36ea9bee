"""`ExitReport`: how a process ended, and why, in words that a person can act on."""

from __future__ import annotations

import signal
from dataclasses import field
from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.limits.backend import LimitStat
from kaged.kernel.policy import CageLimits

_SIGNAL_BASE = 128
_HIGHEST_SIGNAL = 64


class Cause(StrEnum):
    """What ended a process."""

    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "oom"
    WALLTIME = "timeout"
    CPU = "cpu"
    FILE_SIZE = "file_size"
    SYSCALL = "syscall"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a process ended.

    `exit_code` follows the shell: the program's own, or 128 plus the signal. In a cage a program
    that exits with such a code by itself looks the same. `forks_refused` counts refusals by the
    process limit, which seldom kill by themselves.
    """

    exit_code: int
    signal: int | None
    cause: Cause
    detail: str
    forks_refused: int = 0

    @property
    def clean(self) -> bool:
        """Whether the program ended by itself with code 0."""
        return self.cause is Cause.EXIT and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """What is known when a process has been reaped."""

    returncode: int  # negative for a signal
    caged: bool
    stat: LimitStat = field(default_factory=LimitStat)
    limits: CageLimits | None = None
    walltime_hit: bool = False
    killed_by_daemon: bool = False


def report_exit(ending: ProcessEnd) -> ExitReport:
    """Work out why a process ended."""
    code, number = _code_and_signal(ending)
    refused = ending.stat.forks_refused or 0
    cause, detail = _cause(ending, code, number)
    if refused and ending.limits is not None and code != 0:
        detail += f" (process limit {ending.limits.pids} was reached)"
    return ExitReport(code, number, cause, detail, refused)


def _code_and_signal(ending: ProcessEnd) -> tuple[int, int | None]:
    code = ending.returncode
    if code < 0:
        return _SIGNAL_BASE - code, -code
    if ending.caged and _SIGNAL_BASE < code <= _SIGNAL_BASE + _HIGHEST_SIGNAL:
        return code, code - _SIGNAL_BASE  # bwrap passes a signal on this way
    return code, None


def _cause(ending: ProcessEnd, code: int, number: int | None) -> tuple[Cause, str]:
    limits = ending.limits or CageLimits()
    if number is None:
        return Cause.EXIT, f"exited with {code}"
    if number == signal.SIGKILL:
        return _who_killed(ending, limits)
    by_limit: dict[int, tuple[Cause, str]] = {
        signal.SIGXFSZ: (Cause.FILE_SIZE, f"killed: file size limit {limits.file_size_mb} MiB"),
        signal.SIGXCPU: (Cause.CPU, "killed: processor time limit"),
        signal.SIGSYS: (Cause.SYSCALL, "killed: a system call of another architecture"),
    }
    return by_limit.get(number, (Cause.SIGNAL, f"killed by {_name(number)}"))


def _who_killed(ending: ProcessEnd, limits: CageLimits) -> tuple[Cause, str]:
    if ending.walltime_hit:
        return Cause.WALLTIME, f"killed: walltime limit {limits.walltime_sec} s"
    if ending.killed_by_daemon:
        return Cause.STOPPED, "killed: stopped by the daemon"
    if ending.stat.oom_kills:
        return Cause.MEMORY, f"killed: memory limit {limits.memory_mb} MiB"
    return Cause.SIGNAL, "killed by SIGKILL"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
