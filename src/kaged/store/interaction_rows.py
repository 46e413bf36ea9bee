"""`InteractionRows`: the questions of agents among the requests of the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, select, update

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.store.inbox_rows import (
    REQUESTS,
    Along,
    InboxRequest,
    RequestKind,
    RequestState,
    answerable,
)
from kaged.store.rows import RowRepository
from kaged.store.schema import inbox_requests
from kaged.store.session_rows import (
    SessionKind,
    SessionStatus,
    ensure_session,
    set_session_status,
)
from kaged.store.work_errors import InteractionNotFound

_C = inbox_requests.c


class InteractionKind(StrEnum):
    """How the operator is asked."""

    ASK = RequestKind.QUESTION.value
    FORM = RequestKind.FORM.value
    CHECKPOINT = RequestKind.CHECKPOINT.value


class InteractionStatus(StrEnum):
    """Whether the operator has answered. `withdrawn`: nobody wants an answer any more."""

    PENDING = RequestState.PENDING.value
    ANSWERED = RequestState.ANSWERED.value
    WITHDRAWN = RequestState.WITHDRAWN.value


@dataclass(frozen=True, slots=True)
class InteractionRecord:
    """One question and, once there is one, its answer."""

    request_id: str
    project_id: str
    session_id: str
    run_id: str
    caller: str
    kind: InteractionKind
    payload: JsonObject
    status: InteractionStatus
    answer: JsonObject | None
    answered_by: str | None
    created_at_ms: int
    answered_at_ms: int | None
    delivered_at_ms: int | None


_QUESTIONS = _C.kind.in_([one.value for one in InteractionKind])
_UNDELIVERED = (_QUESTIONS, _C.state != RequestState.PENDING.value, _C.taken_at_ms.is_(None))


class InteractionRows(RowRepository):
    """The questions of all projects; at most one is pending per session."""

    async def mark_delivered(self, request_id: str) -> None:
        """Note that the agent got the answer."""
        wanted = update(inbox_requests).where(_C.id == request_id, _C.taken_at_ms.is_(None))
        await self._execute(wanted.values(taken_at_ms=self._clock.now_ms()))

    async def get(
        self, project_id: str, request_id: str, actor: Actor | None = None
    ) -> InteractionRecord:
        """Return a question of a project that an actor may answer. Raises InteractionNotFound."""
        own = (_C.id == request_id, _C.project_id == project_id, _QUESTIONS, answerable(actor))
        found = await self._first(REQUESTS, *own)
        if found is None:
            raise InteractionNotFound(
                f"There is no question {request_id} in this project.",
                fix="list what is pending",
                request_id=request_id,
            )
        return interaction_of(found)

    async def pending_of(self, session_id: str) -> str | None:
        """Return what a session waits for; None when it waits for nothing."""
        wanted = select(_C.id).where(
            _C.slot == session_slot(session_id), _C.state == RequestState.PENDING.value
        )
        return await self._scalar(wanted)

    async def undelivered(self, session_id: str) -> Sequence[InteractionRecord]:
        """Return the answers that a session's agent has not got yet, oldest first."""
        return await self._oldest_first(_C.chat_id == session_id, *_UNDELIVERED)

    async def all_undelivered(self) -> Sequence[InteractionRecord]:
        """Return, of every session, the answers not yet delivered to its agent, oldest first."""
        return await self._oldest_first(*_UNDELIVERED)

    async def page(
        self,
        project_id: str,
        status: InteractionStatus | None,
        limit: int,
        offset: int,
        actor: Actor | None = None,
    ) -> tuple[Sequence[InteractionRecord], int]:
        """Return some questions that an actor may answer, newest first, and how many there are."""
        conditions = [_C.project_id == project_id, _QUESTIONS, answerable(actor)]
        if status is not None:
            conditions.append(_C.state == status.value)
        newest_first = (_C.created_at_ms.desc(), _C.id.desc())
        found, total = await self._page(REQUESTS, conditions, newest_first, limit, offset)
        return [interaction_of(one) for one in found], total

    async def _oldest_first(self, *where: Any) -> Sequence[InteractionRecord]:
        wanted = REQUESTS.select(*where).order_by(_C.answered_at_ms, _C.id)
        return [interaction_of(one) for one in await self._all(REQUESTS, wanted)]


def session_slot(session_id: str) -> str:
    """Return the slot in which the one question of a session waits."""
    return f"session:{session_id}"


def questions_of(session_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for every question that a session's agents have asked."""
    return (_C.chat_id == session_id, _QUESTIONS)


def pause_session(project_id: str, session_id: str, kind: InteractionKind, request: str) -> Along:
    """Return what is written with a question: its session waits for the answer."""
    place = "" if kind is InteractionKind.CHECKPOINT else "interaction:"

    def pause(conn: Connection, now_ms: int) -> None:
        ensure_session(conn, session_id, project_id, SessionKind.PRIMARY, now_ms)
        detail = f"{place}{kind}:{request}"
        set_session_status(conn, session_id, SessionStatus.CHECKPOINT, detail, now_ms)

    return pause


def release_session(session_id: str) -> Along:
    """Return what is written with an answer: its session may go on."""
    return lambda conn, now_ms: set_session_status(
        conn, session_id, SessionStatus.IDLE, None, now_ms
    )


def interaction_of(request: InboxRequest) -> InteractionRecord:
    """Return a request of the inbox as the question that it is."""
    facts = cast("dict[str, Any]", request.subject)
    assert request.project_id is not None
    assert request.chat_id is not None
    return InteractionRecord(
        request.id, request.project_id, request.chat_id, facts["run_id"], facts["caller"],
        InteractionKind(request.kind.value), facts["payload"],
        InteractionStatus(request.state.value), request.answer, request.answered_by,
        request.created_at_ms, request.answered_at_ms, request.taken_at_ms,
    )  # fmt: skip
