"""`snapshot`: a SQLite database that somebody else writes to, as it is at one moment.

A plugin keeps databases of its own in its folder. Copied as files while it writes, they are torn.
The file is a guest's: it is opened for reading only, so that no journal beside it, which may name
any file, is played back or deleted, and nothing in its schema is believed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Final
from urllib.parse import quote

HEADER: Final = b"SQLite format 3\x00"
SIDECARS: Final = ("-wal", "-shm", "-journal")
BUSY_S: Final = 5.0


def snapshot(path: Path, target: Path) -> bool:
    """Copy a database into a new file; returns whether it is one and could be copied so.

    What is none, and what SQLite cannot read now, is left to be copied as it is.
    """
    target.unlink(missing_ok=True)
    if not _is_database(path):
        return False
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as source,
            contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
        ):
            source.execute("PRAGMA trusted_schema = OFF")
            # All pages in one step: the writer waits, or with a write-ahead log does not notice.
            source.backup(copy)
            copy.execute("PRAGMA trusted_schema = OFF")
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
            sound = copy.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    except sqlite3.Error:
        sound = False
    if not sound:
        target.unlink(missing_ok=True)
    return sound


def _is_database(path: Path) -> bool:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123 - of a descriptor, which Path cannot
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            return regular and file.read(len(HEADER)) == HEADER
    return False
