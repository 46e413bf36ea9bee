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
        raise StoreError(
            "the storage URL cannot be read", code="store_url_invalid", fix=_FIX
        ) from error
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(
            f"databases of kind {parsed.get_backend_name()!r} are not supported",
            code="store_url_invalid",
            fix=_FIX,
        )
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"} or parsed.query:
        raise StoreError(
            "the storage URL has a driver or options that are not supported",
            code="store_url_invalid",
            fix=_FIX,
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError("the storage URL names no file", code="store_url_invalid", fix=_FIX)
    path = Path(parsed.database)
    if not path.is_absolute():
        raise StoreError(
            f"the storage URL has a relative path: {path}", code="store_url_invalid", fix=_FIX
        )
    return SqliteBackend(path, backup_dir)
