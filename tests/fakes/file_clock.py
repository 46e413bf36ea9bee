"""`FileClock`: the file system's clock in a test's hands; it stands still until it is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from kaged.base import file_stamp

TICK_NS = 1_767_225_600_123_456_789


class FileClock:
    """Gives every file the time of one tick, as if all of them were written within it.

    `now_ns` is what the host takes for the present when it asks whether a file's time can be
    relied on.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = TICK_NS
        patch.setattr(file_stamp, "time_ns", lambda: self.now_ns)
        for name in ("stat", "lstat", "fstat"):
            patch.setattr(os, name, _in_one_tick(getattr(os, name)))

    def settle(self) -> None:
        """Let enough time pass for every file's time to be relied on."""
        self.now_ns += file_stamp.SETTLED_NS + 1


def _in_one_tick(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def told(*args: Any, **kwargs: Any) -> os.stat_result:
        found = real(*args, **kwargs)
        return os.stat_result(
            tuple(found), {"st_mtime_ns": TICK_NS, "st_ctime_ns": TICK_NS, "st_atime_ns": TICK_NS}
        )

    return told


def settle() -> None:
    """Wait until whatever was changed before is old enough for its time to be relied on."""
    ahead_ns = file_stamp.SETTLED_NS // 2  # another processor's clock may be
    changed_ns = time.time_ns() + ahead_ns
    while not file_stamp.is_settled(changed_ns):
        time.sleep(0.01)
