"""`AccountPolicies`: the extension pipeline around operations on people's accounts.

Policies know an operation as the tool `<namespace>.<capability>.<operation>`. What an account
returns was written by somebody outside, so it is labelled before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.services.errors import CapabilityError, CapabilityInvalidOutput
from kaged.tools.errors import PipelineRefused, ReportedError
from kaged.tools.policy_answer import policy_answer
from kaged.tools.session_labels import UNTRUSTED, SessionLabels

if TYPE_CHECKING:
    from kaged.base import Clock
    from kaged.pipeline.hooked_call import HookedCall
    from kaged.pipeline.pipeline import Pipeline
    from kaged.pipeline.slots import ToolMetadata
    from kaged.services.caller import ServiceCaller
    from kaged.services.registry import RegisteredCapability, RegisteredOperation

_PRE, _POST = "tool_pre_invoke", "tool_post_invoke"
_OUTSIDE: Final = frozenset({UNTRUSTED})


class AccountPolicies:
    """Opens the way through the pipeline in force for one operation."""

    def __init__(
        self, pipeline: Callable[[], Pipeline | None], labels: SessionLabels, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._labels = labels
        self._clock = clock

    async def open(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: RegisteredOperation,
        request_id: str,
    ) -> HookedOperation:
        """Return the operation on its way; nothing was asked yet."""
        name = f"{capability.text}.{operation.name}"
        session_id = caller.token.routing.session_key
        pipeline = self._pipeline()
        if pipeline is None or not (pipeline.has_hooks_for(_PRE) or pipeline.has_hooks_for(_POST)):
            return HookedOperation(name, session_id, self._labels)
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.hooked_call import HookedCall  # noqa: PLC0415 - see the line above
        from kaged.pipeline.origin import CallOrigin, subject_of  # noqa: PLC0415 - as above
        from kaged.pipeline.policies.egress import NET_ANNOTATION  # noqa: PLC0415 - as above
        from kaged.pipeline.slots import ToolMetadata  # noqa: PLC0415 - as above

        origin = CallOrigin(
            request_id=request_id,
            at_ms=self._clock.now_ms(),
            subject=subject_of(None, caller.user_id),
            labels=frozenset() if session_id is None else await self._labels.of(session_id),
            source="person" if caller.in_person else "agent",
            scope=capability.id.namespace,
            properties={} if session_id is None else {"session_id": session_id},
        )
        keep = None if session_id is None else self._labels.keeper(session_id, source=name)
        described = ToolMetadata(
            name=name,
            server_id=capability.id.namespace,
            namespace=capability.id.namespace,
            # What an account is told leaves this machine, also by an operation that only reads.
            annotations={NET_ANNOTATION: True},
        )
        return HookedOperation(
            name, session_id, self._labels, HookedCall(pipeline, origin, keep), described
        )


class HookedOperation:
    """One operation and the policies on both sides of it, if there are any."""

    def __init__(
        self,
        name: str,
        session_id: str | None,
        labels: SessionLabels,
        hooked: HookedCall | None = None,
        described: ToolMetadata | None = None,
    ) -> None:
        self._name = name
        self._session_id = session_id
        self._labels = labels
        self._hooked = hooked
        self._described = described

    async def before(self, asked: JsonObject) -> JsonObject:
        """Pass what is asked of the account; returns what to ask. Raises CapabilityError."""
        if self._hooked is not None and self._described is not None:
            payload = await self._answer(
                self._hooked.before_tool(self._name, asked, self._described)
            )
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
        payload = await self._answer(self._hooked.after_tool(self._name, output, self._described))
        return output if payload is None else _object(payload.result)

    async def _answer(self, question: Any) -> Any:
        """Return the payload that policies changed; None when they did not."""
        try:
            outcome = await policy_answer(question, undone="the operation was not carried out")
        except PipelineRefused as refused:
            raise CapabilityError(
                refused.message, code="capability_access_denied", fix=refused.fix
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
