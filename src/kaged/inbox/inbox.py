"""`Inbox`: kinds ask, one person answers once, and the kind that asked carries the answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import Clock, JsonObject, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.inbox.words import event_json
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import may_answer
from kaged.store.inbox_rows import (
    Along,
    InboxRequest,
    InboxRows,
    RequestDraft,
    RequestFilter,
    RequestKind,
    RequestNotFound,
    RequestState,
)

EXPIRY_S: Final = 60.0
KEPT_CLOSED: Final = 200
"""How many requests that lived in memory are remembered after their end."""

_log = get_logger("kaged.inbox")


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """Who answered: the name that is kept, and the actor, if one is known."""

    name: str
    actor: Actor | None = None

    @classmethod
    def of(cls, actor: Actor, name: str | None = None) -> AnsweredBy:
        """Return an actor as the one who answered, under another name if one is given."""
        return cls(name or actor.label, actor)

    @property
    def request_id(self) -> str | None:
        """Under which request of the API they answered."""
        return None if self.actor is None else self.actor.request_id or None

    @property
    def caller(self) -> str:
        """Who they are in the audit log."""
        return self.name if self.actor is None else self.actor.label


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An answer that fits: what is stored, `along` in the same unit, `discard` if that fails."""

    answer: JsonObject | None
    along: Along | None = None
    discard: Callable[[], Awaitable[None]] | None = None


class RequestHandler(Protocol):
    """What a kind of requests does with answers."""

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is stored. Raises KagedError when it does not fit.

        It is a JSON object, or what the kind's own route made of one.
        """
        ...

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Carry the stored answer out, or hear that the request was withdrawn or has expired."""
        ...

    def event(self, request: InboxRequest) -> JsonObject:
        """Return what the event stream says about a request beside the common fields."""
        ...


