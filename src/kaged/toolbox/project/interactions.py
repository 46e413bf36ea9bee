"""`InteractionService`: agents ask, the operator answers, and neither is lost when the daemon ends.

A question is stored, its session paused and the operator told. What happens then depends on who
runs the session. The agent loop takes over: its run ends and the answer begins a new one. For any
other caller the tool call waits for the answer; should the caller give up or the daemon end, the
question stays, can be answered, and the answer is there to be fetched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import KW_ONLY, field
from typing import Any

from kaged.audit import AuditEvent
from kaged.base import Ids, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import (
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestClosed,
    RequestDraft,
    RequestKind,
    RequestPending,
    RequestState,
)
from kaged.kernel.identity import Actor
from kaged.store import Store, StoreConflict
from kaged.store.interaction_rows import (
    InteractionKind,
    InteractionRecord,
    InteractionStatus,
    interaction_of,
    pause_session,
    release_session,
    session_slot,
)
from kaged.toolbox.project.answers import OperatorAnswer, checked_answer
from kaged.toolbox.project.errors import InteractionWithdrawn
from kaged.toolbox.project.person_uploads import PersonUploads
from kaged.toolbox.project.question_words import (
    answer_schema_of,
    details_of,
    parse_answer,
    title_of,
)
from kaged.toolbox.project.uploads import UploadPlace, store_uploads
from kaged.tools import ToolCallContext

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

Answered = Callable[[InteractionRecord], Awaitable[None]]


@dataclass(eq=False)
class InteractionService:
    """The questions of agents, as requests of the inbox.

    Once connected, `takes_over` says whether an agent loop runs the session of a call;
    `on_answered` is how that loop hears of an answer.
    """

    store: Store
    inbox: Inbox
    _: KW_ONLY
    ids: Ids
    root_of: Callable[[str], str]
    uploads: PersonUploads
    _takes_over: Callable[[ToolCallContext], bool] | None = field(default=None, init=False)
    _on_answered: Answered | None = field(default=None, init=False)
    _waiting: dict[str, set[asyncio.Future[None]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Take the answers to questions of agents."""
        self.inbox.register(self, *(RequestKind(one.value) for one in InteractionKind))

    def connect(self, takes_over: Callable[[ToolCallContext], bool], on_answered: Answered) -> None:
        """Take the agent loop's part in questions."""
        self._takes_over = takes_over
        self._on_answered = on_answered

    async def request(
        self, context: ToolCallContext, kind: InteractionKind, payload: JsonObject
    ) -> InteractionRecord:
        """Store a question, pause the session and tell the operator.

        Raises `interaction_pending`.
        """
        if _PLAIN_ID.fullmatch(context.request_id) is None:
            return await self._ask(context, kind, payload, self.ids.tagged("ask"))
        try:
            return await self._ask(context, kind, payload, context.request_id)
        except StoreConflict:
            # A caller that gives two calls one id does not lose the second question.
            return await self._ask(context, kind, payload, self.ids.tagged("ask"))

    async def outcome(self, context: ToolCallContext, record: InteractionRecord) -> JsonObject:
        """Return the tool's result: the signal for the agent loop, or else the answer itself."""
        if self._takes_over is not None and self._takes_over(context):
            return {
                "interaction_requested": {
                    "kind": record.kind.value,
                    "request_id": record.request_id,
                    "payload": record.payload,
                }
            }
        return await self.wait(record.project_id, record.request_id)

    async def wait(self, project_id: str, request_id: str) -> JsonObject:
        """Wait for an answer, as long as it takes, and count it as delivered.

        Raises InteractionWithdrawn and InteractionNotFound.
        """
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(request_id, set())
        waiting.add(answered)
        try:
            # Asked after the flag is up: an answer that comes in between is not missed.
            record = await self.store.interactions.get(project_id, request_id)
            if record.status is InteractionStatus.PENDING:
                await answered
                record = await self.store.interactions.get(project_id, request_id)
        finally:
            waiting.discard(answered)
            if not waiting:
                self._waiting.pop(request_id, None)
        await self.store.interactions.mark_delivered(request_id)
        return answer_json(record)

    async def answer(
        self,
        project_id: str,
        request_id: str,
        answer: OperatorAnswer,
        by: str,
        who: Actor | None = None,
    ) -> InteractionRecord:
        """Take the operator's answer; files that come with it are put in their place first.

        Raises:
            InteractionNotFound, KagedError: `interaction_closed`; there is nothing to answer.
            AnswerInvalid: it does not fit; the session goes on waiting.
            WorkError: `upload_refused`; a file cannot be stored.
        """
        await self.store.interactions.get(project_id, request_id, who)
        with _closed_in_words(request_id):
            closed = await self.inbox.take_answer(request_id, answer, _named(by, who))
        return interaction_of(closed)

    async def withdraw(
        self, project_id: str, request_id: str, by: str, who: Actor | None = None
    ) -> InteractionRecord:
        """Let a session go on without an answer.

        Raises InteractionNotFound and `interaction_closed` when there is nothing to withdraw.
        """
        record = await self.store.interactions.get(project_id, request_id, who)
        with _closed_in_words(request_id):
            closed = await self.inbox.withdraw(
                request_id, _named(by, who), release_session(record.session_id)
            )
        return interaction_of(closed)

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return an answer as it is stored; files that come with it are in their place then.

        Raises AnswerInvalid and `upload_refused`.
        """
        given = answer if isinstance(answer, OperatorAnswer) else parse_answer(answer)
        record = interaction_of(request)
        found = checked_answer(record.kind, record.payload, given)
        along = release_session(record.session_id)
        if not given.files:
            return CheckedAnswer(found, along)
        place = self._place(request, record)
        stored = await asyncio.to_thread(store_uploads, place, given.files)
        answers = found["answers"]
        assert isinstance(answers, dict)
        answers.update(stored.paths)
        return CheckedAnswer(found, along, lambda: asyncio.to_thread(stored.discard))

    def _place(self, request: InboxRequest, record: InteractionRecord) -> UploadPlace:
        """Return where files go: in the project, or if a person was asked where only they see them.

        That also holds when the operator answers for them.
        """
        if request.owner is None:
            return UploadPlace.in_project(self.root_of(record.project_id), request.id)
        return self.uploads.place(request.owner, request.asked_in, record.session_id, request.id)

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Put the end on record, then wake whoever waits for the answer, and the agent loop."""
        decision = (request.answer or {}).get("decision")
        facts: JsonObject = {
            "request_id": request.id,
            "kind": request.kind.value,
            "session_id": request.chat_id,
            "outcome": str(decision) if decision else request.state.value,
        }
        await self.inbox.record(
            AuditEvent(
                "kaged.interaction.answered",
                facts,
                project_id=request.project_id,
                caller=by.caller,
            )
        )
        for answered in tuple(self._waiting.get(request.id, ())):
            if not answered.done():
                answered.set_result(None)
        if self._on_answered is not None:
            await self._on_answered(interaction_of(request))

    def event(self, request: InboxRequest) -> JsonObject:
        """Return the question as listeners get it; after its end only which one it was."""
        shown = interaction_json(interaction_of(request))
        if request.state is RequestState.PENDING:
            return shown
        names = ("request_id", "project_id", "session_id", "kind", "status")
        return {name: shown[name] for name in names}

    # -- looking ---------------------------------------------------------------------------------

    async def get(self, project_id: str, request_id: str, actor: Actor) -> InteractionRecord:
        """Return one question that an actor may answer. Raises InteractionNotFound."""
        return await self.store.interactions.get(project_id, request_id, actor)

    async def page(
        self,
        project_id: str,
        status: InteractionStatus | None,
        limit: int,
        offset: int,
        actor: Actor,
    ) -> JsonObject:
        """List questions of a project that an actor may answer, newest first."""
        found, total = await self.store.interactions.page(project_id, status, limit, offset, actor)
        listed: list[JsonValue] = [interaction_json(record) for record in found]
        return {"interactions": listed, "total": total, "limit": limit, "offset": offset}

    async def _ask(
        self, context: ToolCallContext, kind: InteractionKind, payload: JsonObject, request_id: str
    ) -> InteractionRecord:
        who = context.identity
        draft = RequestDraft(
            request_id,
            RequestKind(kind.value),
            title_of(kind, payload),
            details_of(kind, payload),
            answer_schema=answer_schema_of(kind, payload),
            subject={"run_id": context.run_id, "caller": context.caller, "payload": payload},
            owner=who.person_id if who is not None and who.is_person else None,
            project_id=context.project_id,
            chat_id=context.session_id,
            slot=session_slot(context.session_id),
            asked_in=who.chat if who is not None and who.is_person else None,
        )
        pause = pause_session(context.project_id, context.session_id, kind, request_id)
        try:
            made = await self.inbox.ask(draft, pause)
        except RequestPending as error:
            raise KagedError(
                "This session waits for the operator already.",
                code="interaction_pending",
                fix="wait for the answer to what was asked first",
                request_id=error.data["id"],
            ) from error
        assert made is not None  # there is no limit but the slot
        return interaction_of(made)


