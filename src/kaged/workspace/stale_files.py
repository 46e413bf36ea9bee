"""`remove_stale_files`: remove the temporary files of a daemon that was killed while it wrote.

A file on its way to its name lies beside it under a name of the daemon's own (`staging`). Whoever
was told that a change is done finds it under its real name; what still has a temporary one was
told to nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Final

from kaged.workspace.staging import TEMP_PREFIX

MAX_DEPTH: Final = 100
MAX_FILES: Final = 2_000_000

_NAME: Final = re.compile(re.escape(TEMP_PREFIX) + r"(\d{1,10})-\d{1,12}\Z")


def remove_stale_files(root: str, before_s: float) -> int:
    """Remove what is below a folder under a temporary name since a moment; returns how many.

    `before_s` is when this daemon started, in seconds since the epoch: its own files are younger.
    Files of a process that still runs are another daemon's, and stay. Links are not followed.
    Blocks while it looks through the folder.
    """
    removed = seen = 0
    depth_of_root = root.rstrip("/").count("/")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the root itself is gone
        for place, folders, files, directory in os.fwalk(root):
            seen += len(files)
            if seen > MAX_FILES:
                break
            if place.count("/") - depth_of_root >= MAX_DEPTH:
                folders.clear()
            removed += sum(_remove(directory, one, before_s) for one in files if _NAME.match(one))
    return removed


def _remove(directory: int, name: str, before_s: float) -> bool:
    found = _NAME.match(name)
    assert found is not None
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        # The change time, unlike the time of the content, cannot be set by a program.
        if not stat.S_ISREG(info.st_mode) or info.st_ctime >= before_s or _runs(int(found[1])):
            return False
        os.unlink(name, dir_fd=directory)
    except OSError:  # gone meanwhile, or not ours to remove
        return False
    return True


def _runs(pid: int) -> bool:
    if pid == os.getpid():
        return False  # older than this process: it had the number before
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
