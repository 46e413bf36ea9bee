"""What SQLite's result codes mean for a plugin's statement."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError

from kaged.store.backends.sqlite_errors import translate
from kaged.store.backends.sqlite_guard import VALUE_LIMIT_BYTES, QueryDenial
from kaged.store.guest import FaultKind, GuestFault

STATEMENT_ERRORS = (
    sqlite3.Error,
    sqlite3.Warning,
    UnicodeEncodeError,
    OverflowError,
    MemoryError,
)
_SYNTAX = ("syntax error", "unrecognized token", "incomplete input", "one statement at a time")
_TROUBLE = "the database cannot be used now"
_UNAVAILABLE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)


def fault_of(error: Exception, denial: QueryDenial | None) -> GuestFault:
    """Return what an error means; `denial` is what the guard said no to, if it did."""
    primary = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if primary == sqlite3.SQLITE_AUTH or (denial and primary == sqlite3.SQLITE_ERROR):
        what = f"{denial.action} {denial.name or ''}".strip() if denial else "unknown"
        return GuestFault(FaultKind.DENIED, what, name=denial.name if denial else None)
    if isinstance(error, MemoryError):  # also said of a program of too many steps
        return GuestFault(FaultKind.FAILED, "the statement is too large")
    if is_syntax(error):
        return GuestFault(FaultKind.SYNTAX, str(error))
    return _by_code(error, primary)


def _by_code(error: Exception, primary: int) -> GuestFault:
    if primary == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        text = "a value or a row is too large"
        return GuestFault(FaultKind.VALUE, text, limit=VALUE_LIMIT_BYTES)
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return GuestFault(FaultKind.CONSTRAINT, str(error))
    if primary == sqlite3.SQLITE_FULL:
        return GuestFault(FaultKind.DATABASE, "there is no space left")
    if primary == sqlite3.SQLITE_INTERRUPT:
        return GuestFault(FaultKind.FAILED, "the statement was stopped")
    if primary in _UNAVAILABLE:
        return GuestFault(FaultKind.UNAVAILABLE, _TROUBLE)
    # Without a code it was said by Python's driver, before SQLite saw anything.
    return GuestFault(FaultKind.FAILED if primary else FaultKind.VALUES, str(error))


def open_fault(error: Exception, place: str) -> GuestFault:
    """Return the error for a database that cannot be opened now; raise other errors as they are."""
    known = (
        translate(error, place) if isinstance(error, DBAPIError | sqlite3.Error | OSError) else None
    )
    if known is None:
        raise error
    return GuestFault(FaultKind.UNAVAILABLE, _TROUBLE)


def is_syntax(error: Exception) -> bool:
    """Return whether SQLite could not read a statement."""
    return any(mark in str(error) for mark in _SYNTAX)
