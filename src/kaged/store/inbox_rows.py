"""`InboxRows`: what waits for a person, of every kind, and what the person said."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import StrEnum

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    false,
    or_,
    select,
    true,
    update,
)

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.kernel.ownership import may_answer
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import inbox_requests
from kaged.store.usable_projects import usable_projects

_C = inbox_requests.c
KEPT_AFTER_EXPIRY_MS = 7 * 24 * 3600 * 1000

Along = Callable[[Connection, int], None]
"""What is written in the same unit as a request or its answer; takes the time in milliseconds."""


class RequestKind(StrEnum):
    """What a person is asked for."""

    QUESTION = "ask"
    FORM = "form"
    CHECKPOINT = "checkpoint"
    PLUGIN_CONSENT = "plugin_consent"
    PROJECT_CONSENT = "project_consent"
    ACCOUNT_APPROVAL = "account_approval"
    DIALOG = "dialog"
    MCP_TOOLS = "mcp_tools"
    TRUST = "trust"
    SKILL_CONSENT = "skill_consent"
    ACCOUNT_RELINK = "account_relink"
    CALL_APPROVAL = "call_approval"
    ACCESS = "access"


class RequestState(StrEnum):
    """How far a request has come; all but `pending` are final unless it is asked again."""

    PENDING = "pending"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class RequestNotFound(KagedError):
    """There is no such request, or it is not this person's."""

    code = "inbox_request_not_found"

    @classmethod
    def of_id(cls, request_id: str) -> RequestNotFound:
        """Return the error for a request that is not there."""
        return cls(
            f"There is no request {request_id} in the inbox.",
            fix="`kaged inbox` lists what is waiting.",
            id=request_id,
        )


class RequestClosed(KagedError):
    """The request has its answer, was withdrawn, or has expired."""

    code = "inbox_request_closed"


