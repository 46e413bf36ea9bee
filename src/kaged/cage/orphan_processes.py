"""Processes that outlive whoever started them: found by a mark, and ended.

A cage takes everything in it along when it ends. A program without one can leave its group with
`setsid`; the mark in the environment that it was started with is what its children still share.
bwrap, whose environment its guest can read, waits at a pipe with the mark in its name instead,
until the cage is released and ends with the daemon by itself. When the daemon dies without a
goodbye, the setup helper ends whoever carries a mark of it; what outlived that helper, too, is
ended by the next daemon.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.limits.tree import start_time
from kaged.cage.setup_helper_main import CAGE_MARK, MARK, kill_marked, marks_of

_ROUNDS: Final = 20  # a process may fork while we look; each round ends what the one before missed
_PROC: Final = Path("/proc")
_SPACE_DIGITS: Final = 8
_GATES: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class OrphanProcess:
    """A process whose daemon is gone."""

    pid: int
    name: str
    mark: str

    def __str__(self) -> str:
        return f"{self.name} {self.pid}"


# ---- marks


def mark_value(account: str) -> str:
    """Return the mark's value for an account; two daemons never mean each other's processes."""
    return f"{daemon_mark()}:{account}"


def daemon_mark() -> str:
    """Return the mark of this very daemon. It tells a guest nothing about the host."""
    return _own_mark(os.getpid())


def gate_name() -> str:
    """Return a name for a pipe that cages wait at; who holds it open is this daemon's."""
    return f"{CAGE_MARK}{daemon_mark()}-{next(_GATES)}"


def remove_stale_gates(folder: Path) -> None:
    """Remove the names of pipes that a daemon made and did not live to remove."""
    for path in folder.glob(f"{CAGE_MARK}*"):
        mark = path.name.removeprefix(CAGE_MARK).partition("-")[0]
        if mark != daemon_mark() and mark not in _living():
            path.unlink(missing_ok=True)


@cache
def _own_mark(pid: int) -> str:
    return _mark(pid)


def _mark(pid: int) -> str:
    started = start_time(pid)
    return f"{_space()}{_digest(f'{_space()} {pid} {started}', 16)}"


@cache
def _space() -> str:
    """Return what all marks have in common that can be judged from here.

    Numbers and times of processes mean something only in the namespaces that they are from: what
    the daemon of a container started is none of the business of the host's daemon.
    """
    spaces = [(_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
    for name in ("pid", "time"):
        with contextlib.suppress(OSError):
            spaces.append(str((_PROC / "self/ns" / name).readlink()))
    return _digest(" ".join(spaces), _SPACE_DIGITS)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


# ---- what a daemon that is gone has left


def find_stale() -> list[OrphanProcess]:
    """Return the processes that carry the mark of a daemon that no longer runs. Ends nothing."""
    if not (_PROC / "1").exists():
        return []  # processes of others are hidden here, and a daemon may be among them
    spared = _ancestors()
    carriers = [
        (pid, mark)
        for pid in _pids()
        if pid not in spared
        for mark in marks_of(pid)
        if mark.startswith(_space())
    ]
    if not carriers:
        return []
    # Looked at last: whoever started since then is alive, and so is what it started.
    alive = _living()
    return [
        OrphanProcess(int(pid), _name(pid), mark) for pid, mark in carriers if mark not in alive
    ]


def end_stale() -> list[OrphanProcess]:
    """Kill what daemons that no longer run have left; returns it. Blocks a moment."""
    ended: list[OrphanProcess] = []
    for _ in range(_ROUNDS):
        found = find_stale()
        killed = [one for one in found if kill_marked(str(one.pid), one.mark)]
        if not killed:
            break
        ended += [one for one in killed if one not in ended]
    return ended


def _living() -> set[str]:
    return {_mark(int(pid)) for pid in _pids()}


def _pids() -> list[str]:
    return [entry.name for entry in os.scandir(_PROC) if entry.name.isdigit()]


def _ancestors() -> set[str]:
    """Return this process and those above it: a daemon may be started from a marked shell."""
    found: set[str] = set()
    pid = str(os.getpid())
    while pid not in {"", "0", *found}:
        found.add(pid)
        pid = _field(pid, "PPid:")
    return found


def _name(pid: str) -> str:
    return _field(pid, "Name:") or "process"


def _field(pid: str, field: str) -> str:
    with contextlib.suppress(OSError):
        text = (_PROC / pid / "status").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith(field):
                return line.removeprefix(field).strip()
    return ""


# ---- what a daemon's own programs have left


def end_orphans(account: str) -> int:
    """Kill every process that was started for this account; returns how many. Blocks a moment."""
    return end_orphans_of((account,))


def end_orphans_of(accounts: Collection[str]) -> int:
    """Kill every process that was started for one of these accounts, in one look at all processes.

    Gives how many; blocks a moment.
    """
    wanted = frozenset(f"{MARK}={mark_value(account)}".encode() for account in accounts)
    ended = 0
    for _ in range(_ROUNDS):
        found = _marked(wanted)
        if not found:
            break
        ended += sum(_kill(pid, wanted) for pid in found)
    return ended


def _marked(wanted: frozenset[bytes]) -> list[int]:
    return [
        int(entry.name)
        for entry in os.scandir(_PROC)
        if entry.name.isdigit() and _carries(entry.name, wanted)
    ]


def _carries(pid: str, wanted: frozenset[bytes]) -> bool:
    try:
        held = (_PROC / pid / "environ").read_bytes()
    except OSError:  # gone, or somebody else's
        return False
    return not wanted.isdisjoint(held.split(b"\0"))


def _kill(pid: int, wanted: frozenset[bytes]) -> bool:
    # The descriptor names one process for good; the mark is looked at again behind it, so that a
    # number that was given to another process meanwhile is not taken for ours.
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(str(pid), wanted):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    finally:
        os.close(pidfd)
