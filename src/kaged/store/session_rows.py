"""`SessionRows`: which sessions there are, what state they are in and which issue they work on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, insert, select, update

from kaged.base import Clock
from kaged.store.database import Database
from kaged.store.schema import issues, sessions
from kaged.store.work_errors import IssueNotFound, NoBoundIssue, SessionNotFound

_C = sessions.c


class SessionKind(StrEnum):
    """What a session is for."""

    PRIMARY = "primary"
    WORKFLOW = "workflow"


class SessionStatus(StrEnum):
    """What a session does. At a `checkpoint` it waits for the operator."""

    IDLE = "idle"
    RUNNING = "running"
    CHECKPOINT = "checkpoint"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session. `detail` says why it waits; `bound_issue` is the id of its issue."""

    id: str
    project_id: str
    kind: str
    status: str
    detail: str | None
    bound_issue: str | None
    created_at_ms: int
    updated_at_ms: int


class SessionRows:
    """The sessions of all projects."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def ensure(
        self, session_id: str, project_id: str, kind: SessionKind = SessionKind.PRIMARY
    ) -> SessionRecord:
        """Note that there is a session of this id; one that is known stays as it is.

        Raises:
            SessionNotFound: the id belongs to a session of another project.
        """
        now_ms = self._clock.now_ms()
        return await self._database.write(
            lambda conn: ensure_session(conn, session_id, project_id, kind, now_ms)
        )

    async def get(self, project_id: str, session_id: str) -> SessionRecord:
        """Give a session. Raises SessionNotFound."""
        return await self._database.read(lambda conn: require_session(conn, project_id, session_id))

    async def bind(self, project_id: str, session_id: str, number: int | None) -> SessionRecord:
        """Let a session work on an issue, or on none.

        Raises:
            SessionNotFound, IssueNotFound: the project has no such session or issue.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> SessionRecord:
            require_session(conn, project_id, session_id)
            issue_id = None if number is None else _issue_id(conn, project_id, number)
            conn.execute(
                update(sessions)
                .where(_C.id == session_id)
                .values(bound_issue=issue_id, updated_at_ms=now_ms)
            )
            return require_session(conn, project_id, session_id)

        return await self._database.write(work)

    async def bound_issue(self, project_id: str, session_id: str) -> str:
        """Give the id of the issue that a session works on.

        Raises:
            SessionNotFound: there is no such session in the project.
            NoBoundIssue: it works on none.
        """
        found = await self.get(project_id, session_id)
        if found.bound_issue is None:
            raise NoBoundIssue(
                "This session is bound to no issue, so it has no todo list.",
                fix="ask the operator to bind an issue to the session: `kaged issue bind NUMBER "
                "--session SESSION`",
                session_id=session_id,
            )
        return found.bound_issue


def ensure_session(
    conn: Connection, session_id: str, project_id: str, kind: SessionKind, now_ms: int
) -> SessionRecord:
    """Do `SessionRows.ensure` as a part of a larger unit of work."""
    found = conn.execute(select(*_C).where(_C.id == session_id)).first()
    if found is not None:
        return require_session(conn, project_id, session_id)
    # A workflow's session exists for its one run, which begins with it.
    status = SessionStatus.RUNNING if kind is SessionKind.WORKFLOW else SessionStatus.IDLE
    fresh = SessionRecord(
        session_id, project_id, kind.value, status.value, None, None, now_ms, now_ms
    )
    conn.execute(
        insert(sessions).values({column.name: getattr(fresh, column.name) for column in _C})
    )
    return fresh


def require_session(conn: Connection, project_id: str, session_id: str) -> SessionRecord:
    """Read a session of a project. Raises SessionNotFound."""
    found = conn.execute(
        select(*_C).where(_C.id == session_id, _C.project_id == project_id)
    ).first()
    if found is None:
        raise SessionNotFound(
            f"There is no session {session_id} in this project.",
            fix="only sessions that the daemon started can be used",
            session_id=session_id,
        )
    return SessionRecord(*found)


def set_session_status(
    conn: Connection, session_id: str, status: SessionStatus, detail: str | None, now_ms: int
) -> None:
    """Give a session another status, as a part of a larger unit of work."""
    conn.execute(
        update(sessions)
        .where(_C.id == session_id)
        .values(status=status.value, detail=detail, updated_at_ms=now_ms)
    )


def _issue_id(conn: Connection, project_id: str, number: int) -> str:
    found = conn.execute(
        select(issues.c.id).where(issues.c.project_id == project_id, issues.c.number == number)
    ).scalar()
    if found is None:
        raise IssueNotFound.numbered(number)
    return str(found)


__all__ = [
    "SessionKind",
    "SessionRecord",
    "SessionRows",
    "SessionStatus",
    "ensure_session",
    "require_session",
    "set_session_status",
]
