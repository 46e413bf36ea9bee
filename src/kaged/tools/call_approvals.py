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

OPERATOR: Final = "operator"  # as policies call them; the pipeline is loaded only if there is one
SESSION: Final = "session"
"""The choice that agrees to this call and to later ones of the session that the policy stops."""

SELF: Final = "self"
"""A yes of the one whom the call is made for, where somebody else has to agree."""

MAX_WAITING: Final = 256
MAX_ASKED: Final = 4
"""How many policies may ask about one call."""

SHOWN_CHARS: Final = 4000
KNOWN_SESSIONS: Final = 10_000
_SAID: Final = {
    NO: "somebody said no",
    SELF: "the one who makes the call cannot be the second person",
}


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
        self._agreed: dict[tuple[str, str | None, str], None] = {}
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
        # In a group's session one person's yes is for what is done on their behalf.
        known = (question.session_id or "", question.owner, policy)
        if question.session_id is not None and known in self._agreed:
            return
        second = refused.approver is not None
        if second and _person(refused.approver) == question.owner:
            raise PipelineRefused(
                f"{refused.message}, and the one who makes the call cannot be the second person",
                denied_by=policy,
            )
        if len(self._waiting) >= MAX_WAITING:
            raise PipelineRefused(
                f"{refused.message}, and too many calls wait for a person already",
                fix="answer what `kaged inbox` lists",
                denied_by=policy,
            )
        choice = await self._ask(question, policy, refused)
        if choice == SESSION and question.session_id is not None:
            self._agreed[known] = None
            while len(self._agreed) > KNOWN_SESSIONS:
                del self._agreed[next(iter(self._agreed))]
        elif choice != YES:
            said = _SAID.get(choice or "", "nobody agreed in time")
            raise PipelineRefused(
                f"{refused.message}, and {said}", fix=refused.fix or "", denied_by=policy
            )

    async def _ask(
        self, question: CallQuestion, policy: str, refused: PipelineRefused
    ) -> str | None:
        request_id = self._ids.tagged("call")
        waits = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        wait_s = self._wait_s()
        self._inbox.hold(self._draft(request_id, question, policy, refused, wait_s))
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
        self,
        request_id: str,
        question: CallQuestion,
        policy: str,
        refused: PipelineRefused,
        wait_s: float,
    ) -> RequestDraft:
        params = json.dumps(question.params, sort_keys=True)
        shown = params[:SHOWN_CHARS]
        if len(params) > SHOWN_CHARS:
            shown += f" … and {len(params) - SHOWN_CHARS} more characters"
        digest = hashlib.sha256(params.encode("ascii")).hexdigest()
        reason, subject = refused.message, self._subject(question, policy, digest)
        choices = (YES, NO) if question.session_id is None else (YES, SESSION, NO)
        owner, chat_id = question.owner, question.chat_id
        if refused.approver is not None:  # of each call anew, and wherever that person is
            owner, chat_id, choices = _person(refused.approver), None, (YES, NO)
            subject["made_for"] = question.owner
        return RequestDraft(
            request_id,
            RequestKind.CALL_APPROVAL,
            f"Let {question.agent} call {question.tool}?",
            (f"{reason[:1].upper()}{reason[1:]}.", f"Parameters: {shown}"),
            choices=choices,
            subject=subject,
            owner=owner,
            project_id=question.project_id,
            chat_id=chat_id,
            asked_in=chat_id,
            expires_at_ms=self._clock.now_ms() + int(wait_s * 1000),
        )

    @staticmethod
    def _subject(question: CallQuestion, policy: str, digest: str) -> JsonObject:
        return {"policy": policy, "session_id": question.session_id, "params_sha256": digest}

    # -- the inbox asks ----------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Take one of the choices. Raises `inbox_answer_invalid`."""
        chosen_yes(request, answer)
        return CheckedAnswer({"choice": answer["choice"]})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Let the call go on, or not."""
        waits = self._waiting.get(request.id)
        choice = (request.answer or {}).get("choice")
        if waits is not None and not waits.done() and isinstance(choice, str):
            waits.set_result(SELF if choice == YES and _is_own(request, by) else choice)

    def event(self, request: InboxRequest) -> JsonObject:
        """Return the session of the call that waits."""
        return {"session_id": (request.subject or {}).get("session_id")}


def _person(approver: str | None) -> str | None:
    """Return the approver as an owner of requests: None for the operator."""
    return None if approver == OPERATOR else approver


def _is_own(request: InboxRequest, by: AnsweredBy) -> bool:
    """Return whether somebody answers what a second person was asked about a call of theirs."""
    subject = request.subject or {}
    if "made_for" not in subject:
        return False
    actor = by.actor
    own = None if actor is None or not actor.is_person else actor.person_id
    return subject["made_for"] == own
