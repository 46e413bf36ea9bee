"""A method call on its way through the extension pipeline: `call_with_hooks`.

resolve → tool_pre_invoke → (changed: resolve again) → the plugin → tool_post_invoke
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kaged.kernel.decision import CapabilityDenied
from kaged.pipeline.hooked_call import HookedCall
from kaged.pipeline.origin import AgentPlace, CallOrigin, data_policy, subject_of
from kaged.pipeline.policies.ways_out import NET_ANNOTATION
from kaged.pipeline.remote import to_json
from kaged.pipeline.slots import ObjectSecurityProfile, ToolMetadata
from kaged.wire.errors import InvalidParams, MethodNotFound

if TYPE_CHECKING:
    from kaged.base import JsonObject, JsonValue
    from kaged.kernel.identity import Actor
    from kaged.pipeline.hooked_call import HookOutcome
    from kaged.pipeline.pipeline import Pipeline
    from kaged.plugins.parts import HostParts
    from kaged.plugins.plugin import HostedPlugin
    from kaged.wire.context import WireContext

PRE, POST = "tool_pre_invoke", "tool_post_invoke"
_BELOW = ".subagents."
REASON_CHARS = 500


async def call_with_hooks(
    pipeline: Pipeline,
    parts: HostParts,
    plugin: HostedPlugin,
    method: str,
    params: JsonObject,
    context: WireContext,
    *,
    timeout_s: float | None = None,
    who: Actor | None = None,
) -> JsonValue:
    """Call a method with the pipeline's plugins before and after it.

    They know the call as the tool `<plugin>.<method>`. A call that they change is resolved again
    before it runs, and runs no plugin twice.

    Raises:
        CapabilityDenied: a pipeline plugin said no.
        PipelineNotReady: the pipeline's file is faulty.
        PluginError: a pipeline plugin failed whose `on_error` is fail.
        NotSendable: a pipeline plugin put something without a JSON form into the call.
        KagedError: as `HostedPlugin.call_method`.
    """
    plugin.offering(method)
    if not (pipeline.has_hooks_for(PRE) or pipeline.has_hooks_for(POST)):
        return await plugin.call_method(method, params, context, timeout_s=timeout_s)
    tool = describe_method(plugin, method)
    hooked = await _opened(pipeline, parts, plugin, tool.name, context, who)
    before = await hooked.before_tool(tool.name, params, tool)
    _require(before, PRE, parts, plugin, method, context)
    if before.changed:
        method, params = _resolved_again(parts, plugin, method, params, before, context)
        tool = describe_method(plugin, method)
    hooked.label(plugin.installed.labels)  # kept by the call itself
    result = await plugin.call_method(method, params, context, timeout_s=timeout_s)
    after = await hooked.after_tool(tool.name, result, tool)
    _require(after, POST, parts, plugin, method, context)
    return to_json(after.payload.result) if after.changed else result


async def _opened(
    pipeline: Pipeline,
    parts: HostParts,
    plugin: HostedPlugin,
    name: str,
    context: WireContext,
    who: Actor | None,
) -> HookedCall:
    """Open the way for a call; one that is made for a session has the labels of its data."""
    labels, session_id = parts.labels, context.session_id
    origin = _origin(parts, plugin, name, context, who)
    if labels is None or session_id is None:
        return HookedCall(pipeline, origin)
    known = await labels.of(session_id)
    keep = labels.keeper(session_id, source=name)
    return HookedCall(pipeline, replace(origin, labels=known), keep)


def _origin(
    parts: HostParts, plugin: HostedPlugin, name: str, context: WireContext, who: Actor | None
) -> CallOrigin:
    """Write down what the host knows for certain; nothing of it comes from the call's params."""
    operator = context.operator_id
    agent = None
    if context.agent_path is not None and context.session_id is not None:
        agent = AgentPlace(context.session_id, tuple(context.agent_path.split(_BELOW)))
    return CallOrigin(
        request_id=context.request_id,
        at_ms=parts.clock.now_ms(),
        arrival=None if who is None else who.arrival,
        actor=who,
        subject=None if operator is None else subject_of(who, operator),
        agent=agent,
        source="agent" if context.from_agent else "daemon",
        scope=plugin.name,
        properties={} if context.project_id is None else {"project_id": context.project_id},
        objects={
            name: ObjectSecurityProfile(
                permissions=list(plugin.installed.capabilities.texts),
                trust_domain=plugin.name,
                data_scope=[] if context.project_id is None else [context.project_id],
            )
        },
        data=data_policy(name, plugin.installed.labels),
    )


def _require(
    outcome: HookOutcome,
    hook: str,
    parts: HostParts,
    plugin: HostedPlugin,
    method: str,
    context: WireContext,
) -> None:
    """Put a refusal on record, with whose call of what it was, and raise it."""
    if outcome.refusal is None:
        return
    parts.post(
        "plugin.method_denied",
        {
            "name": plugin.name,
            "method": method,
            "hook": hook,
            "denied_by": outcome.denied_by,
            "operator_id": context.operator_id,
            "project_id": context.project_id,
            "reason": outcome.decision.detail[:REASON_CHARS],
        },
        context.request_id,
    )
    raise CapabilityDenied(
        outcome.refusal.words,
        fix=outcome.refusal.fix or None,
        rule=outcome.decision.rule,
        detail=outcome.decision.detail,
        **outcome.told,
    )


def describe_method(plugin: HostedPlugin, method: str) -> ToolMetadata:
    """Describe a method to the pipeline, with what the host knows of its reach."""
    return ToolMetadata(
        name=f"{plugin.name}.{method}",
        server_id=plugin.name,
        namespace=plugin.name,
        annotations={NET_ANNOTATION: plugin.installed.reaches_net},
    )


def _resolved_again(
    parts: HostParts,
    plugin: HostedPlugin,
    method: str,
    params: JsonObject,
    hook_outcome: HookOutcome,
    context: WireContext,
) -> tuple[str, JsonObject]:
    """Resolve a changed call as if it had been asked for, and put the change on record."""
    name, args = hook_outcome.payload.name, to_json(hook_outcome.payload.args or {})
    changed: list[Any] = []
    if name != f"{plugin.name}.{method}":
        changed.append("name")
    if args != params:
        changed.append("args")
    if not changed:
        return method, params
    outcome = "refused"
    try:
        found = name.removeprefix(f"{plugin.name}.")
        if found == name:
            raise MethodNotFound(f"{plugin.name} has no method {name}")
        plugin.offering(found)
        if not isinstance(args, dict):
            raise InvalidParams("the params are not an object")
        outcome = "resolved"
    finally:
        data: JsonObject = {
            "plugin": ", ".join(hook_outcome.changed_by),
            "hook": PRE,
            "tool_name": f"{plugin.name}.{method}",
            "changed": changed,
            "outcome": outcome,
        }
        if "name" in changed:
            data["new_tool_name"] = name
        parts.post("pipeline.call_changed", data, context.request_id)
    return found, args
