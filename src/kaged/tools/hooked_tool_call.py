"""`HookedToolCall`: one tool call on its way through the extension pipeline, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.kernel.ownership import OPERATORS, ownership_of
from kaged.kernel.requirements import CapabilityRequirement, NetRequirement
from kaged.pipeline.hooked_call import HookedCall
from kaged.pipeline.origin import (
    HOST_DOMAIN,
    AgentPlace,
    CallOrigin,
    data_policy,
    subject_of,
)
from kaged.pipeline.policies.untrusted import CHANGES_ANNOTATION
from kaged.pipeline.policies.ways_out import NET_ANNOTATION
from kaged.pipeline.remote import to_json
from kaged.pipeline.slots import ObjectSecurityProfile, ToolMetadata
from kaged.tools.call_approvals import CallQuestion
from kaged.tools.outgoing import outgoing_headers
from kaged.tools.policy_answer import policy_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from kaged.base import Clock, JsonObject, JsonValue
    from kaged.kernel.policy import CagePolicy
    from kaged.pipeline.hooked_call import HookOutcome
    from kaged.pipeline.pipeline import Pipeline
    from kaged.tools.call_approvals import CallApprovals
    from kaged.tools.context import ToolCallContext
    from kaged.tools.registry import RegisteredTool
    from kaged.tools.session_labels import SessionLabels

_BELOW: Final = ".subagents."
_PRE: Final = "tool_pre_invoke"
_MAY_CONNECT: Final = frozenset({"shell", "exec"})  # what runs programs may reach the network


class HookedToolCall:
    """One call and the plugins on both sides of it. `changed_by` names who changed it."""

    def __init__(
        self,
        pipeline: Pipeline,
        context: ToolCallContext,
        entry: RegisteredTool,
        clock: Clock,
        labels: frozenset[str],
        session_labels: SessionLabels | None,
        approvals: CallApprovals | None = None,
    ) -> None:
        keep = session_labels and session_labels.keeper(
            context.session_id, source=entry.name, run_id=context.run_id
        )
        self._hooked = HookedCall(pipeline, _origin(context, entry, clock, labels), keep)
        self._context = context
        self._approvals = approvals
        self._asked: Mapping[str, str] = {}
        self.changed_by: tuple[str, ...] = ()

    async def before(self, entry: RegisteredTool, args: JsonObject) -> tuple[str, JsonValue] | None:
        """Run `tool_pre_invoke`; returns name and arguments when a plugin changed them.

        Raises:
            PipelineRefused: a plugin said no.
            ReportedError: a plugin failed whose failure ends the call, or the pipeline's file is
                faulty.
        """
        hook_outcome = await self._passed(entry, args)
        if not hook_outcome.changed:
            return None
        headers = hook_outcome.payload.headers
        self._asked = self._hooked.changed_headers(None if headers is None else headers.root)
        changed = str(hook_outcome.payload.name), to_json(hook_outcome.payload.args or {})
        if changed == (entry.name, args):
            return None
        self.changed_by = hook_outcome.changed_by
        return changed

    async def _passed(self, entry: RegisteredTool, args: JsonObject) -> HookOutcome:
        described = _described(entry, self._context.cage_policy, args)

        def ask() -> Awaitable[HookOutcome]:
            return self._hooked.before_tool(entry.name, args, described)

        if self._approvals is None:
            return await policy_answer(ask())
        return await self._approvals.passed(
            self._hooked, ask, _question(self._context, entry, args)
        )

    async def headers(self, entry: RegisteredTool) -> Mapping[str, str]:
        """Return what goes out with a call to a server behind HTTP. Raises as `before`."""
        endpoint = entry.tool.endpoint
        if endpoint is None:
            return {}
        return await outgoing_headers(self._hooked, entry.name, endpoint, asked=self._asked)

    def label(self, labels: frozenset[str]) -> None:
        """Put labels of the host on the call's data."""
        self._hooked.label(labels)

    async def after(self, entry: RegisteredTool, result: JsonValue) -> JsonValue:
        """Run `tool_post_invoke`; returns the result to hand on. Raises as `before`."""
        hook_outcome = await policy_answer(
            self._hooked.after_tool(
                entry.name, result, _described(entry, self._context.cage_policy)
            )
        )
        return to_json(hook_outcome.payload.result) if hook_outcome.changed else result

    def change_record(
        self, name: str, args: JsonObject, changed: tuple[str, JsonValue], outcome: str
    ) -> JsonObject:
        """Return the data of the audit event about a changed call; names only, no values."""
        parts: list[JsonValue] = []
        if changed[0] != name:
            parts.append("name")
        if changed[1] != args:
            parts.append("args")
        data: JsonObject = {
            "plugin": ", ".join(self.changed_by),
            "hook": _PRE,
            "tool_name": name,
            "changed": parts,
            "outcome": outcome,
        }
        if changed[0] != name:
            data["new_tool_name"] = changed[0][:200]
        return data


