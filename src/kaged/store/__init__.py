"""What outlives the process: `Store`, its repositories, `Page`, and the errors with a way out.

Store.open → backend (check, migrate) → Database → Writer (one thread, group commit)
→ Readers (a few threads, cannot write)
"""

from kaged.config.locations import sqlite_url
from kaged.store.audit_rows import AuditRows
from kaged.store.errors import StoreConflict, StoreCorrupt, StoreError, StoreUnavailable
from kaged.store.migrations import MIGRATIONS, Migrated, Migration
from kaged.store.page import Page
from kaged.store.project_rows import ProjectRecord, ProjectRows
from kaged.store.store import Store, StoreStatus

__all__ = [
    "MIGRATIONS",
    "AuditRows",
    "Migrated",
    "Migration",
    "Page",
    "ProjectRecord",
    "ProjectRows",
    "Store",
    "StoreConflict",
    "StoreCorrupt",
    "StoreError",
    "StoreStatus",
    "StoreUnavailable",
    "sqlite_url",
]
