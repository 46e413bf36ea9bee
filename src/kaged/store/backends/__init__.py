"""The databases that the store can use: SQLite, chosen by the storage URL."""

from __future__ import annotations

from kaged.store.backends.choose import backend_for
from kaged.store.backends.sqlite import SqliteBackend

__all__ = ["SqliteBackend", "backend_for"]
