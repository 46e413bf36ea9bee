"""`TodoRows`: the todo lists of issues.

As with issues, a plan decides what becomes of the list, inside the one writer's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
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

_TODOS = RecordTable(
    issue_todos,
    TodoRecord,
    json_columns=["notes"],
    reads={"notes": lambda text: tuple(json.loads(text))},
)


class TodoRows(RowRepository):
    """The todos of all issues. None is ever deleted."""

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
                if todo != known.get(todo.id):
                    _TODOS.put(conn, todo)
            return _read(conn, issue_id)

        return await self._database.write(work)


def _read(conn: Connection, issue_id: str) -> tuple[TodoRecord, ...]:
    wanted = _TODOS.select(_C.issue_id == issue_id).order_by(_C.position, _C.id)
    return tuple(_TODOS.all(conn, wanted))
