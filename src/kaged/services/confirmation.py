"""`Consents`: an operation that waits until the owner of the account has agreed to it.

The record is made by the host from what is about to happen and confirmed by a person; nothing that
comes out of a sandbox can confirm it. It holds a hash of the input and is used once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast

from kaged.audit import AuditEvent
from kaged.base import Clock, JsonObject, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import (
    NO,
    YES,
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestClosed,
    RequestDraft,
    RequestFilter,
    RequestKind,
    RequestNotFound,
    RequestState,
    chosen_yes,
)
from kaged.kernel.describe import describe_operation
from kaged.kernel.identity import Actor
from kaged.services.caller import ServiceCaller
from kaged.services.errors import CapabilityError, CapabilityRateLimited
from kaged.services.registry import RegisteredCapability, RegisteredOperation

PLAN_TTL_S: Final = 1800
PLANS_PER_USER: Final = 50
SHARED_PLANS: Final = 10
"""How many plans of others may wait for one owner, so that their own find a place."""
PLANS_SHOWN: Final = 200
SUMMARY_KEYS: Final = 20

OnPlan = Callable[["MutationPlan"], None]


class PlanStatus(StrEnum):
    """How far a consent has come; each is used once."""

    PRESENTED = "presented"
    CONFIRMED = "confirmed"
    DENIED = "denied"
    EXECUTED = "executed"


_TOO_MANY: Final = "too many operations wait for consent"
_OPEN: Final = frozenset({PlanStatus.PRESENTED, PlanStatus.CONFIRMED})


class PlannedCall(NamedTuple):
    """What a consent is for; any other call needs another one."""

    user_id: str
    capability_id: str
    operation: str
    account_ref: str
    input_hash: str
    asked_by: str | None
    """Who uses the account of `user_id` by a share; None for the owner."""
    thread_id: str | None
    chat_id: str | None


@dataclass(frozen=True, slots=True)
class MutationPlan:
    """One operation that waits for its owner's consent, or has it."""

    plan_id: str
    call: PlannedCall
    summary: str
    status: PlanStatus
    decided_by: str | None
    created_at_ms: int
    expires_at_ms: int


class Consents:
    """Plans that were shown to people, and what they said: requests of the inbox."""

    def __init__(self, inbox: Inbox, clock: Clock, on_plan: OnPlan | None = None) -> None:
        self._inbox = inbox
        self._clock = clock
        self._on_plan = on_plan or (lambda _plan: None)
        inbox.register(self, RequestKind.ACCOUNT_APPROVAL)

    @staticmethod
    def needed(
        caller: ServiceCaller, capability: RegisteredCapability, operation: RegisteredOperation
    ) -> bool:
        """Return whether an operation needs consent: by definition, or by the operator's rule."""
        name = f"{capability.id.name}.{operation.name}"
        if any(fnmatchcase(name, one) for one in capability.provider.rules.confirm):
            return True
        wanted = operation.spec.confirm
        return wanted == "always" or (wanted == "chat" and caller.chat_type != "private")

    async def require(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: RegisteredOperation,
        *,
        account_ref: str,
        owner: str,
        input_data: JsonObject,
        input_hash: str,
        plan_id: str | None,
    ) -> None:
        """Use up the consent to exactly this call: that of the account's owner, whoever calls.

        Raises:
            CapabilityError: `capability_mutation_not_confirmed`; nobody has agreed yet;
                `data.plan_id` names what waits.
            CapabilityError: `capability_mutation_plan_mismatch`; the named plan is for something
                else.
        """
        shared = owner != caller.user_id
        wanted = PlannedCall(
            owner,
            capability.text,
            operation.name,
            account_ref,
            input_hash,
            caller.user_id if shared else None,
            # The chat of somebody else is no place to ask the owner in.
            None if shared else caller.context.thread_id,
            None if shared else caller.chat,
        )
        if plan_id is not None:
            plan = await self._plan(plan_id)
            # A foreign plan and an unknown one look the same.
            if plan is None or plan.call != wanted:
                raise CapabilityError(
                    "the plan is not for this call", code="capability_mutation_plan_mismatch"
                )
            if await self._use(plan):
                return
            raise self._refusal(plan)
        waiting: MutationPlan | None = None
        plans = await self._plans(owner)
        for plan in plans:
            if plan.call != wanted:
                continue
            if await self._use(plan):
                return
            if plan.status is PlanStatus.PRESENTED:
                waiting = plan
        if waiting is None:
            others = [one for one in plans if one.call.asked_by and one.status in _OPEN]
            if shared and len(others) >= SHARED_PLANS:
                raise CapabilityRateLimited(_TOO_MANY, retry_after_seconds=60)
            project_id = None if shared else caller.token.routing.project_id
            waiting = await self._present(wanted, project_id, input_data)
        raise self._refusal(waiting)

    async def list(self, who: Actor) -> tuple[MutationPlan, ...]:
        """Return what an actor may decide, and what was decided of it lately; newest first."""
        return await self._plans(None, who)

    async def decide(self, plan_id: str, *, allowed: bool, who: Actor) -> MutationPlan | None:
        """Take an actor's answer; None when there is no such plan that they may decide."""
        try:
            found = await self._inbox.get(plan_id, who)
            if found.kind is not RequestKind.ACCOUNT_APPROVAL:
                return None
            answer: JsonObject = {"choice": YES if allowed else NO}
            return _plan_of(await self._inbox.take_answer(plan_id, answer, AnsweredBy.of(who)))
        except (RequestNotFound, RequestClosed):
            return None

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is stored. Raises `inbox_answer_invalid`."""
        return CheckedAnswer({"choice": YES if chosen_yes(request, answer) else NO})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Put the decision on record; the operation is done when it is asked for again."""
        if request.state is not RequestState.ANSWERED:
            return
        plan = _plan_of(request)
        await self._inbox.record(
            AuditEvent(
                "capability_consent_decided",
                {
                    "plan_id": plan.plan_id,
                    "user_id": plan.call.user_id,
                    "capability.id": plan.call.capability_id,
                    "operation": plan.call.operation,
                    "outcome": plan.status.value,
                },
                request_id=by.request_id,
                caller=by.caller,
            )
        )

    def event(self, request: InboxRequest) -> JsonObject:
        """Return nothing more: what is asked is for its owner only."""
        del request
        return {}

    # -- own -------------------------------------------------------------------------------------

    async def _plan(self, plan_id: str) -> MutationPlan | None:
        """Return one plan, expired or not."""
        try:
            found = await self._inbox.rows.get(plan_id)
        except RequestNotFound:
            return None
        return _plan_of(found) if found.kind is RequestKind.ACCOUNT_APPROVAL else None

    async def _plans(
        self, user_id: str | None, who: Actor | None = None
    ) -> tuple[MutationPlan, ...]:
        """Return the unexpired plans of one user or of everybody that an actor may decide."""
        wanted = RequestFilter(
            actor=who,
            owner=user_id,
            kinds=(RequestKind.ACCOUNT_APPROVAL,),
            unexpired_at_ms=self._clock.now_ms(),
        )
        found, _ = await self._inbox.rows.page(wanted, PLANS_SHOWN, 0)
        return tuple(_plan_of(one) for one in found)

    async def _use(self, plan: MutationPlan) -> bool:
        """Use a consent up, once; False for anything but one that was given and is not used."""
        confirmed = plan.status is PlanStatus.CONFIRMED
        return confirmed and await self._inbox.rows.take(plan.plan_id)

    async def _present(
        self, wanted: PlannedCall, project_id: str | None, shown: JsonObject
    ) -> MutationPlan:
        subject: JsonObject = {name: getattr(wanted, name) for name in _SUBJECT}
        made = await self._inbox.ask(
            RequestDraft(
                f"plan_{secrets.token_hex(16)}",
                RequestKind.ACCOUNT_APPROVAL,
                f"Allow {wanted.operation} on {wanted.capability_id}?",
                _summary(wanted, shown),
                choices=(YES, NO),
                subject=subject,
                owner=wanted.user_id,
                project_id=project_id,
                chat_id=wanted.thread_id,
                asked_in=wanted.chat_id,
                expires_at_ms=self._clock.now_ms() + PLAN_TTL_S * 1000,
            ),
            limit=PLANS_PER_USER,
        )
        if made is None:
            raise CapabilityRateLimited(_TOO_MANY, retry_after_seconds=60)
        plan = _plan_of(made)
        self._on_plan(plan)
        return plan

    @staticmethod
    def _refusal(plan: MutationPlan) -> CapabilityError:
        said = "was denied" if plan.status is PlanStatus.DENIED else "is not confirmed"
        return CapabilityError(
            f"{plan.call.operation} {said} by the owner of the account (plan {plan.plan_id})",
            code="capability_mutation_not_confirmed",
            plan_id=plan.plan_id,
        )


