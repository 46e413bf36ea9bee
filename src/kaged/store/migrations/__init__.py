"""How a database gets from one schema to the next: `Migration`, `MIGRATIONS`, `migrate`.

Plain functions with a number, listed here by hand. They only go forward: a database that is newer
than the program is refused, never taken back.
"""

from __future__ import annotations

from kaged.store.migrations.m0001_foundation import upgrade as foundation
from kaged.store.migrations.m0002_plugin_tables import upgrade as plugin_tables
from kaged.store.migrations.m0003_project_work import upgrade as project_work
from kaged.store.migrations.m0004_sessions import upgrade as session_book
from kaged.store.migrations.m0005_services import upgrade as services
from kaged.store.migrations.migrate import Migrated, Migration, migrate

MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "foundation", foundation),
    Migration(2, "plugin_tables", plugin_tables),
    Migration(3, "project_work", project_work),
    Migration(4, "session_book", session_book),
    Migration(5, "services", services),
)

__all__ = ["MIGRATIONS", "Migrated", "Migration", "migrate"]
