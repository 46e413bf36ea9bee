"""`RowRepository`: what every repository is made of, and the short questions that many ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Delete, Select, Update

from kaged.store.database import Database
from kaged.store.record_table import RecordTable, Where

R = TypeVar("R")


class RowRepository:
    """A repository: the rows of some tables, in one database, dated by its clock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = database.clock
        self._ids = database.ids

    async def _first(self, table: RecordTable[R], *where: ColumnElement[bool]) -> R | None:
        """Read the first record of which these conditions hold."""
        return await self._database.read(lambda conn: table.first(conn, *where))

    async def _all(self, table: RecordTable[R], wanted: Select[Any]) -> list[R]:
        """Read the records that a query of the table finds."""
        return await self._database.read(lambda conn: table.all(conn, wanted))

    async def _page(
        self,
        table: RecordTable[R],
        where: Where,
        order: Sequence[ColumnElement[Any]],
        limit: int,
        offset: int,
    ) -> tuple[Sequence[R], int]:
        """Read some records in order, and how many there are in all."""
        return await self._database.read(lambda conn: table.page(conn, where, order, limit, offset))

    async def _scalar(self, wanted: Select[Any]) -> Any:
        """Read one value; None if there is no row."""
        return await self._database.read(lambda conn: conn.execute(wanted).scalar())

    async def _execute(self, statement: Update | Delete) -> int:
        """Change rows; return how many."""
        return await self._database.write(lambda conn: conn.execute(statement).rowcount)
