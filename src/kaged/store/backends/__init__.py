"""What differs between databases: `Backend`, found by URL with `backend_for`. SQLite for now."""

from __future__ import annotations

from kaged.store.backends.base import Backend
from kaged.store.backends.choose import backend_for, sqlite_url

__all__ = ["Backend", "backend_for", "sqlite_url"]
