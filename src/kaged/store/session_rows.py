"""`SessionRows`: which sessions there are, what state they are in and which issue they work on."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    false,
    or_,
    select,
    true,
    update,
)

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.kernel.ownership import OPERATORS, AccessAction, Audience, Ownership, may
from kaged.store.database import Database
from kaged.store.prepared import PreparedStatement
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import issues, sessions
from kaged.store.usable_projects import usable_projects
from kaged.store.work_errors import IssueNotFound, NoBoundIssue, SessionNotFound

ID_LIMIT_CHARS = 120
AMBIGUOUS_SHOWN = 5

_C = sessions.c
_ID_TEXT = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_LIMIT_CHARS}}}")
_PAST_ALL = "~"  # sorts behind every letter of an id

# Put together once: that takes several times as long as the database takes to answer.
_OF_ID = select(*_C).where(_C.id == bindparam("wanted"), _C.deleted_at_ms.is_(None))
_BY_ID = PreparedStatement(_OF_ID)
_OF_PROJECT = PreparedStatement(_OF_ID.where(_C.project_id == bindparam("project")))


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
    """One session. `detail` says why it waits; `bound_issue` is the id of its issue.

    A fork shows the entries of `base_session` up to `base_position`, then its own. `parent_*` is
    where it was forked from; `base_session` is who owns that entry, which may be an ancestor.
    """

    id: str
    project_id: str
    kind: str
    status: str
    detail: str | None
    bound_issue: str | None
    created_at_ms: int
    updated_at_ms: int
    title: str | None = None
    model: str | None = None
    operator_id: str | None = None
    parent_session: str | None = None
    parent_entry: str | None = None
    base_session: str | None = None
    base_position: int | None = None
    depth: int = 0
    head_entry: str | None = None
    head_position: int = -1
    deleted_at_ms: int | None = None
    owner: str | None = None
    chat_id: str | None = None
    audience: str = Audience.OPERATOR.value

    @property
    def ownership(self) -> Ownership:
        """Whose it is."""
        return Ownership(self.owner, self.chat_id, Audience(self.audience), self.project_id)

    @property
    def entry_count(self) -> int:
        """How many entries it shows, those of its ancestors among them."""
        return self.head_position + 1


_SESSIONS = RecordTable(sessions, SessionRecord)
_IDS_AT_ONCE = 500


class SessionRows(RowRepository):
    """The sessions of all projects."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.bindings = 0
        """How often issues were bound and unbound here; who remembers a binding looks at it."""

    async def ensure(
        self,
        session_id: str,
        project_id: str,
        kind: SessionKind = SessionKind.PRIMARY,
        ownership: Ownership = OPERATORS,
    ) -> SessionRecord:
        """Note that there is a session of this id; one that is known stays as it is.

        Raises:
            SessionNotFound: the id belongs to a session of another project.
        """
        now_ms = self._clock.now_ms()
        return await self._database.write(
            lambda conn: ensure_session(conn, session_id, project_id, kind, now_ms, ownership)
        )

    async def allowed(
        self, ids: Collection[str], actor: Actor, action: AccessAction
    ) -> frozenset[str]:
        """Return those of some sessions with which an actor may do something."""
        found: set[str] = set()
        listed = sorted(ids)
        for first in range(0, len(listed), _IDS_AT_ONCE):
            some = listed[first : first + _IDS_AT_ONCE]
            wanted = select(_C.id).where(_C.id.in_(some), visible_sessions(actor, action))

            def work(conn: Connection, wanted: Select[Any] = wanted) -> list[str]:
                return [str(id_) for id_ in conn.execute(wanted).scalars()]

            found.update(await self._database.read(work))
        return frozenset(found)

    async def get(self, project_id: str, session_id: str) -> SessionRecord:
        """Return a session. Raises SessionNotFound."""
        return await self._database.read(lambda conn: require_session(conn, project_id, session_id))

    async def of_id(self, session_id: str) -> SessionRecord:
        """Return a session of any project. Raises SessionNotFound."""
        return await self._database.read(lambda conn: session_by_id(conn, session_id))

    async def page(
        self,
        project_id: str,
        kind: SessionKind | None,
        limit: int,
        offset: int,
        actor: Actor | None = None,
    ) -> tuple[Sequence[SessionRecord], int]:
        """Return some sessions that an actor may see, last used first, and how many there are.

        Without an actor the daemon itself asks, and gets all of them.
        """
        conditions = [
            _C.project_id == project_id,
            _C.deleted_at_ms.is_(None),
            visible_sessions(actor),
        ]
        if kind is not None:
            conditions.append(_C.kind == kind.value)
        last_used_first = (_C.updated_at_ms.desc(), _C.id.desc())
        return await self._page(_SESSIONS, conditions, last_used_first, limit, offset)

    async def family(
        self, project_id: str, limit: int, actor: Actor | None = None
    ) -> Sequence[SessionRecord]:
        """Return the sessions that an actor may see, oldest first: parents before their forks."""
        own = _SESSIONS.select(
            _C.project_id == project_id, _C.deleted_at_ms.is_(None), visible_sessions(actor)
        )
        wanted = own.order_by(_C.created_at_ms, _C.id).limit(limit)
        return await self._all(_SESSIONS, wanted)

    async def beginning_with(
        self, project_id: str, prefix: str, actor: Actor | None = None
    ) -> SessionRecord:
        """Return the one session of a project whose id begins so; a whole id is no prefix.

        Raises:
            SessionNotFound, KagedError: `session_ambiguous`; there is none that the actor may see,
                or more than one.
        """

        def work(conn: Connection) -> SessionRecord:
            if not prefix or not _ID_TEXT.fullmatch(prefix):
                raise session_not_found(prefix[:ID_LIMIT_CHARS])
            exact = conn.execute(select(_C.id).where(_C.id == prefix)).scalar()
            if exact is not None:
                found = require_session(conn, project_id, prefix)
                if actor is not None and not may(actor, AccessAction.SEE, found.ownership):
                    raise session_not_found(prefix)  # a foreign one and an unknown one look alike
                return found
            wanted = _SESSIONS.select(
                _C.project_id == project_id,
                _C.deleted_at_ms.is_(None),
                visible_sessions(actor),
                or_(_begins(prefix), _begins(f"ses_{prefix.upper()}")),
            )
            several = _SESSIONS.all(conn, wanted.order_by(_C.id).limit(AMBIGUOUS_SHOWN + 1))
            if not several:
                raise session_not_found(prefix)
            if len(several) > 1:
                raise KagedError(
                    f"Several sessions begin with {prefix!r}.",
                    code="session_ambiguous",
                    fix="give more of the id",
                    matches=[one.id for one in several[:AMBIGUOUS_SHOWN]],
                )
            return several[0]

        return await self._database.read(work)

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

        try:
            return await self._database.write(work)
        finally:
            self.bindings += 1

    async def bound_issue(self, project_id: str, session_id: str) -> str:
        """Return the id of the issue that a session works on.

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
    conn: Connection,
    session_id: str,
    project_id: str,
    kind: SessionKind,
    now_ms: int,
    ownership: Ownership = OPERATORS,
) -> SessionRecord:
    """Do `SessionRows.ensure` as a part of a larger unit of work."""
    if conn.execute(select(_C.id).where(_C.id == session_id)).first() is not None:
        return require_session(conn, project_id, session_id)
    # A workflow's session exists for its one run, which begins with it.
    status = SessionStatus.RUNNING if kind is SessionKind.WORKFLOW else SessionStatus.IDLE
    fresh = SessionRecord(
        session_id,
        project_id,
        kind.value,
        status.value,
        None,
        None,
        now_ms,
        now_ms,
        owner=ownership.owner,
        chat_id=ownership.chat_id,
        audience=ownership.audience.value,
    )
    insert_session(conn, fresh)
    return fresh


def require_session(conn: Connection, project_id: str, session_id: str) -> SessionRecord:
    """Read a session of a project. Raises SessionNotFound."""
    found = _OF_PROJECT.first(conn, {"wanted": session_id, "project": project_id})
    if found is None:
        raise session_not_found(session_id)
    return SessionRecord(*found)


def session_by_id(conn: Connection, session_id: str) -> SessionRecord:
    """Read a session of any project. Raises SessionNotFound."""
    found = find_session(conn, session_id)
    if found is None:
        raise session_not_found(session_id)
    return found


def find_session(conn: Connection, session_id: str) -> SessionRecord | None:
    """Read a session of any project; None when there is none."""
    found = _BY_ID.first(conn, {"wanted": session_id})
    return None if found is None else SessionRecord(*found)


def insert_session(conn: Connection, fresh: SessionRecord) -> None:
    """Write a new session, as a part of a larger unit of work."""
    _SESSIONS.insert(conn, fresh)


def session_not_found(session_id: str) -> SessionNotFound:
    """Return the error for a session that does not exist."""
    return SessionNotFound(
        f"There is no session {session_id} in this project.",
        fix="`kaged session list` shows the sessions of a project",
        session_id=session_id,
    )


def set_session_status(
    conn: Connection, session_id: str, status: SessionStatus, detail: str | None, now_ms: int
) -> None:
    """Set a session's status, as a part of a larger unit of work."""
    conn.execute(
        update(sessions)
        .where(_C.id == session_id)
        .values(status=status.value, detail=detail, updated_at_ms=now_ms)
    )


def visible_sessions(
    actor: Actor | None, action: AccessAction = AccessAction.SEE
) -> ColumnElement[bool]:
    """Return the condition that an actor may do something with a session: `may`, in SQL."""
    if actor is None or not actor.is_person:
        return true()
    if not actor.person_id:
        return false()
    here = _C.chat_id.is_(None) if actor.chat is None else _C.chat_id == actor.chat
    mine = _C.owner == actor.person_id
    if actor.chat_type != PRIVATE_CHAT:
        mine = and_(mine, here)
    shared = and_(here, _C.chat_id.is_not(None), _C.owner != "", _C.audience == Audience.CHAT.value)
    allowed = mine if action is AccessAction.MANAGE else or_(mine, shared)
    return and_(allowed, usable_projects(actor, _C.project_id))


def _begins(prefix: str) -> ColumnElement[bool]:
    return (_C.id >= prefix) & (_C.id < prefix + _PAST_ALL)


def _issue_id(conn: Connection, project_id: str, number: int) -> str:
    found = conn.execute(
        select(issues.c.id).where(issues.c.project_id == project_id, issues.c.number == number)
    ).scalar()
    if found is None:
        raise IssueNotFound.numbered(number)
    return str(found)
