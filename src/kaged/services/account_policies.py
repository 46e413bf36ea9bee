"""`AccountPolicies`: the extension pipeline around operations on people's accounts.

Policies know an operation as the tool `<namespace>.<capability>.<operation>`. What an account
returns was written by somebody outside, so it is labelled before it is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor, PersonFacts, PersonGrant, VouchedBy
from kaged.services.errors import CapabilityError, CapabilityInvalidOutput
from kaged.tools.call_approvals import CallApprovals, CallQuestion
from kaged.tools.errors import PipelineRefused, ReportedError
from kaged.tools.policy_answer import policy_answer
from kaged.tools.session_labels import UNTRUSTED, SessionLabels

if TYPE_CHECKING:
    from kaged.base import Clock
    from kaged.pipeline.hooked_call import HookedCall, HookOutcome
    from kaged.pipeline.origin import AgentPlace
    from kaged.pipeline.pipeline import Pipeline
    from kaged.pipeline.slots import ToolMetadata
    from kaged.services.caller import ServiceCaller
    from kaged.services.registry import RegisteredCapability, RegisteredOperation

_BELOW: Final = ".subagents."
_PRE, _POST = "tool_pre_invoke", "tool_post_invoke"
_UNDONE: Final = "the operation was not carried out"
_OUTSIDE: Final = frozenset({UNTRUSTED})


class AccountPolicies:
    """Opens the way through the pipeline in force for one operation."""

    def __init__(
        self,
        pipeline: Callable[[], Pipeline | None],
        labels: SessionLabels,
        grant_of: Callable[[str], PersonGrant],
        clock: Clock,
        approvals: CallApprovals | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._labels = labels
        self._grant_of = grant_of
        self._clock = clock
        self._approvals = approvals

    async def open(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: RegisteredOperation,
        request_id: str,
        owner: str,
    ) -> HookedOperation:
        """Return the operation on its way; nothing was asked yet. `owner` owns the account."""
        name = f"{capability.text}.{operation.name}"
        session_id = caller.token.routing.session_key
        pipeline = self._pipeline()
        if pipeline is None or not (pipeline.has_hooks_for(_PRE) or pipeline.has_hooks_for(_POST)):
            return HookedOperation(name, session_id, self._labels)
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.hooked_call import HookedCall  # noqa: PLC0415 - see the line above
        from kaged.pipeline.origin import (  # noqa: PLC0415 - as above
            CallOrigin,
            data_policy,
            subject_of,
        )
        from kaged.pipeline.policies.untrusted import (  # noqa: PLC0415 - as above
            CHANGES_ANNOTATION,
        )
        from kaged.pipeline.policies.ways_out import NET_ANNOTATION  # noqa: PLC0415 - as above
        from kaged.pipeline.slots import (  # noqa: PLC0415 - as above
            ObjectSecurityProfile,
            ToolMetadata,
        )

        who = self._actor(caller)
        project_id = caller.token.routing.project_id
        known = {"project_id": project_id, "session_id": session_id}
        origin = CallOrigin(
            request_id=request_id,
            at_ms=self._clock.now_ms(),
            arrival=who.arrival,
            actor=caller.actor or who,
            subject=subject_of(who, caller.user_id),
            agent=_place(caller),
            labels=frozenset() if session_id is None else await self._labels.of(session_id),
            source="person" if caller.in_person else "agent",
            scope=capability.id.namespace,
            properties={key: text for key, text in known.items() if text is not None},
            objects={
                name: ObjectSecurityProfile(
                    permissions=[f"operation:{name}"],
                    trust_domain=capability.id.namespace,
                    data_scope=[owner],
                )
            },
            data=data_policy(name, _OUTSIDE),
        )
        keep = None if session_id is None else self._labels.keeper(session_id, source=name)
        described = ToolMetadata(
            name=name,
            server_id=capability.id.namespace,
            namespace=capability.id.namespace,
            # A search of one's own account tells nobody else anything; a message does.
            annotations={
                NET_ANNOTATION: operation.spec.mutating,
                CHANGES_ANNOTATION: operation.spec.mutating,
            },
        )
        return HookedOperation(
            name,
            session_id,
            self._labels,
            HookedCall(pipeline, origin, keep),
            described,
            None if self._approvals is None else _Asking(self._approvals, caller),
        )

    def _actor(self, caller: ServiceCaller) -> Actor:
        """Return for whom the operation is: what their source said, and what is allowed now."""
        grant, known = self._grant_of(caller.user_id), caller.actor
        if known is not None and not known.is_person:
            return known  # the operator, whom no grant narrows
        facts = None if known is None else known.facts
        vouched_by = VouchedBy.UNIX if known is None else known.vouched_by
        made = Actor.person(facts or PersonFacts(caller.user_id), grant, vouched_by)
        return replace(made, arrival=None if known is None else known.arrival)


def _place(caller: ServiceCaller) -> AgentPlace | None:
    from kaged.pipeline.origin import AgentPlace  # noqa: PLC0415 - only with a pipeline

    path = None if caller.actor is None else caller.actor.agent_path
    session_id = caller.token.routing.session_key
    if path is None or session_id is None:
        return None
    return AgentPlace(session_id, tuple(path.split(_BELOW)))


@dataclass(frozen=True, slots=True)
class _Asking:
    """Who is asked when a policy wants a person to agree: the one whose account it is."""

    approvals: CallApprovals
    caller: ServiceCaller

    async def passed(
        self,
        hooked: HookedCall,
        ask: Callable[[], Awaitable[HookOutcome]],
        tool: str,
        params: JsonObject,
    ) -> HookOutcome:
        caller = self.caller
        question = CallQuestion(
            tool=tool,
            params=params,
            agent="the agent" if caller.token.skill is None else f"the skill {caller.token.skill}",
            session_id=caller.token.routing.session_key,
            owner=caller.user_id,
            chat_id=caller.chat,
        )
        return await self.approvals.passed(hooked, ask, question, undone=_UNDONE)


class HookedOperation:
    """One operation and the policies on both sides of it, if there are any."""

    def __init__(
        self,
        name: str,
        session_id: str | None,
        labels: SessionLabels,
        hooked: HookedCall | None = None,
        described: ToolMetadata | None = None,
        asking: _Asking | None = None,
    ) -> None:
        self._name = name
        self._session_id = session_id
        self._labels = labels
        self._hooked = hooked
        self._described = described
        self._asking = asking

    async def before(self, asked: JsonObject) -> JsonObject:
        """Pass what is asked of the account; returns what to ask. Raises CapabilityError."""
        if self._hooked is not None and self._described is not None:
            payload = await self._answer(self._asked(self._hooked, self._described, asked))
            if payload is not None and payload.name != self._name:
                raise CapabilityError(
                    "a policy redirected this operation, which is not possible here",
                    code="capability_access_denied",
                )
            asked = asked if payload is None else _object(payload.args or {})
        return asked

    async def label(self) -> None:
        """Put on the session what the answer is known to be, before any of it arrives."""
        if self._session_id is not None:
            await self._labels.add(self._session_id, _OUTSIDE, source=self._name)
        if self._hooked is not None:
            self._hooked.label(_OUTSIDE)

    async def after(self, output: JsonObject) -> JsonObject:
        """Pass what came back; returns what to hand on. Raises CapabilityError."""
        if self._hooked is None or self._described is None:
            return output
        answer = self._hooked.after_tool(self._name, output, self._described)
        payload = await self._answer(policy_answer(answer, undone=_UNDONE))
        return output if payload is None else _object(payload.result)

    async def _asked(
        self, hooked: HookedCall, described: ToolMetadata, asked: JsonObject
    ) -> HookOutcome:
        def ask() -> Awaitable[HookOutcome]:
            return hooked.before_tool(self._name, asked, described)

        if self._asking is None:
            return await policy_answer(ask(), undone=_UNDONE)
        return await self._asking.passed(hooked, ask, self._name, asked)

    async def _answer(self, question: Awaitable[HookOutcome]) -> Any:
        """Return the payload that policies changed; None when they did not."""
        try:
            outcome = await question
        except PipelineRefused as refused:
            raise CapabilityError(
                refused.message,
                code="capability_access_denied",
                fix=refused.fix,
                **refused.data,
            ) from refused
        except ReportedError as failed:
            raise CapabilityError(
                failed.message, code="capability_access_denied", fix=failed.fix
            ) from failed
        return outcome.payload if outcome.changed else None


def _object(value: Any) -> JsonObject:
    from kaged.pipeline.remote import to_json  # noqa: PLC0415 - only with a pipeline

    found: JsonValue = to_json(value)
    if not isinstance(found, dict):
        raise CapabilityInvalidOutput("a policy made something else than an object of this")
    return found