async def ask_pure_policies(
    pipeline: Pipeline,
    context: ToolCallContext,
    entry: RegisteredTool,
    args: JsonObject,
    clock: Clock,
    labels: frozenset[str],
) -> HookOutcome:
    """Return what the pure policies in force say about a call that is not made.

    Nothing comes of it: no event, no trace, no label, no question to a person.

    Raises:
        PluginError: one failed whose failure ends the call.
    """
    twin = pipeline.pure_twin()
    try:
        hooked = HookedCall(twin, _origin(context, entry, clock, labels))
        described = _described(entry, context.cage_policy, args)
        return await hooked.before_tool(entry.name, args, described)
    finally:
        await twin.close()


def _origin(
    context: ToolCallContext, entry: RegisteredTool, clock: Clock, labels: frozenset[str]
) -> CallOrigin:
    """Write down what the host knows for certain; nothing of it comes from the arguments."""
    definition = entry.definition
    return CallOrigin(
        request_id=context.request_id,
        at_ms=clock.now_ms(),
        arrival=None if context.identity is None else context.identity.arrival,
        actor=context.identity,
        subject=subject_of(context.identity, context.operator_id),
        agent=AgentPlace(
            context.session_id,
            tuple(context.caller.split(_BELOW)),
            turn=context.turn,
            input=context.asked,
        ),
        labels=labels,
        source="agent",
        scope=definition.plugin_name or definition.namespace,
        properties={"project_id": context.project_id, "run_id": context.run_id},
        model=context.model,
        objects={entry.name: _profile(entry, context)},
        data=data_policy(entry.name, entry.tool.labels),
    )


def _profile(entry: RegisteredTool, context: ToolCallContext) -> ObjectSecurityProfile:
    """Return what the host asks of a caller before a tool runs, and who answers for the tool."""
    definition = entry.definition
    owner = definition.plugin_name
    return ObjectSecurityProfile(
        permissions=[":".join(map(str, one.as_json().values())) for one in definition.requires],
        trust_domain=HOST_DOMAIN if owner is None else owner,
        data_scope=[context.project_id],
    )


def _question(context: ToolCallContext, entry: RegisteredTool, args: JsonObject) -> CallQuestion:
    who = context.identity
    owned = OPERATORS if who is None else ownership_of(who)
    return CallQuestion(
        tool=entry.name,
        params=args,
        agent=context.caller,
        session_id=context.session_id,
        project_id=context.project_id,
        owner=owned.owner,
        chat_id=owned.chat_id,
    )


def _described(
    entry: RegisteredTool, policy: CagePolicy | None, args: JsonObject | None = None
) -> ToolMetadata:
    definition = entry.definition
    # A program of a cage without network reaches nothing; one without a cage, everything.
    open_cage = policy is None or bool(policy.net)
    reaches_net = entry.tool.reaches_net or (
        open_cage
        and any(
            isinstance(one, NetRequirement)
            or (isinstance(one, CapabilityRequirement) and one.name in _MAY_CONNECT)
            for one in definition.requires
        )
    )
    return ToolMetadata(
        name=entry.name,
        server_id=definition.plugin_name,
        namespace=definition.namespace,
        title=_title(entry),
        description=definition.description,
        input_schema=definition.parameters,
        output_schema=definition.returns,
        # What a server says of its tool comes first, so that it cannot speak for the host.
        annotations={
            **entry.tool.annotations,
            NET_ANNOTATION: reaches_net,
            **_changes(entry, args),
        },
    )


def _title(entry: RegisteredTool) -> str | None:
    found = entry.tool.annotations.get("title")
    return found if isinstance(found, str) else None


def _changes(entry: RegisteredTool, args: JsonObject | None) -> dict[str, bool]:
    changes = entry.tool.changes
    if not isinstance(changes, bool):
        if args is None:
            return {}
        changes = changes(args)
    return {CHANGES_ANNOTATION: changes}
