"""`stamp_of`: what tells, without reading it, that a file is still what it was; `is_settled`.

The kernel's clock of file times ticks every few milliseconds, and on some virtual machines it
stands still for tens of them or goes back between processors. Two texts of one length that are
written in such a moment look the same from outside. So a stamp counts only if it was taken long
enough after the file's last change, as git does it with files it calls racily clean; until then
whoever wants to know reads the file again.
"""

from __future__ import annotations

import os
from time import time_ns
from typing import Final, TypeAlias

SETTLED_NS: Final = 100_000_000
"""Twice the longest that a clock was seen to stand still or to go back, ticks included."""
COARSE_SETTLED_NS: Final = 2_000_000_000
"""The same where a file system keeps whole seconds, or every other one."""

_SECOND_NS: Final = 1_000_000_000

Stamp: TypeAlias = tuple[int, int, int, int, int, int]
"""Mode, device, number and size of a file, and when its content and its inode changed last."""


def is_settled(changed_ns: int) -> bool:
    """Return whether all that is written from now on will have another time of change.

    `changed_ns` is the inode's time of change: the kernel sets it itself, whatever time a program
    gives the content. One that lies ahead is never believed.
    """
    whole_seconds = changed_ns % _SECOND_NS == 0
    return time_ns() - changed_ns > (COARSE_SETTLED_NS if whole_seconds else SETTLED_NS)


def stamp_of(info: os.stat_result) -> Stamp | None:
    """Return a file's stamp, or None while it may change without a new one.

    Ask before the content is read: what is written after that must have another stamp. A mapping
    into memory can write a file without any trace, so this is for changes, not for attacks.
    """
    if not is_settled(info.st_ctime_ns):
        return None
    return full_stamp(info)


def full_stamp(info: os.stat_result) -> Stamp:
    """Return a file's stamp, for whoever asks `is_settled` later; its last part is for that."""
    return (
        info.st_mode,
        info.st_dev,
        info.st_ino,
        info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
    )
