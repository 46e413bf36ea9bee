"""`dump_table`: how a table was made and what is in it, read for an export."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_file import driver_of

_GENERATED = frozenset({2, 3})  # how SQLite marks computed columns


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """One table: the SQL that made it and its indexes, its own columns, and its rows."""

    create: str
    indexes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[tuple[Any, ...]]]


def dump_table(conn: Connection, physical: str) -> DumpedTable | None:
    """Read a table within the transaction of `conn`; None if it is gone.

    Text that is no UTF-8 comes with surrogate escapes; see `faithful_text`.
    """
    driver = driver_of(conn)
    made = driver.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)",
        (physical,),
    ).fetchone()
    if made is None:
        return None
    name, create = made
    indexes = driver.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL "
        "ORDER BY rowid",
        (name,),
    ).fetchall()
    described = driver.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (name,))
    columns = tuple(column for column, hidden in described if hidden not in _GENERATED)
    wanted = ", ".join(_quoted(column) for column in columns)
    select = f"SELECT {wanted} FROM {_quoted(name)}"  # noqa: S608 - names out of the catalog, quoted
    return DumpedTable(
        create, tuple(row[0] for row in indexes), columns, lambda: driver.execute(select)
    )


@contextmanager
def faithful_text(conn: Connection) -> Generator[None]:
    """Let text come out byte for byte in this block, even where it is no UTF-8."""
    driver = driver_of(conn)
    driver.text_factory = _escaped
    try:
        yield
    finally:
        driver.text_factory = str


def _escaped(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
