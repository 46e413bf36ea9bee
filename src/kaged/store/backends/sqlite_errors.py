"""What SQLite's result codes mean for a caller."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError

from kaged.store.errors import StoreConflict, StoreCorrupt, StoreError, StoreUnavailable

_CORRUPT_FIX = (
    "stop kaged, copy the database file and its -wal and -shm files somewhere safe, then restore a "
    "backup; see how-to/backup-and-recover"
)
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space; kaged goes on by itself"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "make the file and its folder writable"),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "make the folder exist and writable for the user that kaged runs as",
    ),
    sqlite3.SQLITE_PERM: ("access is denied", "make the file writable for kaged's user"),
    sqlite3.SQLITE_BUSY: (
        "another program holds it",
        "close other programs that have the database open for writing",
    ),
    sqlite3.SQLITE_LOCKED: ("a table is locked", "try again"),
    sqlite3.SQLITE_PROTOCOL: ("another program holds it", "close other programs that use it"),
    sqlite3.SQLITE_NOMEM: ("there is not enough memory", "give kaged more memory"),
    sqlite3.SQLITE_IOERR: (
        "reading or writing failed",
        "look at the disk: space, quota, cable, file system errors",
    ),
    sqlite3.SQLITE_NOLFS: ("the disk cannot hold large files", "use another file system"),
}


def translate(error: BaseException, place: str) -> StoreError | None:
    """Return what an error of SQLite or of the file system means; None for any other error.

    The message never repeats SQL or values: they may be what the reader must not see.
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, OSError):
        return unavailable(place, original.strerror or str(original))
    if not isinstance(original, sqlite3.Error):
        return None
    # Errors that Python's driver raises itself have no code.
    return _by_code(getattr(original, "sqlite_errorcode", 0) or 0, str(original), place)


def _by_code(code: int, text: str, place: str) -> StoreError:
    primary = code & 0xFF
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return corrupt(place, text)
    if primary in _UNAVAILABLE:
        reason, fix = _UNAVAILABLE[primary]
        return unavailable(place, reason, fix, code)
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return StoreConflict("a row in the database conflicts with it", sqlite_code=code)
    if primary == sqlite3.SQLITE_INTERRUPT:
        return StoreError(
            "the query took too long and was stopped",
            code="store_timeout",
            fix="ask for less at once",
        )
    return StoreError(f"the database refused a query: {text}", sqlite_code=code)


def unavailable(
    place: str, reason: str, fix: str = "look at the folder and the disk", code: int = 0
) -> StoreUnavailable:
    """Make the error for a database that cannot be used now."""
    return StoreUnavailable(
        f"the database {place} cannot be used: {reason}", fix=fix, place=place, sqlite_code=code
    )


def corrupt(place: str, reason: str) -> StoreCorrupt:
    """Make the error for a damaged database."""
    return StoreCorrupt(
        f"the database {place} is damaged: {reason}. Nothing was changed or deleted",
        fix=_CORRUPT_FIX,
        place=place,
    )
