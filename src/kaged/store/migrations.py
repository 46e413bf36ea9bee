"""How a database gets from one schema to the next: `Migration`, `MIGRATIONS`, `migrate`.

Plain functions with a number, listed here by hand. They only go forward: a database that is newer
than the program is refused, never taken back. A migration is never edited after a release: it is
what old databases went through. The baseline creates what `store.schema` says; with the first
migration behind it, it needs tables of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Connection, func, insert, inspect, select

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends import SqliteBackend
from kaged.store.errors import StoreError
from kaged.store.schema import audit_events, entries, issues, metadata, schema_versions


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. `upgrade` touches nothing but the connection it is given."""

    version: int
    name: str
    upgrade: Callable[[Connection, SqliteBackend], None]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a start did to the schema. `from_version` 0 means that the database is new."""

    from_version: int
    to_version: int
    backup: Path | None


def _create_baseline(conn: Connection, backend: SqliteBackend) -> None:
    """Create all tables, what guards them, and the full-text indexes."""
    metadata.create_all(conn, checkfirst=False)
    backend.forbid(conn, audit_events.name, "UPDATE", "DELETE")
    backend.forbid(conn, entries.name, "UPDATE")
    backend.add_text_index(conn, issues.name, "seq", ("title", "body"))
    backend.add_text_index(conn, entries.name, "seq", ("words",), bare=True)


MIGRATIONS: tuple[Migration, ...] = (Migration(1, "baseline", _create_baseline),)


def current_version(conn: Connection) -> int:
    """Read the schema's version; 0 for an empty database.

    Raises:
        StoreError: `store_foreign`; there are tables, but not ours.
    """
    tables = inspect(conn).get_table_names()
    if schema_versions.name not in tables:
        if tables:
            names = ", ".join(sorted(tables)[:5])
            raise StoreError(
                f"the database holds other tables ({names}) and none of kaged's",
                code="store_foreign",
                fix="set [storage] url to a file of its own",
            )
        return 0
    return int(conn.execute(select(func.max(schema_versions.c.version))).scalar() or 0)


def require_not_newer(found: int, migrations: Sequence[Migration]) -> None:
    """Raise `store_newer_schema` for a database that this program is too old for."""
    newest = migrations[-1].version
    if found > newest:
        raise StoreError(
            f"the database has schema {found}, this kaged supports schemas up to {newest}",
            code="store_newer_schema",
            fix="upgrade kaged, or restore the backup that was made before the database was "
            "migrated",
            found=found,
            known=newest,
        )


def migrate(
    conn: Connection, backend: SqliteBackend, clock: Clock, migrations: Sequence[Migration]
) -> Migrated | None:
    """Apply what is missing, in one transaction, after a backup; None if nothing was.

    Raises:
        StoreError: `store_newer_schema`; the database is ahead of this program.
        StoreError: `store_migration_failed`; a step failed. The database is as it was before.
    """
    with conn.begin():
        found = current_version(conn)
    require_not_newer(found, migrations)
    missing = [one for one in migrations if one.version > found]
    if not missing:
        return None
    backup = backend.backup_before_migration(conn, found, clock.now_ms()) if found else None
    try:
        with conn.begin():
            # Read again behind the write lock: another process may have been faster.
            found = current_version(conn)
            for step in (one for one in migrations if one.version > found):
                _apply(conn, backend, clock, step)
    except Exception as error:
        raise _failed(error, backend, backup) from error
    return Migrated(found, migrations[-1].version, backup)


def _apply(conn: Connection, backend: SqliteBackend, clock: Clock, step: Migration) -> None:
    step.upgrade(conn, backend)
    conn.execute(
        insert(schema_versions).values(
            version=step.version, name=step.name, applied_at_ms=clock.now_ms()
        )
    )


def _failed(error: Exception, backend: SqliteBackend, backup: Path | None) -> StoreError:
    known = backend.translate(error)
    if known is not None and type(known) is not StoreError:
        return known
    kept = f"; a copy from before is {backup}" if backup else ""
    return StoreError(
        f"the database could not be migrated and is unchanged: {known or error}{kept}",
        code="store_migration_failed",
        fix="go back to the version of kaged that you had, and report this",
        backup=str(backup) if backup else None,
    )
