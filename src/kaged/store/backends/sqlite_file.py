"""The database as a file: its header, its modes, its copies, its birth."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from sqlalchemy import Connection

from kaged.store.backends.sqlite_errors import corrupt, unavailable

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100
SIDE_FILES = ("", "-wal", "-shm")
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def driver_of(conn: Connection) -> sqlite3.Connection:
    """Return SQLite's own connection behind one of SQLAlchemy's."""
    driver = conn.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def examine_file(path: Path) -> None:
    """Look at the file's header and length before SQLite does.

    Catches what SQLite would take for something else: it reads an empty file as a new database,
    and we never leave an empty one behind.

    Raises:
        StoreCorrupt: the file is empty, cut short or no database.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise corrupt(str(path), "the file is empty")
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise corrupt(str(path), "it is not a database file")
    page_size = int.from_bytes(header[16:18])
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32])
    count_is_valid = header[24:28] == header[92:96]
    # Pages that the file lacks may still be in the write-ahead log; then SQLite has to say.
    wal = path.with_name(f"{path.name}-wal")
    has_wal = wal.exists() and wal.stat().st_size > 0
    if count_is_valid and not has_wal and size < pages * page_size:
        raise corrupt(str(path), f"it is cut short: {size} bytes instead of {pages * page_size}")


def reading_options(path: Path) -> str:
    """Return how a reader may open the file: on a read-only medium, without any lock.

    SQLite keeps the readers of a write-ahead log apart with a file beside the database, which it
    cannot make there.

    Raises:
        StoreUnavailable: part of the database is still in a log that cannot be read there.
    """
    if not path.parent.is_dir() or not os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return "mode=ro"
    wal, index = (path.with_name(f"{path.name}{suffix}") for suffix in SIDE_FILES[1:])
    if not (wal.exists() and wal.stat().st_size > 0):
        return "mode=ro&immutable=1"
    if index.exists():
        return "mode=ro"
    raise unavailable(
        str(path),
        "it is on a read-only medium and its newest part is still in the -wal file",
        "copy the database together with its -wal file to a writable folder",
    )


def restrict_modes(path: Path) -> None:
    """Let nobody but the owner read the database and the files beside it."""
    for suffix in SIDE_FILES:
        file = path.with_name(f"{path.name}{suffix}")
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def place_new_file(source: Path, target: Path) -> None:
    """Rename a finished file to its name, durably, and never over another one.

    Raises:
        FileExistsError: the target exists.
    """
    _sync(source, os.O_RDONLY)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: the check and the move are two steps there.
        if os.path.lexists(target):
            raise FileExistsError(target) from error
        source.rename(target)
    else:
        source.unlink()
    _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy a database that may be in use into a new file of mode 0600, and check the copy."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "a file with this name exists", str(target))
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        copy = sqlite3.connect(partial, isolation_level=None)
        try:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()  # one file, nothing beside it
            answer = copy.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            copy.close()
        if answer != ("ok",):
            raise corrupt(str(partial), f"the copy is not sound: {answer[0]}")
        place_new_file(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