def plan_json(plan: MutationPlan) -> JsonObject:
    """Describe a plan to a person who decides about it."""
    return {
        "plan_id": plan.plan_id,
        "user_id": plan.call.user_id,
        "capability": plan.call.capability_id,
        "operation": plan.call.operation,
        "account_ref": plan.call.account_ref or None,
        "summary": plan.summary,
        "status": plan.status.value,
        "decided_by": plan.decided_by,
        "created_at": iso_utc(plan.created_at_ms),
        "expires_at": iso_utc(plan.expires_at_ms),
    }


def _plan_of(request: InboxRequest) -> MutationPlan:
    # Requests that are older than shares name no `asked_by`.
    facts: dict[str, Any] = {"asked_by": None, **cast("dict[str, Any]", request.subject)}
    named = {name: facts[name] for name in _SUBJECT}
    assert request.owner is not None
    assert request.expires_at_ms is not None
    status = PlanStatus.PRESENTED
    if request.answer is not None:
        allowed = request.answer.get("choice") == YES
        used = PlanStatus.CONFIRMED if request.taken_at_ms is None else PlanStatus.EXECUTED
        status = used if allowed else PlanStatus.DENIED
    return MutationPlan(
        request.id,
        PlannedCall(request.owner, **named, thread_id=request.chat_id, chat_id=request.asked_in),
        "\n".join(request.details),
        status,
        request.answered_by,
        request.created_at_ms,
        request.expires_at_ms,
    )


def _summary(call: PlannedCall, shown: JsonObject) -> list[str]:
    """Return what would happen, in the input's own words, cut short."""
    lines = [describe_operation(call.capability_id, call.operation, call.account_ref).words]
    if call.asked_by is not None:
        lines.append(f"asked by {call.asked_by}, with whom you share this account")
    for key, value in [*shown.items()][:SUMMARY_KEYS]:
        text = value if isinstance(value, str) else repr(value)
        printable = "".join(char if char.isprintable() else " " for char in text[:400])
        lines.append(f"{key[:64]}: {printable}")
    return lines


# Of a call, what the request in the inbox keeps as its subject; it has the rest itself.
_SUBJECT: Final = PlannedCall._fields[1:-2]