class Inbox:
    """Everything that waits for a person.

    `record` writes an audit event and waits for it, `post` queues one; `announce` takes events of
    the topic `attention`. A kind is registered before it asks. Requests of `ask` are stored; those
    of `hold` end with the daemon.
    """

    def __init__(
        self,
        rows: InboxRows,
        *,
        record: Callable[[AuditEvent], Awaitable[object]],
        post: Callable[[AuditEvent], None],
        announce: Callable[[str, JsonObject], object],
        clock: Clock,
    ) -> None:
        self.rows = rows
        self._record = record
        self._post = post
        self._announce = announce
        self._clock = clock
        self._handlers: dict[RequestKind, RequestHandler] = {}
        self._held: dict[str, InboxRequest] = {}
        self._tasks = Tasks("inbox")

    def register(self, handler: RequestHandler, *kinds: RequestKind) -> None:
        """Take what is done with the answers to some kinds."""
        for kind in kinds:
            self._handlers[kind] = handler

    async def close(self) -> None:
        """Stop carrying answers out. What was not carried out is asked again by its kind."""
        await self._tasks.close()

    # -- asking ----------------------------------------------------------------------------------

    async def ask(
        self, draft: RequestDraft, along: Along | None = None, limit: int | None = None
    ) -> InboxRequest | None:
        """Store a request and tell people; None when its owner has `limit` of the kind already.

        Raises:
            RequestPending: another one waits in its slot.
            StoreConflict: there is one of its id.
        """
        made = await self.rows.add(draft, along, limit)
        if made is not None:
            self._tell_asked(made)
        return made

    async def ask_again(self, draft: RequestDraft) -> InboxRequest:
        """Let a stored request wait anew, in other words or after an answer that came to nothing.

        Nothing happens when it waits in exactly these words.
        """
        try:
            before = await self.rows.get(draft.id)
        except RequestNotFound:
            before = None
        made = InboxRequest.of(draft, self._clock.now_ms())
        if before is not None and before.state is made.state and before.digest == made.digest:
            return before
        await self.rows.put(made)
        self._tell_asked(made)
        return made

    def hold(self, draft: RequestDraft) -> InboxRequest:
        """Keep a request in memory, in place of one of the same id, and tell people."""
        made = InboxRequest.of(draft, self._clock.now_ms())
        before = self._held.get(made.id)
        if before is not None and before.state is made.state and before.digest == made.digest:
            return before
        self._held.pop(made.id, None)
        self._held[made.id] = made
        closed = [one for one in self._held.values() if one.state is not RequestState.PENDING]
        for old in closed[:-KEPT_CLOSED]:
            del self._held[old.id]
        self._tell_asked(made)
        return made

    # -- looking ---------------------------------------------------------------------------------

    async def list(
        self, actor: Actor, wanted: RequestFilter, limit: int, offset: int
    ) -> tuple[Sequence[InboxRequest], int]:
        """Return a page of what an actor may answer, and how many there are in all.

        Those that end with the daemon come first; each part has the newest first.
        """
        await self.expire()
        wanted = replace(wanted, actor=actor)
        held = [one for one in reversed(self._held.values()) if wanted.takes(one)]
        shown = held[offset : offset + limit]
        behind = max(0, offset - len(held))
        stored, total = await self.rows.page(wanted, limit - len(shown) or 1, behind)
        return [*shown, *stored[: limit - len(shown)]], len(held) + total

    async def get(self, request_id: str, actor: Actor) -> InboxRequest:
        """Return a request that an actor may answer. Raises RequestNotFound."""
        found = await self._find(request_id)
        if not may_answer(actor, found.owner, found.asked_in, found.project_id):
            # A foreign request and an unknown one look the same.
            raise RequestNotFound.of_id(request_id)
        return found.at(self._clock.now_ms())

    # -- answering -------------------------------------------------------------------------------

    async def answer(
        self, request_id: str, actor: Actor, digest: str, answer: JsonObject
    ) -> InboxRequest:
        """Take the answer of an actor to exactly what was shown, once, and carry it out.

        Raises:
            RequestNotFound: there is none of this id, or it is another person's.
            RequestClosed: it was answered or withdrawn before, or has expired.
            KagedError: `inbox_request_changed`; something else is asked by now.
            KagedError: the answer does not fit, or could not be carried out; of the kind.
        """
        await self.get(request_id, actor)
        return await self.take_answer(request_id, answer, AnsweredBy.of(actor), digest=digest)

    async def take_answer(
        self, request_id: str, answer: Any, by: AnsweredBy, *, digest: str | None = None
    ) -> InboxRequest:
        """Take an answer of somebody whom the kind's own route lets answer. Raises as `answer`."""
        request = await self._find(request_id)
        request.require_open(digest, self._clock.now_ms())
        handler = self._handlers[request.kind]
        checked = await handler.check(request, answer)
        return await self._end(request, RequestState.ANSWERED, checked, by)

    async def withdraw(
        self, request_id: str, by: AnsweredBy, along: Along | None = None
    ) -> InboxRequest:
        """Let a request wait no longer. Raises RequestNotFound, RequestClosed."""
        request = await self._find(request_id)
        return await self._end(request, RequestState.WITHDRAWN, CheckedAnswer(None, along), by)

    def waiting(self, request_id: str) -> InboxRequest | None:
        """Return a request of `hold` that nobody has answered yet."""
        found = self._held.get(request_id)
        return found if found is not None and found.state is RequestState.PENDING else None

    def drop(self, request_id: str, state: RequestState = RequestState.WITHDRAWN) -> None:
        """End a request of `hold` that nobody has answered, from the asker's side."""
        found = self.waiting(request_id)
        if found is not None:
            now_ms = self._clock.now_ms()
            self._held[request_id] = replace(found, state=state, answered_at_ms=now_ms)
            name = "inbox.expired" if state is RequestState.EXPIRED else "inbox.withdrawn"
            ended = self._held[request_id]
            self._post_event(_audit_event(name, ended, AnsweredBy("asker")))
            self._announce("attention.ended", self._event(ended))

    # -- expiry ----------------------------------------------------------------------------------

    async def expire(self) -> None:
        """End what nobody answered in time."""
        now_ms = self._clock.now_ms()
        for one in list(self._held.values()):
            if one.at(now_ms) is not one:
                self.drop(one.id, RequestState.EXPIRED)
                await self._expired(self._held[one.id])
        for one in await self.rows.expire():
            await self._tell_ended(one, "inbox.expired", AnsweredBy("clock"))
            await self._expired(one)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """End what expires, for as long as the daemon runs."""
        while True:
            try:
                await self.expire()
            except KagedError as error:  # such as a full disk; the next round tries again
                _log.warning("inbox.expiry_failed", error=error.message)
            await sleep(EXPIRY_S)

    async def _expired(self, request: InboxRequest) -> None:
        handler = self._handlers.get(request.kind)
        if handler is not None:
            await handler.on_answer(request, AnsweredBy("clock"))

    async def record(self, event: AuditEvent) -> None:
        """Put on record what has happened: no error can undo it any more."""
        try:
            await self._record(event)
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=event.name, error=error.message)

    # -- own -------------------------------------------------------------------------------------

    async def _find(self, request_id: str) -> InboxRequest:
        held = self._held.get(request_id)
        return held if held is not None else await self.rows.get(request_id)

    async def _end(
        self, request: InboxRequest, state: RequestState, checked: CheckedAnswer, by: AnsweredBy
    ) -> InboxRequest:
        """Close a request and carry that out, also when whoever answered has hung up by then."""
        ending = self._tasks.start(self._close(request, state, checked, by), request.id)
        ended = await asyncio.shield(ending)
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def _close(
        self, request: InboxRequest, state: RequestState, checked: CheckedAnswer, by: AnsweredBy
    ) -> InboxRequest | Exception:
        try:
            # In exactly the words that were checked: they may have changed in between.
            closed = await self._closed(request, state, checked, by.name)
        except Exception as error:  # noqa: BLE001 - raised by `_end`, in the task of whoever answered
            if checked.discard is not None:
                await checked.discard()
            return error
        try:
            answered = state is RequestState.ANSWERED
            await self._tell_ended(closed, "inbox.answered" if answered else "inbox.withdrawn", by)
            await self._handlers[closed.kind].on_answer(closed, by)
        except Exception as error:  # noqa: BLE001 - as above
            return error
        return closed

    async def _closed(
        self, request: InboxRequest, state: RequestState, checked: CheckedAnswer, by: str
    ) -> InboxRequest:
        held = self._held.get(request.id)
        if held is None:
            return await self.rows.close(
                request.id, state, checked.answer,
                by=by, digest=request.digest, along=checked.along,
            )  # fmt: skip
        now_ms = self._clock.now_ms()
        self._held[request.id] = held.closed(state, checked.answer, by, request.digest, now_ms)
        return self._held[request.id]

    def _tell_asked(self, request: InboxRequest) -> None:
        self._post_event(_audit_event("inbox.asked", request, None))
        self._announce("attention.required", self._event(request))

    async def _tell_ended(self, request: InboxRequest, name: str, by: AnsweredBy) -> None:
        await self.record(_audit_event(name, request, by))
        self._announce("attention.ended", self._event(request))

    def _event(self, request: InboxRequest) -> JsonObject:
        handler = self._handlers.get(request.kind)
        own = {} if handler is None else handler.event(request)
        return {**event_json(request), **own}

    def _post_event(self, event: AuditEvent) -> None:
        try:
            self._post(event)
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=event.name, error=error.message)


def _audit_event(name: str, request: InboxRequest, by: AnsweredBy | None) -> AuditEvent:
    return AuditEvent(
        name,
        {
            "inbox_id": request.id,
            "kind": request.kind.value,
            "digest": request.digest,
            "owner": request.owner,
            "chat_id": request.chat_id,
        },
        project_id=request.project_id,
        request_id=None if by is None else by.request_id,
        caller=None if by is None else by.caller,
    )
