"""Processes that left their process group: found by a mark in their environment, and ended.

A cage takes everything in it along when it ends. A program without one can leave its group with
`setsid`; the mark that it was started with is what its children still share. When the daemon dies
without a goodbye, the setup helper ends whoever carries a mark of it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

MARK: Final = "KAGED_STARTED_FOR"
"""The variable that an uncaged program is started with; its value says on whose account."""

_ROUNDS: Final = 20  # a process may fork while we look; each round ends what the one before missed
_PROC: Final = Path("/proc")


def mark_value(account: str) -> str:
    """Return the mark's value for an account; two daemons never mean each other's processes."""
    return f"{daemon_mark()}{account}"


def daemon_mark() -> str:
    """Return what every mark of this very daemon begins with."""
    return f"{os.getpid()}-{_run()}:"


@cache
def _run() -> str:
    return secrets.token_hex(4)  # a process number is used again one day


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
