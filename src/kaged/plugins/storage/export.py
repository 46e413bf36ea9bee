"""`write_export`: a plugin's tables as a file of SQL that any SQLite reads back (PH-BEY-13)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from sqlalchemy import Connection

from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.storage.names import PluginSchema, quoted
from kaged.store import StoreUnavailable
from kaged.store.backends.sqlite_dump import DumpedTable, dump_table, faithful_text
from kaged.store.backends.sqlite_file import place_new_file
from kaged.store.plugin_tables import PluginTables

_HEAD = "-- Tables of the kaged plugin {plugin}. Read back with: sqlite3 new.db < this-file\n"


@dataclass(frozen=True, slots=True)
class StorageExport:
    """What was written: the file, its tables as the plugin names them, and how many rows."""

    path: Path
    tables: tuple[str, ...]
    rows: int


async def write_export(tables: PluginTables, schema: PluginSchema, target: Path) -> StorageExport:
    """Write all tables of a plugin, as of one moment, into a new file of mode 0600.

    The file appears under its name when it is complete.

    Raises:
        StoreUnavailable: it exists already or cannot be written.
    """
    names = tables.tables_of(schema.plugin)

    def work(conn: Connection) -> StorageExport:
        try:
            return _write(conn, schema, names, target)
        except OSError as error:
            raise StoreUnavailable(
                f"the export cannot be written to {target}: {error.strerror or error}",
                fix="name a new file in a folder that can be written",
            ) from error

    return await tables.read(work)


def _write(conn: Connection, schema: PluginSchema, names: list[str], target: Path) -> StorageExport:
    if os.path.lexists(target):
        raise FileExistsError(0, "the file exists", str(target))
    draft = target.with_name(f".{target.name}.partial")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            written = _script(conn, schema, names, file)
        place_new_file(draft, target)  # durably, and never over another file
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    return StorageExport(target, tuple(names), written)


def _script(conn: Connection, schema: PluginSchema, names: list[str], file: TextIO) -> int:
    from kaged.plugins.storage.dialect import replace_names  # noqa: PLC0415 - sqlglot is slow

    def plain(sql: str) -> str:
        return replace_names(sql, lambda name: _plain(schema, name))

    rows = 0
    file.write(_HEAD.format(plugin=schema.plugin))
    file.write("PRAGMA foreign_keys=OFF;\nBEGIN;\n")
    with faithful_text(conn):
        for name in names:
            table = dump_table(conn, schema.physical(name))
            if table is not None:
                rows += _table(table, name, plain, file)
    file.write("COMMIT;\n")
    return rows


def _table(table: DumpedTable, name: str, plain: Callable[[str], str], file: TextIO) -> int:
    file.write(f"{plain(table.create)};\n")
    columns = ", ".join(quoted(column) for column in table.columns)
    rows = 0
    for row in table.rows():
        values = ", ".join(_literal(value) for value in row)
        file.write(f"INSERT INTO {quoted(name)} ({columns}) VALUES ({values});\n")  # noqa: S608 - a file
        rows += 1
    file.writelines(f"{plain(index)};\n" for index in table.indexes)
    return rows


def _plain(schema: PluginSchema, name: str) -> str | None:
    """Return a name without the prefix; None for one that has none."""
    plain = schema.hide(name)
    return quoted(plain) if plain != name else None


def _literal(value: str | bytes | float | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        if math.isinf(value):
            return "9e999" if value > 0 else "-9e999"
        return repr(value)
    if isinstance(value, int):
        return str(value)
    raw = value.encode("utf-8", "surrogateescape")
    if "\0" in value or raw != value.encode("utf-8", "replace"):
        return f"CAST(X'{raw.hex()}' AS TEXT)"
    return "'" + value.replace("'", "''") + "'"
