"""`TodoRows`: the todo lists of issues.

As with issues, a plan decides what becomes of the list, inside the one writer's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from kaged.base import Clock
from kaged.store.database import Database
from kaged.store.schema import issue_todos

_C = issue_todos.c
# One that gives up its place is written before the one that takes it: at most one is in progress.
_STARTED = "in_progress"


@dataclass(frozen=True, slots=True)
class TodoRecord:
    """One item of an issue's list. Times are whole Unix seconds."""

    id: str
    issue_id: str
    content: str
    status: str
    kind: str
    phase: str | None
    position: int
    notes: tuple[str, ...]
    origin_agent: str
    created_at: int
    updated_at: int
    completed_at: int | None


TodoPlan = Callable[[tuple[TodoRecord, ...], int], Sequence[TodoRecord]]


class TodoRows:
    """The todos of all issues. None is ever deleted."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def of(self, issue_id: str) -> tuple[TodoRecord, ...]:
        """Return all todos of an issue in list order, abandoned ones too."""
        return await self._database.read(lambda conn: _read(conn, issue_id))

    async def change(self, issue_id: str, plan: TodoPlan) -> tuple[TodoRecord, ...]:
        """Change the list as `plan` says; returns the whole list as it is then.

        The plan gets the list and the time in seconds, and gives back the todos that are new or
        different. If it raises, nothing is changed. It may be asked twice.
        """
        now = self._clock.now_ms() // 1000

        def work(conn: Connection) -> tuple[TodoRecord, ...]:
            known = {todo.id: todo for todo in _read(conn, issue_id)}
            wanted = plan(tuple(known.values()), now)
            for todo in sorted(wanted, key=lambda one: one.status == _STARTED):
                if todo.id not in known:
                    conn.execute(insert(issue_todos).values(_values(todo)))
                elif todo != known[todo.id]:
                    conn.execute(update(issue_todos).where(_C.id == todo.id).values(_values(todo)))
            return _read(conn, issue_id)

        return await self._database.write(work)


def _read(conn: Connection, issue_id: str) -> tuple[TodoRecord, ...]:
    rows = conn.execute(select(*_C).where(_C.issue_id == issue_id).order_by(_C.position, _C.id))
    return tuple(_record(row) for row in rows)


def _record(row: Sequence[Any]) -> TodoRecord:
    fields = dict(zip((column.name for column in _C), row, strict=True))
    fields["notes"] = tuple(json.loads(fields["notes"]))
    return TodoRecord(**fields)


def _values(todo: TodoRecord) -> dict[str, Any]:
    values = {column.name: getattr(todo, column.name) for column in _C}
    values["notes"] = json.dumps(todo.notes)
    return values
