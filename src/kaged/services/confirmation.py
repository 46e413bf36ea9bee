"""`Consents`: an operation that waits until the owner of the account has agreed to it.

The record is made by the host from what is about to happen and confirmed by a person; nothing that
comes out of a sandbox can confirm it. It holds a hash of the input and is used once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from kaged.base import Clock, JsonObject, iso_utc
from kaged.services.caller import ServiceCaller
from kaged.services.errors import CapabilityError, CapabilityRateLimited
from kaged.services.registry import RegisteredCapability, RegisteredOperation
from kaged.store.service_call_rows import PlanRow, PlanStatus, ServiceCallRows

PLAN_TTL_S: Final = 1800
PLANS_PER_USER: Final = 50
SUMMARY_KEYS: Final = 20

OnPlan = Callable[[PlanRow], None]
_Wanted: TypeAlias = tuple[str, str, str, str, str, str | None]
"""What a plan is for: user, capability, operation, account, hash of the input, thread."""


class Consents:
    """Plans that were shown to people, and what they said."""

    def __init__(self, rows: ServiceCallRows, clock: Clock, on_plan: OnPlan | None = None) -> None:
        self._rows = rows
        self._clock = clock
        self._on_plan = on_plan or (lambda _plan: None)

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
        input_data: JsonObject,
        input_hash: str,
        plan_id: str | None,
    ) -> None:
        """Use up the consent to exactly this call.

        Raises:
            CapabilityError: `capability_mutation_not_confirmed`; nobody has agreed yet;
                `data.plan_id` names what waits.
            CapabilityError: `capability_mutation_plan_mismatch`; the named plan is for something
                else.
        """
        wanted = (
            caller.user_id,
            capability.text,
            operation.name,
            account_ref,
            input_hash,
            caller.context.thread_id,
        )
        if plan_id is not None:
            plan = await self._rows.plan(plan_id)
            # A foreign plan and an unknown one look the same.
            if plan is None or plan.user_id != caller.user_id or _what(plan) != wanted:
                raise CapabilityError(
                    "the plan is not for this call", code="capability_mutation_plan_mismatch"
                )
            if await self._use(plan):
                return
            raise self._refusal(plan)
        waiting: PlanRow | None = None
        for plan in await self._rows.plans(user_id=caller.user_id):
            if _what(plan) != wanted:
                continue
            if plan.status is PlanStatus.CONFIRMED and await self._use(plan):
                return
            if plan.status is PlanStatus.PRESENTED:
                waiting = plan
        if waiting is None:
            waiting = await self._present(wanted, input_data)
        raise self._refusal(waiting)

    async def list(self) -> tuple[PlanRow, ...]:
        """Return what waits for a person, and what was decided lately; newest first."""
        return await self._rows.plans(user_id=None)

    async def decide(self, plan_id: str, *, allowed: bool, by: str) -> PlanRow | None:
        """Take a person's answer; None when there is no such plan that waits."""
        after = PlanStatus.CONFIRMED if allowed else PlanStatus.DENIED
        if not await self._rows.move_plan(plan_id, PlanStatus.PRESENTED, after, by):
            return None
        return await self._rows.plan(plan_id)

    async def _use(self, plan: PlanRow) -> bool:
        return await self._rows.move_plan(
            plan.plan_id, PlanStatus.CONFIRMED, PlanStatus.EXECUTED, None
        )

    async def _present(self, wanted: _Wanted, shown: JsonObject) -> PlanRow:
        now = self._clock.now_ms()
        plan = PlanRow(
            f"plan_{secrets.token_hex(16)}",
            *wanted,
            summary=_summary(*wanted[1:4], shown),
            status=PlanStatus.PRESENTED,
            decided_by=None,
            created_at_ms=now,
            decided_at_ms=None,
            expires_at_ms=now + PLAN_TTL_S * 1000,
        )
        if not await self._rows.add_plan(plan, limit=PLANS_PER_USER):
            raise CapabilityRateLimited(
                "too many operations wait for consent", retry_after_seconds=60
            )
        self._on_plan(plan)
        return plan

    @staticmethod
    def _refusal(plan: PlanRow) -> CapabilityError:
        said = "was denied" if plan.status is PlanStatus.DENIED else "is not confirmed"
        return CapabilityError(
            f"{plan.operation} {said} by the owner of the account (plan {plan.plan_id})",
            code="capability_mutation_not_confirmed",
            plan_id=plan.plan_id,
        )


def plan_json(plan: PlanRow) -> JsonObject:
    """Describe a plan to a person who decides about it."""
    return {
        "plan_id": plan.plan_id,
        "user_id": plan.user_id,
        "capability": plan.capability_id,
        "operation": plan.operation,
        "account_ref": plan.account_ref or None,
        "summary": plan.summary,
        "status": plan.status.value,
        "decided_by": plan.decided_by,
        "created_at": iso_utc(plan.created_at_ms),
        "expires_at": iso_utc(plan.expires_at_ms),
    }


def _what(plan: PlanRow) -> _Wanted:
    return (
        plan.user_id,
        plan.capability_id,
        plan.operation,
        plan.account_ref,
        plan.input_hash,
        plan.thread_id,
    )


def _summary(capability_id: str, operation: str, account_ref: str, shown: JsonObject) -> str:
    """Return what would happen, in the input's own words, cut short."""
    lines = [f"{capability_id} {operation}" + (f" as {account_ref}" if account_ref else "")]
    for key, value in [*shown.items()][:SUMMARY_KEYS]:
        text = value if isinstance(value, str) else repr(value)
        printable = "".join(char if char.isprintable() else " " for char in text[:400])
        lines.append(f"{key[:64]}: {printable}")
    return "\n".join(lines)
