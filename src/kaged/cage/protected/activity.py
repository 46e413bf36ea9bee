"""`read_activity`: what changes as soon as any process of a cage has run, however shortly.

A thread that sleeps now, and was switched to as often as at an earlier moment at which it slept,
has run nothing in between. So a file that changed in between was changed by somebody else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeAlias

MAX_THREADS: Final = 512
_RESTING: Final = frozenset("SDITtZ")  # waits, is stopped, or has ended
_COUNTS: Final = ("\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:")

Activity: TypeAlias = tuple[tuple[int, str, int, int], ...]
"""Every thread, with its start and how often it gave up and lost the processor."""


def read_activity(first_pid: int) -> Activity | None:
    """Return the activity of a process and all below it; None when one of them runs right now.

    Also None for more threads than are looked at, or when a process ends meanwhile. In a cage
    nothing leaves the first process: whoever loses its parent becomes a child of it.
    """
    found: list[tuple[int, str, int, int]] = []
    waiting = [first_pid]
    try:
        while waiting:
            pid = waiting.pop()
            for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names alone, often
                if len(found) >= MAX_THREADS:
                    return None
                folder = Path(f"/proc/{pid}/task/{name}")
                state, _, rest = _read(folder / "stat").rpartition(")")[2].strip().partition(" ")
                if state not in _RESTING:
                    return None
                status = _read(folder / "status")
                gave_up, lost = (int(status.partition(one)[2].split()[0]) for one in _COUNTS)
                found.append((int(name), rest.split()[18], gave_up, lost))
                waiting += map(int, _read(folder / "children").split())
    except (OSError, ValueError, IndexError):
        return None
    return tuple(sorted(found))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
