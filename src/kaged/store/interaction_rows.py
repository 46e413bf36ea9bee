"""`InteractionRows`: what agents asked the operator, and what the operator said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlalchemy import Connection, select, update

from kaged.base import Clock, JsonObject, KagedError
from kaged.store.database import Database
from kaged.store.record_table import RecordTable
from kaged.store.schema import interactions
from kaged.store.session_rows import (
    SessionKind,
    SessionStatus,
    ensure_session,
    set_session_status,
)
from kaged.store.work_errors import InteractionNotFound

_C = interactions.c


class InteractionKind(StrEnum):
    """How the operator is asked."""

    ASK = "ask"
    FORM = "form"
    CHECKPOINT = "checkpoint"


class InteractionStatus(StrEnum):
    """Whether the operator has answered. `withdrawn`: nobody wants an answer any more."""

    PENDING = "pending"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class InteractionDraft:
    """A question on its way to the operator."""

    request_id: str
    project_id: str
    session_id: str
    run_id: str
    caller: str
    kind: InteractionKind
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class InteractionRecord(InteractionDraft):
    """One question and, once there is one, its answer."""

    status: InteractionStatus
    answer: JsonObject | None
    answered_by: str | None
    created_at_ms: int
    answered_at_ms: int | None
    delivered_at_ms: int | None


_INTERACTIONS = RecordTable(
    interactions,
    InteractionRecord,
    json_columns=("payload", "answer"),
    reads={"kind": InteractionKind, "status": InteractionStatus},
)
_UNDELIVERED = (_C.status != InteractionStatus.PENDING.value, _C.delivered_at_ms.is_(None))


class InteractionRows:
    """The interactions of all projects; at most one is pending per session."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def open(self, draft: InteractionDraft) -> InteractionRecord:
        """Store a question and let its session wait for the answer, in one unit.

        Raises:
            KagedError: `interaction_pending`; the session waits for another answer.
        """
        now_ms = self._clock.now_ms()
        made = InteractionRecord(
            draft.request_id, draft.project_id, draft.session_id, draft.run_id, draft.caller,
            draft.kind, draft.payload, InteractionStatus.PENDING, None, None, now_ms, None, None,
        )  # fmt: skip

        def work(conn: Connection) -> None:
            ensure_session(conn, made.session_id, made.project_id, SessionKind.PRIMARY, now_ms)
            waiting = _pending_of(conn, made.session_id)
            if waiting is not None:
                raise KagedError(
                    "This session waits for the operator already.",
                    code="interaction_pending",
                    fix="wait for the answer to what was asked first",
                    request_id=waiting,
                )
            _INTERACTIONS.insert(conn, made)
            place = "" if made.kind is InteractionKind.CHECKPOINT else "interaction:"
            detail = f"{place}{made.kind}:{made.request_id}"
            set_session_status(conn, made.session_id, SessionStatus.CHECKPOINT, detail, now_ms)

        await self._database.write(work)
        return made

    async def close(
        self,
        project_id: str,
        request_id: str,
        status: InteractionStatus,
        answer: JsonObject | None,
        by: str,
    ) -> InteractionRecord:
        """Store the answer, or that none is wanted; the session may go on.

        Raises:
            InteractionNotFound: there is no such question.
            KagedError: `interaction_closed`; it has been answered or withdrawn.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> InteractionRecord:
            found = _one(conn, project_id, request_id)
            require_open(found)
            closed = replace(
                found, status=status, answer=answer, answered_by=by, answered_at_ms=now_ms
            )
            _INTERACTIONS.put(conn, closed)
            set_session_status(conn, found.session_id, SessionStatus.IDLE, None, now_ms)
            return closed

        return await self._database.write(work)

    async def mark_delivered(self, request_id: str) -> None:
        """Note that the agent got the answer."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> None:
            conn.execute(
                update(interactions)
                .where(_C.request_id == request_id, _C.delivered_at_ms.is_(None))
                .values(delivered_at_ms=now_ms)
            )

        await self._database.write(work)

    async def get(self, project_id: str, request_id: str) -> InteractionRecord:
        """Return a question of a project. Raises InteractionNotFound."""
        return await self._database.read(lambda conn: _one(conn, project_id, request_id))

    async def pending_of(self, session_id: str) -> str | None:
        """Return what a session waits for; None when it waits for nothing."""
        return await self._database.read(lambda conn: _pending_of(conn, session_id))

    async def undelivered(self, session_id: str) -> Sequence[InteractionRecord]:
        """Return the answers that a session's agent has not got yet, oldest first."""
        wanted = _INTERACTIONS.select(_C.session_id == session_id, *_UNDELIVERED)
        oldest_first = wanted.order_by(_C.answered_at_ms, _C.request_id)
        return await self._database.read(lambda conn: _INTERACTIONS.all(conn, oldest_first))

    async def all_undelivered(self) -> Sequence[InteractionRecord]:
        """Return, of every session, the answers not yet delivered to its agent, oldest first."""
        wanted = _INTERACTIONS.select(*_UNDELIVERED)
        oldest_first = wanted.order_by(_C.answered_at_ms, _C.request_id)
        return await self._database.read(lambda conn: _INTERACTIONS.all(conn, oldest_first))

    async def page(
        self, project_id: str, status: InteractionStatus | None, limit: int, offset: int
    ) -> tuple[Sequence[InteractionRecord], int]:
        """Return some questions of a project, newest first, and how many there are in all."""
        conditions = [_C.project_id == project_id]
        if status is not None:
            conditions.append(_C.status == status.value)
        newest_first = (_C.created_at_ms.desc(), _C.request_id.desc())
        return await self._database.read(
            lambda conn: _INTERACTIONS.page(conn, conditions, newest_first, limit, offset)
        )


def require_open(record: InteractionRecord) -> None:
    """Raise `interaction_closed` if a question has its answer already."""
    if record.status is not InteractionStatus.PENDING:
        raise KagedError(
            f"This was already {record.status}.",
            code="interaction_closed",
            fix="look at what else is pending",
            request_id=record.request_id,
            status=record.status.value,
        )


def _pending_of(conn: Connection, session_id: str) -> str | None:
    wanted = select(_C.request_id).where(
        _C.session_id == session_id, _C.status == InteractionStatus.PENDING.value
    )
    return conn.execute(wanted).scalar()


def _one(conn: Connection, project_id: str, request_id: str) -> InteractionRecord:
    found = _INTERACTIONS.first(conn, _C.request_id == request_id, _C.project_id == project_id)
    if found is None:
        raise InteractionNotFound(
            f"There is no question {request_id} in this project.",
            fix="list what is pending",
            request_id=request_id,
        )
    return found
