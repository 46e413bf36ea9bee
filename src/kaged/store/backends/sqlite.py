"""`SqliteBackend`: the embedded default. One file in WAL mode, durable at every commit.

`synchronous=FULL` makes each commit wait until the write-ahead log is on disk, so what was
acknowledged survives a killed process and a power cut. Group commit is what makes that cheap.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.pool import NullPool

from kaged.base import iso_utc
from kaged.store.backends import sqlite_file, sqlite_text
from kaged.store.backends.sqlite_errors import corrupt, translate, unavailable
from kaged.store.errors import StoreError

BUSY_TIMEOUT_MS = 10_000
QUICK_CHECK_LIMIT_BYTES = 128 * 1024 * 1024  # about a quarter of a second; larger files on request
WAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024
CHECKPOINT_PAGES = 4000  # 16 MiB: fewer, larger moves from the log into the file
CACHE_KIB = 8192
ASK_EVERY_STEPS = 50_000  # of SQLite's virtual machine; well under a millisecond
INSERT_ROWS = 512  # per statement; a statement is one stretch without Python's global lock
VARIABLES_LIMIT = 32_766  # SQLite's default limit of ? in one statement


class SqliteBackend:
    """One SQLite file, opened by one writer and several readers, in this process and others.

    All methods block and are called off the event loop.
    """

    def __init__(self, path: Path, backup_dir: Path, *, draft: bool = False) -> None:
        self._path = path
        self._backup_dir = backup_dir
        self._draft = draft
        self._writer = self._engine("rwc" if draft else "rw", begin="BEGIN IMMEDIATE")
        self._reader = self._engine("ro", begin="BEGIN")
        self._insert_sql: dict[tuple[str, int], str] = {}

    @property
    def exists(self) -> bool:
        """Whether the file exists, whatever is in it."""
        return os.path.lexists(self._path)

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self._path)

    def check(self, *, thorough: bool = False) -> None:
        """Look whether the file is a sound database, through a connection that cannot write.

        Files beyond 128 MiB get SQLite's page-by-page check only when `thorough`; damage in them
        is still reported when it is met.

        Raises:
            StoreCorrupt: it is not.
            StoreUnavailable: it cannot be read.
        """
        try:
            sqlite_file.examine_file(self._path)
            conn = self._open("ro")
            try:
                small = self._path.stat().st_size <= QUICK_CHECK_LIMIT_BYTES
                if thorough:
                    answer = conn.execute("PRAGMA integrity_check(1)").fetchone()
                elif small:
                    answer = conn.execute("PRAGMA quick_check(1)").fetchone()
                else:
                    conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                    answer = ("ok",)
            finally:
                conn.close()
        except (sqlite3.Error, OSError) as error:
            raise translate(error, self.place) or error from error
        if answer != ("ok",):
            raise corrupt(self.place, str(answer[0]) if answer else "the check returned nothing")

    def create(self, build: Callable[[SqliteBackend], object]) -> None:
        """Let `build` fill a file beside the real one, private from its first byte; then move it.

        So a database that exists is a whole one. If another process was faster, theirs stays.
        """
        draft = self._path.with_name(f".{self._path.name}.creating")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A leftover of a start that was interrupted here; never held anything of value.
            draft.unlink(missing_ok=True)
            draft.with_name(f"{draft.name}-journal").unlink(missing_ok=True)
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            build(SqliteBackend(draft, self._backup_dir, draft=True))
            sqlite_file.place_new_file(draft, self._path)
        except FileExistsError:
            draft.unlink(missing_ok=True)
        except OSError as error:
            raise unavailable(self.place, error.strerror or str(error)) from error

    def connect_writer(self) -> Connection:
        """Open the writing connection; its transactions take the write lock when they begin."""
        if not self._draft:
            try:
                sqlite_file.restrict_modes(self._path)
            except OSError as error:
                raise unavailable(self.place, error.strerror or str(error)) from error
        return self._writer.connect()

    def connect_reader(self, stopped: Callable[[], bool] | None = None) -> Connection:
        """Open a connection that SQLite itself keeps from writing.

        `stopped` is asked now and then while a query runs, in its thread; true ends the query.
        """
        conn = self._reader.connect()
        if stopped is not None:
            # Not sqlite3_interrupt: that misses a query that is just about to begin.
            sqlite_file.driver_of(conn).set_progress_handler(stopped, ASK_EVERY_STEPS)
        return conn

    def in_transaction(self, conn: Connection) -> bool:
        """Return whether SQLite still has a transaction open; a full disk ends it unasked."""
        return sqlite_file.driver_of(conn).in_transaction

    def insert_rows(
        self, conn: Connection, table: Table, rows: Sequence[tuple[object, ...]]
    ) -> None:
        """Insert rows, values in the order of the table's columns.

        In statements of 512, 256, … 1 rows, which SQLite keeps prepared.
        """
        width = len(table.columns)
        size = min(INSERT_ROWS, VARIABLES_LIMIT // width)
        start = 0
        while start < len(rows):
            while size > len(rows) - start:
                size //= 2
            values = tuple(value for row in rows[start : start + size] for value in row)
            sqlite_file.driver_of(conn).execute(self._insert(table, size), values)
            start += size

    def forbid(self, conn: Connection, table: str, *actions: str) -> None:
        """Let SQLite refuse `UPDATE` or `DELETE` of rows; the chain finds other means."""
        for action in actions:
            conn.exec_driver_sql(
                f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} only grows'); END"
            )

    add_text_index = staticmethod(sqlite_text.create_index)
    put_text = staticmethod(sqlite_text.put_text)
    drop_text = staticmethod(sqlite_text.drop_text)
    text_match = staticmethod(sqlite_text.matches)

    def backup(self, conn: Connection, target: Path) -> None:
        """Copy the database with SQLite's backup interface; writers need not stop."""
        try:
            sqlite_file.copy_database(sqlite_file.driver_of(conn), target)
        except (sqlite3.Error, OSError) as error:
            raise translate(error, str(target)) or error from error

    def backup_before_migration(self, conn: Connection, version: int, now_ms: int) -> Path:
        """Copy the database to `<name>-v<version>-<time>.db` in the backup folder."""
        stamp = iso_utc(now_ms).replace("-", "").replace(":", "").replace(".", "")
        target = self._backup_dir / f"{self._path.stem}-v{version}-{stamp}.db"
        number = 2
        while target.exists():
            target = self._backup_dir / f"{self._path.stem}-v{version}-{stamp}-{number}.db"
            number += 1
        self.backup(conn, target)
        return target

    def tidy(self, conn: Connection) -> None:
        """Move the write-ahead log into the database file."""
        if not self._draft:
            # On the driver's connection: SQLAlchemy would begin a transaction, which forbids it.
            sqlite_file.driver_of(conn).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def translate(self, error: BaseException) -> StoreError | None:
        """Return what an error of SQLite, the driver or the file system means."""
        return translate(error, self.place)

    def _insert(self, table: Table, size: int) -> str:
        known = self._insert_sql.get((table.name, size))
        if known is None:
            columns = ", ".join(f'"{column.name}"' for column in table.columns)
            marks = f"({', '.join('?' * len(table.columns))})"
            known = (
                f'INSERT INTO "{table.name}" ({columns}) '  # noqa: S608 - names of our own schema
                f"VALUES {', '.join([marks] * size)}"
            )
            self._insert_sql[table.name, size] = known
        return known

    def _engine(self, mode: str, *, begin: str) -> Engine:
        # Connections are opened, kept and closed by the writer and the readers themselves.
        engine = create_engine(
            "sqlite+pysqlite://",
            creator=lambda: self._open(mode),
            poolclass=NullPool,
            hide_parameters=True,
        )

        # The driver's own idea of when a transaction begins comes too late for DDL and reads.
        @event.listens_for(engine, "begin")
        def _begin(conn: Connection) -> None:
            sqlite_file.driver_of(conn).execute(begin)

        return engine

    def _open(self, mode: str) -> sqlite3.Connection:
        options = sqlite_file.reading_options(self._path) if mode == "ro" else f"mode={mode}"
        conn = sqlite3.connect(
            f"file:{quote(str(self._path))}?{options}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # one thread at a time; closed by the thread that stops us
            timeout=BUSY_TIMEOUT_MS / 1000,
        )
        try:
            for pragma in self._pragmas(mode):
                conn.execute(f"PRAGMA {pragma}").fetchall()
            if mode == "rw":
                (journal,) = conn.execute("PRAGMA journal_mode=WAL").fetchone()
                if journal != "wal":
                    raise unavailable(
                        self.place,
                        "the file system does not allow a write-ahead log",
                        "keep the database on a local disk, not on a network share",
                    )
        except BaseException:
            conn.close()
            raise
        return conn

    def _pragmas(self, mode: str) -> tuple[str, ...]:
        common = (
            "cell_size_check=ON",
            "trusted_schema=OFF",
            "foreign_keys=ON",
            "recursive_triggers=ON",  # else INSERT OR REPLACE deletes past the triggers
            "temp_store=MEMORY",
            f"cache_size=-{CACHE_KIB}",
        )
        if mode == "ro":
            return (*common, "query_only=ON")
        return (
            *common,
            "synchronous=FULL",
            f"wal_autocheckpoint={CHECKPOINT_PAGES}",
            f"journal_size_limit={WAL_SIZE_LIMIT_BYTES}",
        )
