from __future__ import annotations

import signal

import pytest

from kaged.cage.limits import LimitStat
from kaged.cage.report import Cause, ProcessEnd, report_exit
from kaged.kernel.policy import CageLimits

LIMITS = CageLimits(walltime_sec=5, pids=20, file_size_mb=3)


def ending(code: int, **more: object) -> ProcessEnd:
    return ProcessEnd(code, caged=True, limits=LIMITS, **more)  # pyright: ignore[reportArgumentType] - keywords of one dataclass


@pytest.mark.parametrize(
    ("given", "cause", "detail", "number"),
    [
        (ending(0), Cause.EXIT, "exited with 0", None),
        (ending(3), Cause.EXIT, "exited with 3", None),
        (ending(255), Cause.EXIT, "exited with 255", None),
        (ending(139), Cause.SIGNAL, "killed by SIGSEGV", signal.SIGSEGV),
        (ending(128 + 35), Cause.SIGNAL, "killed by signal 35", 35),
        (ending(159), Cause.SYSCALL, "killed: a system call of another architecture", 31),
        (ending(153), Cause.FILE_SIZE, "killed: file size limit 3 MiB", signal.SIGXFSZ),
        (ending(152), Cause.CPU, "killed: processor time limit", signal.SIGXCPU),
        (
            ending(137, stat=LimitStat(oom_kills=1)),
            Cause.MEMORY,
            "killed: memory limit 512 MiB",
            signal.SIGKILL,
        ),
        (
            ending(-9, walltime_hit=True, stat=LimitStat(oom_kills=1)),
            Cause.WALLTIME,
            "killed: walltime limit 5 s",
            signal.SIGKILL,
        ),
        (
            ending(-9, killed_by_daemon=True, stat=LimitStat(oom_kills=1)),
            Cause.STOPPED,
            "killed: stopped by the daemon",
            signal.SIGKILL,
        ),
        (ending(137), Cause.SIGNAL, "killed by SIGKILL", signal.SIGKILL),
        (
            ending(1, stat=LimitStat(forks_refused=4)),
            Cause.EXIT,
            "exited with 1 (process limit 20 was reached)",
            None,
        ),
    ],
)
def test_the_cause_of_an_end_is_told_in_words(
    given: ProcessEnd, cause: Cause, detail: str, number: int | None
) -> None:
    report = report_exit(given)
    assert (report.cause, report.detail, report.signal) == (cause, detail, number)


def test_a_code_above_128_is_a_signal_only_where_bwrap_passes_it_on() -> None:
    report = report_exit(ProcessEnd(137, caged=False))
    assert (report.exit_code, report.signal, report.cause) == (137, None, Cause.EXIT)
    assert report_exit(ProcessEnd(-9, caged=False)).exit_code == 137


def test_clean_means_code_0_by_itself() -> None:
    assert report_exit(ending(0)).clean
    assert not report_exit(ending(1)).clean
    assert not report_exit(ending(-15)).clean


def test_refused_forks_of_a_program_that_coped_are_counted_not_blamed() -> None:
    report = report_exit(ending(0, stat=LimitStat(forks_refused=4)))
    assert (report.forks_refused, report.detail) == (4, "exited with 0")
