"""`PreparedStatement`: a statement put together once and run for what the driver costs.

SQLAlchemy finds, binds and wraps a statement anew at every execution, which takes several times as
long as SQLite does for one row. The few statements that every step of every agent runs are written
with it all the same, and compiled here, so that they stay portable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect


class PreparedStatement:
    """Runs one statement, with values by name, inside the transaction of a connection.

    Values and rows pass as the driver has them: for columns of text and whole numbers only.
    """

    __slots__ = ("_dialect", "_fixed", "_names", "_sql", "_statement")

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._dialect = ""
        self._sql = ""
        self._names: tuple[str, ...] | None = None
        self._fixed: dict[str, Any] = {}

    def run(self, conn: Connection, values: Mapping[str, object] | None = None) -> Any:
        """Execute it; returns the driver's cursor."""
        if self._dialect != conn.dialect.name:
            self._compile(conn.dialect)
        given = {**self._fixed, **values} if values else self._fixed
        bound = given if self._names is None else [given[name] for name in self._names]
        cursor = conn.connection.cursor()
        cursor.execute(self._sql, bound)
        return cursor

    def first(self, conn: Connection, values: Mapping[str, object] | None = None) -> Any:
        """Execute it and return its first row; None if there is none."""
        cursor = self.run(conn, values)
        found = cursor.fetchone()
        cursor.close()
        return found

    def _compile(self, dialect: Dialect) -> None:
        compiled: Any = self._statement.compile(dialect=dialect)
        # A value that must be given has None here; what the statement itself says has its own.
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._names = tuple(compiled.positiontup) if compiled.positional else None
        self._sql = compiled.string
        self._dialect = dialect.name  # last: reading threads that come meanwhile compile it too
