"""`DatabaseBackend`: the questions that each kind of database answers in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sqlalchemy import Column, ColumnElement, Connection, Table

from kaged.store.errors import StoreError
from kaged.store.text_query import TextQuery


class DatabaseBackend(Protocol):
    """One database of one kind. All methods block and are called off the event loop."""

    @property
    def exists(self) -> bool:
        """Whether there is a database at the place the URL names."""
        ...

    @property
    def place(self) -> str:
        """Where the database is, as people name it; never with a password."""
        ...

    def check(self, *, thorough: bool = False) -> None:
        """Look whether the database is sound, without changing a byte of it.

        Raises:
            StoreCorrupt: it is not.
            StoreUnavailable: it cannot be read.
        """
        ...

    def create(self, build: Callable[[DatabaseBackend], None]) -> None:
        """Make a new database: `build` fills a draft, which is then put in place.

        So that a database that exists is always a whole one. Never replaces one that exists.
        """
        ...

    def connect_writer(self) -> Connection:
        """Open the connection for writing; its transactions take the write lock when they begin."""
        ...

    def connect_reader(self, stopped: Callable[[], bool] | None = None) -> Connection:
        """Open a connection that cannot write.

        `stopped` is asked now and then while a query runs, in its thread; true ends the query.
        """
        ...

    def in_transaction(self, conn: Connection) -> bool:
        """Return whether the database itself still has this connection's transaction."""
        ...

    def insert_rows(
        self, conn: Connection, table: Table, rows: Sequence[tuple[object, ...]]
    ) -> None:
        """Insert many rows, values in the order of the table's columns, as few statements."""
        ...

    def forbid_changes(self, conn: Connection, table: str) -> None:
        """Let the database itself refuse to update or delete rows of this table."""
        ...

    def forbid_updates(self, conn: Connection, table: str) -> None:
        """Let the database itself refuse to change rows of this table; they may be deleted."""
        ...

    def add_text_index(
        self, conn: Connection, table: str, key: str, columns: Sequence[str], *, bare: bool = False
    ) -> None:
        """Make a full-text index of these columns; `key` is the table's integer key.

        `bare`: the columns are of the index only, the table has the text in another form.
        """
        ...

    def put_text(
        self,
        conn: Connection,
        table: str,
        row: int,
        old: Mapping[str, str] | None,
        new: Mapping[str, str],
    ) -> None:
        """Update the index with a row's new text and the one before; None for a new row."""
        ...

    def drop_text(self, conn: Connection, table: str, row: int, old: Mapping[str, str]) -> None:
        """Let the index forget a row, which said this."""
        ...

    def text_match(self, key: Column[int], query: TextQuery) -> ColumnElement[bool]:
        """Return the condition that a row's indexed text fits; `key` as the index was made with."""
        ...

    def backup(self, conn: Connection, target: Path) -> None:
        """Copy the whole database, as of now, into a new file."""
        ...

    def backup_before_migration(self, conn: Connection, version: int, now_ms: int) -> Path | None:
        """Copy the database to the backup folder, with its version in the name."""
        ...

    def tidy(self, conn: Connection) -> None:
        """Leave the files in their smallest form before the last connection closes."""
        ...

    def translate(self, error: BaseException) -> StoreError | None:
        """Return what a database error means for a caller; None if it is not a database error."""
        ...
