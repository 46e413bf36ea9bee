"""What differs between databases: `DatabaseBackend`, by URL with `backend_for`. SQLite for now."""

from __future__ import annotations

from kaged.store.backends.base import DatabaseBackend
from kaged.store.backends.choose import backend_for

__all__ = ["DatabaseBackend", "backend_for"]
