"""`RecordTable`: the rows of a table as records. What is asked for is written by the repositories.

The fields of a record are columns of its table, under the same names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, func, insert, select, update

R = TypeVar("R")

Where = Sequence[ColumnElement[bool]]
"""Conditions that must all hold."""


def equal(table: Table, values: Mapping[str, object]) -> ColumnElement[bool]:
    """Return the condition that a row has these values in these columns."""
    return and_(*(table.c[name] == value for name, value in values.items()))


class RecordTable(Generic[R]):
    """Reads rows of `table` into `record`, and writes records as rows.

    `json_columns` hold JSON text. `reads` says what else a column's text is turned into, such as
    an enumeration. None stays None in both directions where the column allows it.
    """

    def __init__(
        self,
        table: Table,
        record: type[R],
        *,
        json_columns: Collection[str] = (),
        reads: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        names = [item.name for item in fields(record)]  # type: ignore[arg-type] - a dataclass
        self.table = table
        self.columns = tuple(table.c[name] for name in names)
        self._record = record
        self._names = names
        self._required_json = {name for name in json_columns if not table.c[name].nullable}
        self._json = frozenset(json_columns)
        converters = {**dict.fromkeys(json_columns, json.loads), **(reads or {})}
        self._reads = [(names.index(name), convert) for name, convert in converters.items()]

    def select(self, *where: ColumnElement[bool]) -> Select[Any]:
        """Return the query for the rows of which these conditions hold."""
        return select(*self.columns).where(*where)

    def make(self, row: Sequence[Any]) -> R:
        """Return the record of a row that `select` found."""
        if not self._reads:
            return self._record(*row)
        values = list(row)
        for index, convert in self._reads:
            if values[index] is not None:
                values[index] = convert(values[index])
        return self._record(*values)

    def all(self, conn: Connection, wanted: Select[Any]) -> list[R]:
        """Return the records that a query of `select` finds."""
        return [self.make(row) for row in conn.execute(wanted)]

    def first(self, conn: Connection, *where: ColumnElement[bool]) -> R | None:
        """Return the first record of which these conditions hold; None if there is none."""
        row = conn.execute(self.select(*where)).first()
        return None if row is None else self.make(row)

    def count(self, conn: Connection, *where: ColumnElement[bool]) -> int:
        """Count the rows of which these conditions hold."""
        wanted = select(func.count()).select_from(self.table).where(*where)
        return int(conn.execute(wanted).scalar() or 0)

    def page(
        self,
        conn: Connection,
        where: Where,
        order: Sequence[ColumnElement[Any]],
        limit: int,
        offset: int,
    ) -> tuple[Sequence[R], int]:
        """Return some records in order, and how many there are in all."""
        wanted = self.select(*where).order_by(*order).limit(limit).offset(offset)
        return self.all(conn, wanted), self.count(conn, *where)

    def values(self, record: R) -> dict[str, Any]:
        """Return a record as values of columns."""
        return {name: self._written(name, getattr(record, name)) for name in self._names}

    def insert(self, conn: Connection, record: R, **more: object) -> Any:
        """Write a new row, with `more` columns that the record does not have; return its key."""
        made = conn.execute(insert(self.table).values(**self.values(record), **more))
        key = made.inserted_primary_key
        assert key is not None  # it is one row
        return key[0]

    def insert_all(self, conn: Connection, records: Collection[R]) -> None:
        """Write new rows in one go, in this order."""
        if records:
            conn.execute(insert(self.table), [self.values(record) for record in records])

    def put(self, conn: Connection, record: R) -> None:
        """Write a row in place of the one of the same key; the time of its making stays."""
        values = self.values(record)
        key = equal(self.table, {one.name: values[one.name] for one in self.table.primary_key})
        kept = {name: value for name, value in values.items() if name != "created_at_ms"}
        if not conn.execute(update(self.table).where(key).values(kept)).rowcount:
            conn.execute(insert(self.table).values(values))

    def _written(self, name: str, value: Any) -> Any:
        if name in self._json:
            optional = value is None and name not in self._required_json
            return None if optional else json.dumps(value)
        return value.value if isinstance(value, Enum) else value
