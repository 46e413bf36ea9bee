"""`InteractionService`: agents ask, the operator answers, and neither is lost when the daemon ends.

A question is stored, its session paused and the operator told. What happens then depends on who
runs the session. The agent loop takes over: its run ends and the answer begins a new one. For any
other caller the tool call waits for the answer; should the caller give up or the daemon end, the
question stays, can be answered, and the answer is there to be fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace

from kaged.base import Ids, JsonObject, JsonValue
from kaged.store import Store, StoreConflict
from kaged.store.interaction_rows import (
    InteractionDraft,
    InteractionKind,
    InteractionRecord,
    InteractionStatus,
    require_open,
)
from kaged.toolbox.project.answers import OperatorAnswer, checked_answer
from kaged.toolbox.project.errors import InteractionWithdrawn
from kaged.toolbox.project.uploads import Stored, store_uploads
from kaged.tools import ToolCallContext

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

Announce = Callable[[str, "JsonObject"], None]
Answered = Callable[[InteractionRecord], Awaitable[None]]


@dataclass(eq=False)
class InteractionService:
    """Everything that waits for the operator.

    `announce` tells who is connected. Once connected, `takes_over` says whether an agent loop runs
    the session of a call; `on_answered` is how that loop hears of an answer.
    """

    store: Store
    _: KW_ONLY
    ids: Ids
    root_of: Callable[[str], str]
    announce: Announce
    _takes_over: Callable[[ToolCallContext], bool] | None = field(default=None, init=False)
    _on_answered: Answered | None = field(default=None, init=False)
    _waiting: dict[str, set[asyncio.Future[None]]] = field(default_factory=dict, init=False)

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
        draft = InteractionDraft(
            context.request_id,
            context.project_id,
            context.session_id,
            context.run_id,
            context.caller,
            kind,
            payload,
        )
        if _PLAIN_ID.fullmatch(context.request_id) is None:
            record = await self._open_anew(draft)
        else:
            try:
                record = await self.store.interactions.open(draft)
            except StoreConflict:
                # A caller that gives two calls one id does not lose the second question.
                record = await self._open_anew(draft)
        self.announce("attention.required", interaction_json(record))
        return record

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
        self, project_id: str, request_id: str, answer: OperatorAnswer, by: str
    ) -> InteractionRecord:
        """Take the operator's answer; files that come with it are put into the project first.

        Raises:
            InteractionNotFound, KagedError: `interaction_closed`; there is nothing to answer.
            AnswerInvalid: it does not fit; the session goes on waiting.
            WorkError: `upload_refused`; a file cannot be stored.
        """
        record = await self.store.interactions.get(project_id, request_id)
        require_open(record)
        found = checked_answer(record.kind, record.payload, answer)
        stored: Stored | None = None
        if answer.files:
            root = self.root_of(project_id)
            stored = await asyncio.to_thread(store_uploads, root, request_id, answer.files)
            given = found["answers"]
            assert isinstance(given, dict)
            given.update(stored.paths)
        try:
            closed = await self.store.interactions.close(
                project_id, request_id, InteractionStatus.ANSWERED, found, by
            )
        except Exception:
            if stored is not None:
                await asyncio.to_thread(stored.discard)
            raise
        await self._tell(closed)
        return closed

    async def withdraw(self, project_id: str, request_id: str, by: str) -> InteractionRecord:
        """Let a session go on without an answer.

        Raises InteractionNotFound and `interaction_closed` when there is nothing to withdraw.
        """
        closed = await self.store.interactions.close(
            project_id, request_id, InteractionStatus.WITHDRAWN, None, by
        )
        await self._tell(closed)
        return closed

    async def get(self, project_id: str, request_id: str) -> InteractionRecord:
        """Return one question. Raises InteractionNotFound."""
        return await self.store.interactions.get(project_id, request_id)

    async def page(
        self, project_id: str, status: InteractionStatus | None, limit: int, offset: int
    ) -> JsonObject:
        """List questions of a project, newest first."""
        found, total = await self.store.interactions.page(project_id, status, limit, offset)
        listed: list[JsonValue] = [interaction_json(record) for record in found]
        return {"interactions": listed, "total": total, "limit": limit, "offset": offset}

    async def pending_of(self, session_id: str) -> str | None:
        """Return what a session waits for; None when it may go on."""
        return await self.store.interactions.pending_of(session_id)

    async def undelivered(self, session_id: str) -> list[JsonObject]:
        """Take the answers that a session's agent has not got yet, for the run that resumes it."""
        taken: list[JsonObject] = []
        for record in await self.store.interactions.undelivered(session_id):
            await self.store.interactions.mark_delivered(record.request_id)
            with contextlib.suppress(InteractionWithdrawn):
                taken.append(answer_json(record))
        return taken

    async def _open_anew(self, draft: InteractionDraft) -> InteractionRecord:
        """Store a question under an id of our own."""
        return await self.store.interactions.open(replace(draft, request_id=self.ids.tagged("ask")))

    async def _tell(self, record: InteractionRecord) -> None:
        for answered in tuple(self._waiting.get(record.request_id, ())):
            if not answered.done():
                answered.set_result(None)
        self.announce(
            "attention.ended",
            {
                "request_id": record.request_id,
                "project_id": record.project_id,
                "session_id": record.session_id,
                "kind": record.kind.value,
                "status": record.status.value,
            },
        )
        if self._on_answered is not None:
            await self._on_answered(record)


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
