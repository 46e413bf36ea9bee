"""The limit of open files: the daemon takes all it may have, and its children get what was set."""

from __future__ import annotations

import contextlib
import resource

UNLIMITED = 1 << 20
_before: list[int] = []  # what the limit was before we raised it


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; return what holds now.

    The soft limit of 1,024 is for programs that use `select`. A daemon with a hundred cages does
    not, and needs more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _before[:] = [soft]
    return open_files()


def open_files() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def restore_open_files(pid: int) -> None:
    """Set the soft limit of a child back to what it was before `raise_open_files`.

    Programs that use `select` break when their files get numbers above 1,023.
    """
    if _before:
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(_before[0], hard), hard))