def _named(by: str, who: Actor | None) -> AnsweredBy:
    return AnsweredBy(by) if who is None else AnsweredBy.of(who, by)


@contextmanager
def _closed_in_words(request_id: str) -> Generator[None]:
    """Let the inbox's word that a question has its answer out as `interaction_closed`."""
    try:
        yield
    except RequestClosed as error:
        raise KagedError(
            error.message,
            code="interaction_closed",
            fix=error.fix,
            request_id=request_id,
            status=error.data["state"],
        ) from error


def interaction_json(record: InteractionRecord) -> JsonObject:
    """Write a question, with its answer if it has one, as operators see it."""
    return {
        "request_id": record.request_id,
        "project_id": record.project_id,
        "session_id": record.session_id,
        "run_id": record.run_id,
        "caller": record.caller,
        "kind": record.kind.value,
        "status": record.status.value,
        "payload": record.payload,
        "answer": record.answer,
        "answered_by": record.answered_by,
        "created_at": record.created_at_ms // 1000,
        "answered_at": None if record.answered_at_ms is None else record.answered_at_ms // 1000,
    }


def answer_json(record: InteractionRecord) -> JsonObject:
    """Write an answer as the agent gets it. Raises InteractionWithdrawn."""
    if record.answer is None:
        raise InteractionWithdrawn(
            "The operator withdrew the question and will not answer it.",
            fix="go on without the answer, or say what cannot be done without it",
            request_id=record.request_id,
        )
    return {"request_id": record.request_id, "kind": record.kind.value, **record.answer}
