"""`backend_for`: which kind of database a URL means."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kaged.store.backends.sqlite import SqliteBackend
from kaged.store.errors import StoreError

_FIX = "write [storage] url as sqlite:////absolute/path/kaged.db, or leave it out"


def backend_for(url: str, backup_dir: Path) -> SqliteBackend:
    """Return the backend for a storage URL.

    Raises:
        StoreError: `store_url_invalid`; no database can be opened by this URL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise _invalid("the storage URL cannot be read") from error
    if parsed.get_backend_name() != "sqlite":
        raise _invalid(f"databases of kind {parsed.get_backend_name()!r} are not supported")
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"} or parsed.query:
        raise _invalid("the storage URL has a driver or options that are not supported")
    if not parsed.database or parsed.database == ":memory:":
        raise _invalid("the storage URL names no file")
    path = Path(parsed.database)
    if not path.is_absolute():
        raise _invalid(f"the storage URL has a relative path: {path}")
    return SqliteBackend(path, backup_dir)


def _invalid(message: str) -> StoreError:
    return StoreError(message, code="store_url_invalid", fix=_FIX)
