"""Signal masks as /proc shows them, without those that are nobody's to set."""

from __future__ import annotations

import signal

# 32 and 33 are the C library's own: programs cannot set them, and children of `make`, which its
# posix_spawn starts, have them ignored.
_NOBODYS = sum(1 << (number - 1) for number in (32, 33))
_PYTHONS = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))


def settable(mask: str) -> int:
    """Read a mask; what no program can set is left out."""
    return int(mask, 16) & ~_NOBODYS


def others(mask: str) -> int:
    """Read the mask of a Python program; what Python itself ignores is left out too."""
    return settable(mask) & ~_PYTHONS
