"""`IssueRows`: the issues of projects, with everything that was said about them and done to them.

What may be changed is not decided here: `change` runs the caller's plan in the one writer's
transaction, on the row as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import issue_updates, issues
from kaged.store.text_query import TextQuery
from kaged.store.work_errors import IssueNotFound

UPDATES_LIMIT = 1000  # the newest ones; an issue with more says how many there are before

_C = issues.c
_U = issue_updates.c


@dataclass(frozen=True, slots=True)
class IssueRecord:
    """One issue. Times are whole Unix seconds."""

    id: str
    project_id: str
    number: int
    title: str
    body: str
    original_body: str | None
    status: str
    assignment: str | None
    created_by: str
    created_at: int
    updated_at: int
    resolved_at: int | None
    resolved_by: str | None


@dataclass(frozen=True, slots=True)
class IssueUpdate:
    """Something that was said about an issue or done to it."""

    id: str
    author: str
    kind: str
    body: str | None
    metadata: JsonObject | None
    visibility: str
    created_at: int


@dataclass(frozen=True, slots=True)
class UpdateDraft:
    """An update that is about to be written."""

    author: str
    kind: str
    body: str | None = None
    metadata: JsonObject | None = None
    visibility: str = "all"


@dataclass(frozen=True, slots=True)
class IssueChange:
    """What a plan wants done: new values of columns, and the updates that tell of it."""

    values: dict[str, Any] = field(default_factory=dict)
    updates: tuple[UpdateDraft, ...] = ()


@dataclass(frozen=True, slots=True)
class IssueFilter:
    """Which issues are wanted."""

    statuses: frozenset[str]
    search: TextQuery | None = None


@dataclass(frozen=True, slots=True)
class IssueDetail:
    """One issue with its updates, oldest first. `omitted` older ones are left out."""

    issue: IssueRecord
    updates: tuple[IssueUpdate, ...]
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change made: the issue as it was and is, and the updates that were written."""

    before: IssueRecord
    issue: IssueRecord
    updates: tuple[IssueUpdate, ...]


Plan = Callable[[IssueRecord], IssueChange]

_ISSUES = RecordTable(issues, IssueRecord)
_UPDATES = RecordTable(issue_updates, IssueUpdate, json_columns=("metadata",))


class IssueRows(RowRepository):
    """The issues of all projects. Numbers count from 1 in each of them."""

    async def create(
        self, project_id: str, title: str, body: str, status: str, created_by: str
    ) -> IssueRecord:
        """File an issue under the project's next number."""
        now = self.now()
        issue_id = self._ids.ulid()

        def work(conn: Connection) -> IssueRecord:
            last = select(func.max(_C.number)).where(_C.project_id == project_id)
            number = int(conn.execute(last).scalar() or 0) + 1
            record = IssueRecord(
                issue_id, project_id, number, title, body, None, status, None, created_by,
                now, now, None, None,
            )  # fmt: skip
            row = _ISSUES.insert(conn, record, touched=_touch(conn, project_id))
            self._put_text(conn, row, None, record)
            return record

        return await self._database.write(work)

    async def find(
        self, project_id: str, wanted: IssueFilter, limit: int, offset: int
    ) -> tuple[Sequence[IssueRecord], int]:
        """Return a page of issues, last changed first, and how many there are in all."""
        conditions: list[ColumnElement[bool]] = [
            _C.project_id == project_id,
            _C.status.in_(sorted(wanted.statuses)),
        ]
        if wanted.search is not None:
            conditions.append(self._database.backend.text_match(_C.seq, wanted.search))
        last_changed_first = (_C.touched.desc(), _C.number.desc())
        return await self._page(_ISSUES, conditions, last_changed_first, limit, offset)

    async def get(self, project_id: str, number: int, visibility: str | None = None) -> IssueDetail:
        """Return one issue with its updates, of one visibility if it is given.

        Raises IssueNotFound.
        """

        def work(conn: Connection) -> IssueDetail:
            issue = _require(conn, project_id, number)
            own = [_U.issue_id == issue.id]
            if visibility is not None:
                own.append(_U.visibility == visibility)
            newest = _UPDATES.select(*own).order_by(_U.seq.desc()).limit(UPDATES_LIMIT)
            updates = tuple(_UPDATES.all(conn, newest))[::-1]
            total = _UPDATES.count(conn, *own) if len(updates) == UPDATES_LIMIT else 0
            return IssueDetail(issue, updates, max(0, total - len(updates)))

        return await self._database.read(work)

    async def number_of(self, issue_id: str) -> int | None:
        """Return the number of an issue by its id."""
        return await self._scalar(select(_C.number).where(_C.id == issue_id))

    async def change(self, project_id: str, number: int, plan: Plan) -> Changed:
        """Change an issue as `plan` says, all of it or, if the plan raises, nothing.

        The plan sees the issue as it is in the transaction and does nothing but answer: it may be
        asked twice.

        Raises:
            IssueNotFound: there is no such issue.
        """
        now = self.now()

        def work(conn: Connection) -> Changed:
            before = _require(conn, project_id, number)
            wanted = plan(before)
            written = tuple(self._write(conn, before.id, draft, now) for draft in wanted.updates)
            conn.execute(
                update(issues)
                .where(_C.id == before.id)
                .values(**wanted.values, updated_at=now, touched=_touch(conn, project_id))
            )
            after = _require(conn, project_id, number)
            if (before.title, before.body) != (after.title, after.body):
                row = conn.execute(select(_C.seq).where(_C.id == before.id)).scalar()
                assert row is not None
                self._put_text(conn, row, before, after)
            return Changed(before, after, written)

        return await self._database.write(work)

    def _put_text(
        self, conn: Connection, row: int, old: IssueRecord | None, new: IssueRecord
    ) -> None:
        self._database.backend.put_text(
            conn, issues.name, row, None if old is None else _words(old), _words(new)
        )

    def _write(self, conn: Connection, issue_id: str, draft: UpdateDraft, now: int) -> IssueUpdate:
        made = IssueUpdate(
            self._ids.ulid(), draft.author, draft.kind, draft.body, draft.metadata,
            draft.visibility, now,
        )  # fmt: skip
        _UPDATES.insert(conn, made, issue_id=issue_id)
        return made

    def now(self) -> int:
        """Return the time as these rows have it: whole Unix seconds."""
        return self._clock.now_ms() // 1000


def _require(conn: Connection, project_id: str, number: int) -> IssueRecord:
    found = _ISSUES.first(conn, _C.project_id == project_id, _C.number == number)
    if found is None:
        raise IssueNotFound.numbered(number)
    return found


def _words(issue: IssueRecord) -> dict[str, str]:
    return {"title": issue.title, "body": issue.body}


def _touch(conn: Connection, project_id: str) -> int:
    """Count on: times are too coarse to tell what was changed last."""
    last = select(func.max(_C.touched)).where(_C.project_id == project_id)
    return int(conn.execute(last).scalar() or 0) + 1
