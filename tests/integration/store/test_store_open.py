"""Opening: a new database, an old one, and everything that must not be opened."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from fakes.store_home import StoreHome, edited, enabled
from kaged.audit import verify_export
from kaged.store import MIGRATIONS, Migration, StoreCorrupt, StoreError, StoreUnavailable
from kaged.store.backends import SqliteBackend
from kaged.store.schema import metadata
from raising import raises_code

FIXTURES = Path(__file__).parent / "fixtures"


def add_notes(conn: Connection, _: SqliteBackend) -> None:
    conn.execute(text("ALTER TABLE projects ADD COLUMN notes TEXT"))
    conn.execute(text("UPDATE projects SET notes = 'migrated ' || slug"))


def explode(conn: Connection, _: SqliteBackend) -> None:
    conn.execute(text("ALTER TABLE projects ADD COLUMN half TEXT"))
    conn.execute(text("DROP TABLE audit_anchor"))
    raise RuntimeError("in the middle of it")


# The first schema and two steps behind it that no release ever has.
FIRST = MIGRATIONS[:1]
NOTES = Migration(2, "notes", add_notes)
EXPLODE = Migration(3, "explode", explode)
NEWER = Migration(MIGRATIONS[-1].version + 1, "newer", add_notes)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_a_new_database_is_made_private_and_in_wal_mode(home: StoreHome) -> None:
    home.database = home.root / "deep" / "er" / "kaged.db"
    store = await home.store()
    await store.projects.upsert("/srv/a", "a", "A")
    assert store.migrated is not None
    assert (store.migrated.from_version, store.migrated.backup) == (0, None)
    assert mode(home.database) == 0o600
    assert mode(home.database.parent) == 0o700
    for suffix in ("-wal", "-shm"):
        assert mode(home.database.with_name(f"kaged.db{suffix}")) == 0o600
    pragmas = await store.write(
        lambda conn: [
            conn.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    )
    assert pragmas == ["wal", 2, 1]
    await store.close()
    assert [path.name for path in home.database.parent.iterdir()] == ["kaged.db"]


async def test_what_was_written_is_there_after_a_restart(home: StoreHome) -> None:
    first = await home.store()
    made = await first.projects.upsert("/srv/a", "a", "A")
    await home.close()
    second = await home.store()
    assert second.migrated is None
    assert await second.projects.list() == (made,)


async def test_a_database_that_others_can_read_is_closed_to_them(home: StoreHome) -> None:
    await home.filled(1)
    home.database.chmod(0o644)
    await home.store()
    assert mode(home.database) == 0o600


async def test_the_migrations_build_the_schema_that_the_code_uses(home: StoreHome) -> None:
    store = await home.store()

    def found(conn: Connection) -> dict[str, dict[str, str]]:
        look = inspect(conn)
        return {
            table: {
                column["name"]: f"{column['type']} {column['nullable']}"
                for column in look.get_columns(table)
            }
            | {str(index["name"]): str(index["column_names"]) for index in look.get_indexes(table)}
            for table in look.get_table_names()
            if not table.startswith(("issues_text", "entries_text"))  # full-text indexes
        }

    def wanted(conn: Connection) -> dict[str, dict[str, str]]:
        return {
            table.name: {
                column.name: f"{column.type.compile(conn.dialect)} {column.nullable}"
                for column in table.columns
            }
            | {
                str(index.name): str([column.name for column in index.columns])
                for index in table.indexes
            }
            for table in metadata.tables.values()
        }

    assert await store.read(found) == await store.read(wanted)


async def test_a_crash_while_making_a_database_leaves_nothing_in_the_way(home: StoreHome) -> None:
    (home.root / ".kaged.db.creating").write_bytes(b"half a database")
    (home.root / ".kaged.db.creating-journal").write_bytes(b"x")
    await home.store()
    assert not (home.root / ".kaged.db.creating").exists()


@pytest.mark.parametrize("size", [0, 50, 100, 4096, 10_000])
async def test_a_truncated_database_is_reported_and_left_alone(home: StoreHome, size: int) -> None:
    await home.filled(50)
    whole = home.database.read_bytes()
    home.database.write_bytes(whole[:size])
    before = home.files()
    for read_only in (False, True):
        with pytest.raises(StoreCorrupt) as caught:
            await home.store(read_only=read_only)
        assert "restore a backup" in str(caught.value.fix)
        assert str(home.database) in caught.value.message
    assert home.files() == before


@pytest.mark.parametrize("offset", [0, 16, 18, 100, 105, 4096, 4096 + 3, 8192])
async def test_a_damaged_database_is_reported_and_left_alone(home: StoreHome, offset: int) -> None:
    await home.filled(200)
    content = bytearray(home.database.read_bytes())
    content[offset : offset + 64] = b"\xa5" * 64
    home.database.write_bytes(bytes(content))
    before = home.files()
    with pytest.raises(StoreCorrupt):
        await home.store()
    assert home.files() == before


async def test_damage_that_shows_later_is_reported_and_stops_writing(home: StoreHome) -> None:
    store = await home.store()
    await store.projects.upsert("/srv/a", "a", "A")
    with pytest.raises(StoreCorrupt):
        await store.write(_pretend_corruption)
    with pytest.raises(StoreCorrupt):
        await store.projects.upsert("/srv/b", "b", "B")
    assert "damaged" in str(store.status.last_error)
    assert len(await store.projects.list()) == 1


def _pretend_corruption(_: Connection) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    raise error


async def test_a_thorough_check_finds_an_index_that_lies(home: StoreHome) -> None:
    await home.filled(50)
    conn = home.raw()
    conn.execute("PRAGMA writable_schema=ON")
    conn.execute(
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX audit_events_time ON audit_events (id)' "
        "WHERE name = 'audit_events_time'"
    )
    conn.close()
    store = await home.store()
    with pytest.raises(StoreCorrupt):
        await store.check()


async def test_a_newer_database_is_refused_and_left_alone(home: StoreHome) -> None:
    await home.store([*MIGRATIONS, NEWER])
    await home.close()
    before = home.files()
    for read_only in (False, True):
        with raises_code("store_newer_schema", StoreError) as caught:
            await home.store(read_only=read_only)
        assert caught.value.code == "store_newer_schema"
        assert "upgrade kaged" in str(caught.value.fix)
        assert caught.value.data["found"] == NEWER.version
    assert home.files() == before


async def test_another_programs_database_is_refused_and_left_alone(home: StoreHome) -> None:
    conn = sqlite3.connect(home.database)
    conn.execute("CREATE TABLE recipes (name TEXT)")
    conn.commit()
    conn.close()
    with raises_code("store_foreign", StoreError, match="recipes"):
        await home.store()
    conn = sqlite3.connect(home.database)
    assert conn.execute("SELECT name FROM sqlite_schema").fetchall() == [("recipes",)]
    conn.close()


async def test_a_database_of_version_1_opens_with_everything_in_it(home: StoreHome) -> None:
    """The fixture was written with the baseline; it stays as it is once that is released."""
    _restore_v1(home)
    store = await home.store()
    (project,) = await store.projects.list()
    assert (project.root, project.trusted) == ("/srv/old", True)
    report = await store.audit.verify(home.key)
    assert report.ok
    assert report.rows == 3


async def test_a_migration_copies_the_database_first(home: StoreHome) -> None:
    _restore_v1(home)
    store = await home.store([*FIRST, NOTES])
    migrated = store.migrated
    assert migrated is not None
    assert (migrated.from_version, migrated.to_version) == (1, 2)
    backup = migrated.backup
    assert backup is not None
    assert backup.parent == home.backups
    assert backup.name == "kaged-v1-20260101T000000000Z.db"
    assert mode(backup) == 0o600
    notes = await store.read(lambda conn: conn.execute(text("SELECT notes FROM projects")).scalar())
    assert notes == "migrated old"
    assert (await store.audit.verify(home.key)).ok
    await home.close()

    home.database = backup  # the copy is a whole database of the old version
    old = await home.store(FIRST)
    assert old.migrated is None
    assert (await old.audit.verify(home.key)).rows == 3


async def test_a_failed_migration_leaves_the_database_as_it_was(home: StoreHome) -> None:
    _restore_v1(home)
    before = _dump(home.database)
    with raises_code("store_migration_failed", StoreError) as caught:
        await home.store([*FIRST, NOTES, EXPLODE])
    assert "in the middle of it" in caught.value.message
    assert str(home.backups) in caught.value.message
    assert _dump(home.database) == before
    assert len(list(home.backups.iterdir())) == 1
    store = await home.store(FIRST)
    assert (await store.audit.verify(home.key)).ok


async def test_no_migration_begins_without_a_backup(home: StoreHome) -> None:
    _restore_v1(home)
    home.backups.write_text("a file in the place of the folder", encoding="utf-8")
    before = _dump(home.database)
    with pytest.raises(StoreUnavailable):
        await home.store([*FIRST, NOTES])
    assert _dump(home.database) == before


async def test_two_backups_of_one_moment_get_two_names(home: StoreHome) -> None:
    _restore_v1(home)
    for _ in range(2):
        with raises_code("store_migration_failed", StoreError):
            await home.store([*FIRST, EXPLODE])
    assert len(list(home.backups.iterdir())) == 2


async def test_looking_makes_and_migrates_nothing(home: StoreHome) -> None:
    with pytest.raises(StoreUnavailable, match="there is no database"):
        await home.store(read_only=True)
    assert list(home.root.iterdir()) == []
    _restore_v1(home)
    with pytest.raises(StoreUnavailable, match="schema 1"):
        await home.store([*FIRST, NOTES], read_only=True)
    store = await home.store(FIRST, read_only=True)
    with pytest.raises(StoreUnavailable, match="reading only"):
        await store.projects.upsert("/srv/b", "b", "B")
    assert store.audit.head().seq == 3


async def test_a_backup_of_a_running_store_is_a_whole_database(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)
    for number in range(200):
        await log.record(edited(f"{number}"))
    await log.record(enabled("last"))
    target = home.root / "copies" / "now.db"
    await store.backup(target)
    await log.record(enabled("after"))
    assert mode(target) == 0o600
    assert [path.name for path in target.parent.iterdir()] == ["now.db"]
    with pytest.raises(StoreUnavailable, match="exists"):
        await store.backup(target)
    await home.close()
    home.database = target
    copy = await home.store()
    assert (await copy.audit.verify(home.key)).rows == 201


async def test_restoring_a_backup_leaves_a_mark_in_the_log(home: StoreHome) -> None:
    """As the how-to says: stop, put the copy in place, start."""
    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("before"))
    await store.backup(home.root / "copy.db")
    await log.record(enabled("lost by the restore"))
    await home.close()
    shutil.copy(home.root / "copy.db", home.database)

    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("after"))
    names = [row.name async for row in store.audit.iter_rows()]
    assert names == ["plugin.enabled", "audit.chain_mismatch", "plugin.enabled"]
    assert not (await store.audit.verify(home.key, home.head_file)).ok
    assert (await store.audit.verify(home.key, home.head_file, accepted=frozenset({2}))).ok
    lines = [line async for line in store.audit.export(home.key)]
    assert not verify_export(b"".join(lines).splitlines(keepends=True), home.key).ok


async def test_a_closed_store_says_so(home: StoreHome) -> None:
    store = await home.store()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.projects.list()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.projects.upsert("/srv/a", "a", "A")


def _restore_v1(home: StoreHome) -> None:
    conn = sqlite3.connect(home.database, isolation_level=None)
    conn.executescript((FIXTURES / "v1.sql").read_text(encoding="utf-8"))
    conn.close()
    key = home.root / "audit.key"
    key.write_text("ab" * 32, encoding="ascii")
    key.chmod(0o600)


def _dump(path: Path) -> list[str]:
    conn = sqlite3.connect(path)
    try:
        return list(conn.iterdump())
    finally:
        conn.close()