class RequestPending(KagedError):
    """Another request waits in the same place."""

    code = "inbox_request_pending"


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """A request on its way to a person.

    `owner` is the person who may answer, None for the operator. `subject` holds the facts of the
    kind. With `choices` the answer is `{"choice": one of them}`; without, `answer_schema` says what
    it is. At most one request waits per `slot`. What a person was asked for in a chat (`asked_in`)
    is answered there, or in private.
    """

    id: str
    kind: RequestKind
    title: str
    details: Sequence[str] = ()
    choices: Sequence[str] = ()
    answer_schema: JsonObject | None = None
    subject: JsonObject | None = None
    owner: str | None = None
    project_id: str | None = None
    chat_id: str | None = None
    slot: str | None = None
    expires_at_ms: int | None = None
    asked_in: str | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that an answer is about."""
        meant: list[JsonValue] = [
            self.kind.value, self.title, list(self.details), list(self.choices),
            self.answer_schema, self.subject, self.owner, self.project_id, self.chat_id,
        ]  # fmt: skip
        text = json.dumps(meant, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class InboxRequest:
    """One request and, once there is one, its answer. `taken_at_ms`: the asker has got it."""

    id: str
    kind: RequestKind
    title: str
    details: Sequence[str]
    choices: Sequence[str]
    answer_schema: JsonObject | None
    subject: JsonObject
    owner: str | None
    project_id: str | None
    chat_id: str | None
    slot: str | None
    digest: str
    state: RequestState
    answer: JsonObject | None
    answered_by: str | None
    created_at_ms: int
    expires_at_ms: int | None
    answered_at_ms: int | None
    taken_at_ms: int | None
    asked_in: str | None = None

    @classmethod
    def of(cls, draft: RequestDraft, now_ms: int) -> InboxRequest:
        """Return a draft as a request that waits from now on."""
        return cls(
            draft.id, draft.kind, draft.title, list(draft.details), list(draft.choices),
            draft.answer_schema, draft.subject or {}, draft.owner, draft.project_id, draft.chat_id,
            draft.slot, draft.digest, RequestState.PENDING, None, None, now_ms,
            draft.expires_at_ms, None, None, draft.asked_in,
        )  # fmt: skip

    def at(self, now_ms: int) -> InboxRequest:
        """Return the request as it is now: one whose time is over has expired."""
        over = self.expires_at_ms is not None and self.expires_at_ms <= now_ms
        if self.state is RequestState.PENDING and over:
            return replace(self, state=RequestState.EXPIRED)
        return self

    def closed(
        self,
        state: RequestState,
        answer: JsonObject | None,
        by: str | None,
        digest: str | None,
        now_ms: int,
    ) -> InboxRequest:
        """Return the request with its end.

        Raises:
            RequestClosed: it has one already, or has expired.
            KagedError: `inbox_request_changed`; the answer is to something else than is asked now.
        """
        self.require_open(digest, now_ms)
        return replace(self, state=state, answer=answer, answered_by=by, answered_at_ms=now_ms)

    def require_open(self, digest: str | None, now_ms: int) -> None:
        """Refuse an answer that comes too late, or is to something else. Raises as `closed`."""
        found = self.at(now_ms)
        if found.state is not RequestState.PENDING:
            raise RequestClosed(
                f"This was already {found.state}."
                if found.state is not RequestState.EXPIRED
                else "This has expired.",
                fix="look at what else is pending",
                id=self.id,
                state=found.state.value,
            )
        if digest is not None and digest != self.digest:
            raise KagedError(
                "What is asked has changed since it was shown.",
                code="inbox_request_changed",
                fix="look at it again and answer again",
                id=self.id,
                digest=self.digest,
            )


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests are wanted. Everything that is given must hold.

    `actor` is who looks: people see their own, as `kernel.ownership.may_answer` says; without one
    everything is wanted. With `unexpired_at_ms` only those whose time is not over then.
    """

    actor: Actor | None = None
    owner: str | None = None
    project_id: str | None = None
    kinds: Collection[RequestKind] = ()
    state: RequestState | None = None
    unexpired_at_ms: int | None = None

    def takes(self, request: InboxRequest) -> bool:
        """Return whether a request is wanted."""
        now_ms, ends = self.unexpired_at_ms, request.expires_at_ms
        return (
            self.owner in {None, request.owner}
            and self._answerable(request)
            and self.project_id in {None, request.project_id}
            and (not self.kinds or request.kind in self.kinds)
            and self.state in {None, request.state}
            and (now_ms is None or ends is None or ends > now_ms)
        )

    def _answerable(self, request: InboxRequest) -> bool:
        actor = self.actor
        return actor is None or may_answer(
            actor, request.owner, request.asked_in, request.project_id
        )

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the same as conditions of a query."""
        found = [answerable(self.actor)]
        if self.owner is not None:
            found.append(_C.owner == self.owner)
        if self.project_id is not None:
            found.append(_C.project_id == self.project_id)
        if self.kinds:
            found.append(_C.kind.in_([one.value for one in self.kinds]))
        if self.state is not None:
            found.append(_C.state == self.state.value)
        if self.unexpired_at_ms is not None:
            found.append(_C.expires_at_ms.is_(None) | (_C.expires_at_ms > self.unexpired_at_ms))
        return found


def answerable(actor: Actor | None) -> ColumnElement[bool]:
    """Return the condition that an actor may answer: `may_answer`, in SQL."""
    if actor is None or not actor.is_person:
        return true()
    if not actor.person_id:
        return false()
    mine = and_(_C.owner == actor.person_id, usable_projects(actor, _C.project_id))
    if actor.chat_type == PRIVATE_CHAT:
        return mine
    return and_(mine, or_(_C.asked_in.is_(None), _C.asked_in == actor.chat))


REQUESTS = RecordTable(
    inbox_requests,
    InboxRequest,
    json_columns=("details", "choices", "answer_schema", "subject", "answer"),
    reads={"kind": RequestKind, "state": RequestState},
)


class InboxRows(RowRepository):
    """The requests that outlive the daemon's process."""

    async def add(
        self, draft: RequestDraft, along: Along | None = None, limit: int | None = None
    ) -> InboxRequest | None:
        """Store a request; None when its owner has `limit` unexpired ones of its kind already.

        Raises:
            RequestPending: another one waits in its slot.
            StoreConflict: there is one of its id.
        """
        now_ms = self._clock.now_ms()
        made = InboxRequest.of(draft, now_ms)

        def work(conn: Connection) -> InboxRequest | None:
            if made.slot is not None:
                wanted = select(_C.id).where(
                    _C.slot == made.slot, _C.state == RequestState.PENDING.value
                )
                waiting = conn.execute(wanted).scalar()
                if waiting is not None:
                    raise RequestPending("Another request waits in this place.", id=waiting)
            mine = (_C.kind == made.kind.value, _C.owner == made.owner, _C.expires_at_ms > now_ms)
            if limit is not None and REQUESTS.count(conn, *mine) >= limit:
                return None
            REQUESTS.insert(conn, made)
            if along is not None:
                along(conn, now_ms)
            return made

        return await self._database.write(work)

    async def put(self, request: InboxRequest) -> None:
        """Store a request in place of the one of its id."""
        await self._database.write(lambda conn: REQUESTS.put(conn, request))

    async def close(
        self,
        request_id: str,
        state: RequestState,
        answer: JsonObject | None = None,
        *,
        by: str | None,
        digest: str | None = None,
        along: Along | None = None,
    ) -> InboxRequest:
        """Store how a request ended, once.

        Raises:
            RequestNotFound: there is none of this id.
            RequestClosed, KagedError: as `InboxRequest.closed`.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> InboxRequest:
            closed = _one(conn, request_id).closed(state, answer, by, digest, now_ms)
            REQUESTS.put(conn, closed)
            if along is not None:
                along(conn, now_ms)
            return closed

        return await self._database.write(work)

    async def take(self, request_id: str) -> bool:
        """Note that the asker has got the answer; False when it was taken, or expired, before."""
        now_ms = self._clock.now_ms()
        wanted = (
            update(inbox_requests)
            .where(_C.id == request_id, _C.taken_at_ms.is_(None))
            .where(_C.state == RequestState.ANSWERED.value)
            .where(_C.expires_at_ms.is_(None) | (_C.expires_at_ms > now_ms))
        )
        return await self._execute(wanted.values(taken_at_ms=now_ms)) > 0

    async def expire(self) -> Sequence[InboxRequest]:
        """Note which requests expired; return these. Those of long ago are deleted."""
        now_ms = self._clock.now_ms()
        due = (_C.state == RequestState.PENDING.value, _C.expires_at_ms <= now_ms)
        if not await self._database.read(lambda conn: REQUESTS.count(conn, *due)):
            return ()  # most of the time; a look costs less than a write

        def work(conn: Connection) -> Sequence[InboxRequest]:
            found = REQUESTS.all(conn, REQUESTS.select(*due))
            expired = RequestState.EXPIRED
            conn.execute(update(inbox_requests).where(*due).values(state=expired.value))
            old = _C.expires_at_ms <= now_ms - KEPT_AFTER_EXPIRY_MS
            conn.execute(delete(inbox_requests).where(old))
            return [replace(one, state=expired) for one in found]

        return await self._database.write(work)

    async def get(self, request_id: str) -> InboxRequest:
        """Return one request. Raises RequestNotFound."""
        return await self._database.read(lambda conn: _one(conn, request_id))

    async def page(
        self, wanted: RequestFilter, limit: int, offset: int
    ) -> tuple[Sequence[InboxRequest], int]:
        """Return some requests, newest first, and how many there are in all."""
        newest_first = (_C.created_at_ms.desc(), _C.id.desc())
        return await self._page(REQUESTS, wanted.conditions(), newest_first, limit, offset)


def _one(conn: Connection, request_id: str) -> InboxRequest:
    found = REQUESTS.first(conn, _C.id == request_id)
    if found is None:
        raise RequestNotFound.of_id(request_id)
    return found
