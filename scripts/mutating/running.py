"""`run`: tests in a copy, for a bounded time; afterwards no process of theirs is left."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutating.copies import Copy

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PASSED, FAILED = 0, 1
PATIENCE_S = 10.0
PAUSE_S = 0.02
BUSY = 5.0  # times a limit, at most, on a busy machine


@dataclass(frozen=True, slots=True)
class Done:
    """How a run of tests ended; without a code it was ended because it took too long."""

    code: int | None
    output: str
    seconds: float


def adopt_orphans() -> None:
    """Become the parent of what children leave behind, and end all of it when told to end."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_CHILD_SUBREAPER, 1), (PR_SET_PDEATHSIG, signal.SIGTERM)):
        if libc.prctl(option, int(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    signal.signal(signal.SIGTERM, _end)


def _end(_signal: int, _frame: object) -> None:
    end_children()
    os._exit(1)


def run(
    copy: Copy,
    nodes: Sequence[str],
    *,
    limit_s: float,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run tests of a copy and end everything that they started."""
    chosen = copy.root / "build" / "nodes.txt"
    chosen.write_text("".join(f"{node}\n" for node in nodes), encoding="utf-8")
    output = copy.root / "build" / "output.txt"
    words = [
        *(str(copy.python), "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
        *("-p", "mutating.noting", "--hypothesis-seed=0", *_unused(nodes)),
        *(*options, f"@{chosen}"),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAGED_")}
    began = time.monotonic()
    with output.open("wb") as file:
        child = subprocess.Popen(
            words,
            cwd=copy.root,
            env={**kept, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = _wait(child.pid, began + limit_s)
        finally:
            end_children()
            child.returncode = 0  # reaped here, with everything that it left behind
    text = output.read_text(encoding="utf-8", errors="replace")
    return Done(code, text, time.monotonic() - began)


def used_s() -> float:
    """Return how much processor time the tests that this process ran have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def crowd() -> float:
    """Return how many want each processor now: on a busy machine tests do less in a time."""
    return min(BUSY, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _unused(nodes: Sequence[str]) -> list[str]:
    """Return options against what is slow to load and not used by these tests."""
    return [] if any("openapi" in node for node in nodes) else ["-p", "no:schemathesis"]


def _wait(process: int, until_s: float) -> int | None:
    """Wait for a child, burying whatever else dies; None when the time is up first."""
    while time.monotonic() < until_s:
        found, status = os.waitpid(-1, os.WNOHANG)
        if found == process:
            return os.waitstatus_to_exitcode(status)
        if found == 0:
            time.sleep(PAUSE_S)
    return None


def end_children() -> None:
    """Kill every process below this one, and those that come to it when their parents die."""
    until = time.monotonic() + PATIENCE_S
    while (below := _below(os.getpid())) and time.monotonic() < until:
        for process in below:
            try:
                os.kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        _reap()
        time.sleep(PAUSE_S)


def _reap() -> None:
    while True:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return


def _below(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_below(child)]
    return found
