"""`CallApprovals`: a policy that wants a person to agree to a call, and the call that waits for it.

A policy asks by refusing with the code `approval_required`. After a yes the call passes the
policies once more, with the tag `approved:<policy>` that only the host can set.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import NO, YES, CheckedAnswer, Inbox, RequestDraft, RequestKind, RequestState
from kaged.inbox.words import chosen_yes
from kaged.tools.errors import PipelineRefused
from kaged.tools.policy_answer import policy_answer

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject, JsonValue
    from kaged.inbox import AnsweredBy, InboxRequest
    from kaged.pipeline.hooked_call import HookedCall, HookOutcome

SESSION: Final = "session"
"""The choice that agrees to this call and to later ones of the session that the policy stops."""

MAX_WAITING: Final = 256
MAX_ASKED: Final = 4
"""How many policies may ask about one call."""

SHOWN_CHARS: Final = 4000
KNOWN_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """The call that somebody is asked about, and whose it is. `owner` None is the operator."""

    tool: str
    params: JsonValue
    agent: str
    session_id: str | None
    project_id: str | None = None
    owner: str | None = None
    chat_id: str | None = None


class CallApprovals:
    """Asks the person for whom a call is made, and keeps the call waiting meanwhile."""

    def __init__(self, inbox: Inbox, ids: Ids, clock: Clock, wait_s: Callable[[], float]) -> None:
        self._inbox = inbox
        self._ids = ids
        self._clock = clock
        self._wait_s = wait_s
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._agreed: dict[tuple[str, str], None] = {}
        inbox.register(self, RequestKind.CALL_APPROVAL)

    async def passed(
        self,
        hooked: HookedCall,
        ask_policies: Callable[[], Awaitable[HookOutcome]],
        question: CallQuestion,
        *,
        undone: str = "the call was not made",
    ) -> HookOutcome:
        """Take a call through the policies, and to a person where one of them wants that.

        Raises:
            PipelineRefused: a policy or the person said no, or nobody answered in time.
            ReportedError: as `policy_answer`.
        """
        for _ in range(MAX_ASKED):
            try:
                return await policy_answer(ask_policies(), undone=undone)
            except PipelineRefused as refused:
                policy = refused.wants_approval
                if policy is None:
                    raise
                await self._agree(question, policy, refused)
                hooked.approve(policy)
        return await policy_answer(ask_policies(), undone=undone)

    async def _agree(self, question: CallQuestion, policy: str, refused: PipelineRefused) -> None:
        known = (question.session_id or "", policy)
        if question.session_id is not None and known in self._agreed:
            return
        if len(self._waiting) >= MAX_WAITING:
            raise PipelineRefused(
                f"{refused.message}, and too many calls wait for a person already",
                fix="answer what `kaged inbox` lists",
                denied_by=policy,
            )
        choice = await self._ask(question, policy, refused.message)
        if choice == SESSION and question.session_id is not None:
            self._agreed[known] = None
            while len(self._agreed) > KNOWN_SESSIONS:
                del self._agreed[next(iter(self._agreed))]
        elif choice != YES:
            said = "somebody said no" if choice == NO else "nobody agreed in time"
            raise PipelineRefused(
                f"{refused.message}, and {said}", fix=refused.fix or "", denied_by=policy
            )

    async def _ask(self, question: CallQuestion, policy: str, reason: str) -> str | None:
        request_id = self._ids.tagged("call")
        waits = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        wait_s = self._wait_s()
        self._inbox.hold(self._draft(request_id, question, policy, reason, wait_s))
        try:
            async with asyncio.timeout(wait_s):
                return await waits
        except TimeoutError:
            self._inbox.drop(request_id, RequestState.EXPIRED)
            return None
        finally:
            self._inbox.drop(request_id)  # unless it was answered
            self._waiting.pop(request_id, None)

    def _draft(
        self, request_id: str, question: CallQuestion, policy: str, reason: str, wait_s: float
    ) -> RequestDraft:
        params = json.dumps(question.params, sort_keys=True)
        shown = params[:SHOWN_CHARS]
        if len(params) > SHOWN_CHARS:
            shown += f" … and {len(params) - SHOWN_CHARS} more characters"
        digest = hashlib.sha256(params.encode("ascii")).hexdigest()
        choices = (YES, NO) if question.session_id is None else (YES, SESSION, NO)
        return RequestDraft(
            request_id,
            RequestKind.CALL_APPROVAL,
            f"Let {question.agent} call {question.tool}?",
            (f"{reason[:1].upper()}{reason[1:]}.", f"Parameters: {shown}"),
            choices=choices,
            subject={"policy": policy, "session_id": question.session_id, "params_sha256": digest},
            owner=question.owner,
            project_id=question.project_id,
            chat_id=question.chat_id,
            asked_in=question.chat_id,
            expires_at_ms=self._clock.now_ms() + int(wait_s * 1000),
        )

    # -- the inbox asks ----------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Take one of the choices. Raises `inbox_answer_invalid`."""
        chosen_yes(request, answer)
        return CheckedAnswer({"choice": answer["choice"]})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Let the call go on, or not."""
        del by
        waits = self._waiting.get(request.id)
        choice = (request.answer or {}).get("choice")
        if waits is not None and not waits.done() and isinstance(choice, str):
            waits.set_result(choice)

    def event(self, request: InboxRequest) -> JsonObject:
        """Return the session of the call that waits."""
        return {"session_id": (request.subject or {}).get("session_id")}
