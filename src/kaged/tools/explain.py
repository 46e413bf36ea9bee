"""`explain_call`: would this call be allowed, by which rule, and what would change the answer?"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from kaged.base.lazy_dataclass import dataclass
from kaged.tools.errors import ToolCapabilityRefused, ToolError
from kaged.tools.faults import agent_error
from kaged.tools.gates import (
    arguments,
    no_such_tool,
    parse_args,
    require_enabled,
    require_scope,
)
from kaged.tools.permissions import cage_summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from kaged.base import JsonObject, JsonValue
    from kaged.pipeline.hooked_call import HookOutcome
    from kaged.pipeline.pipeline import Pipeline
    from kaged.pipeline.plan import Plan
    from kaged.tools.context import ToolCallContext
    from kaged.tools.dispatch import AdmittedCall, ToolDispatcher
    from kaged.tools.registry import FoundTool, RegisteredTool
    from kaged.tools.resolution import AgentTools

    T = TypeVar("T")

_HOOKS: Final = ("tool_pre_invoke", "tool_post_invoke")


@dataclass(frozen=True, slots=True)
class Gate:
    """One step of a call: whether it lets the call pass, by which rule, and what would change it.

    `passed` None means that only the call itself would show.
    """

    step: str
    passed: bool | None
    rule: str
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """What would happen to a call. `error` is the answer the caller would get, if it is no."""

    tool: str
    agent: str
    allowed: bool
    gates: tuple[Gate, ...]
    cage: JsonValue
    changes: bool
    error: JsonObject | None

    def as_json(self) -> JsonObject:
        """Return it as data."""
        return {**asdict(self), "gates": [asdict(gate) for gate in self.gates]}


async def explain_call(
    dispatcher: ToolDispatcher,
    name: str,
    params: JsonValue,
    context: ToolCallContext,
    *,
    pipeline: Pipeline | None = None,
) -> CallExplanation:
    """Take a call through every gate without running, counting or recording anything.

    Policies that declare themselves pure are asked; of the others it is said what they depend on.
    """
    walk = _GateWalk(dispatcher, name, params, context)
    try:
        call = walk.through()
    except ToolError as error:
        shown = agent_error(error, context, name)
        return walk.result(allowed=False, error=shown.as_json())
    gates, changed = await _pipeline_gates(pipeline, dispatcher, call, context)
    walk.gates += gates
    allowed = all(gate.passed is not False for gate in gates)
    if changed is not None and allowed:
        # What a policy makes of a call is decided again, as in a call.
        again = _GateWalk(dispatcher, *changed, context)
        try:
            call = again.through()
        except ToolError as error:
            walk.gates.append(replace(again.gates[-1], step=f"changed: {again.gates[-1].step}"))
            shown = agent_error(error, context, changed[0])
            return walk.result(allowed=False, error=shown.as_json())
    changes = call.entry.tool.changes
    return walk.result(
        allowed=allowed, changes=changes if isinstance(changes, bool) else changes(call.args)
    )


class _GateWalk:
    def __init__(
        self, dispatcher: ToolDispatcher, name: str, params: JsonValue, context: ToolCallContext
    ) -> None:
        self.dispatcher, self.name, self.params, self.context = dispatcher, name, params, context
        self.tools: AgentTools = dispatcher.callers.tools(context)
        self.found: FoundTool | None = dispatcher.find(name, context)
        self.gates: list[Gate] = []

    def through(self) -> AdmittedCall:
        found, context = self.found, self.context
        if found is None:
            error = no_such_tool(self.name, self.tools)
            remedy = error.fix or "check the spelling; a plugin's tools are there while it runs"
            self.gates.append(Gate("resolve", False, "tool.registry", error.message, remedy))
            raise error
        entry = found.entry
        source = entry.definition.plugin_name or "built in"
        self.gates.append(Gate("resolve", True, "tool.registry", f"{entry.name}, {source}"))
        asked = arguments(found, self.params)
        root_only = entry.definition.root_only
        remedy = f"nothing: {entry.name} is for the root agent only" if root_only else ""
        self._gate("scope", lambda: require_scope(entry, context), remedy)
        self._gate(
            "enabled",
            lambda: require_enabled(entry, asked, self.tools),
            self._enable(entry),
            _why(self.tools, entry),
        )
        args = self._gate(
            "params", lambda: parse_args(entry, self.params, asked), "mend the arguments"
        )
        return self._gate("cage", lambda: self.dispatcher.decide(entry, args, context), "")

    def _gate(self, step: str, pass_through: Callable[[], T], remedy: str, why: str = "") -> T:
        try:
            value = pass_through()
        except ToolError as error:
            decision = error.decision if isinstance(error, ToolCapabilityRefused) else None
            rule = getattr(error, "rule", f"tool.{step}")
            said = error.message if decision is None else decision.detail
            wanted = remedy if decision is None else decision.remedy
            self.gates.append(Gate(step, False, str(rule), said, wanted or (error.fix or "")))
            raise
        uncaged = step == "cage" and self.context.cage_policy is None
        self.gates.append(Gate(step, True, "tool.uncaged" if uncaged else f"tool.{step}", why))
        return value

    def _enable(self, entry: RegisteredTool) -> str:
        off = self.tools.off_because.get(entry.name)
        agent = self.tools.agent
        if off:
            return f"change {off} of {agent} in .kaged/project.yaml"
        plugin = entry.definition.plugin_name
        if plugin is not None and not entry.outside:
            return f"declare the plugin {plugin} on {agent} in .kaged/project.yaml"
        return f"add to tools: of {agent} in .kaged/project.yaml: {entry.name}: {{enabled: true}}"

    def result(
        self, *, allowed: bool, changes: bool = False, error: JsonObject | None = None
    ) -> CallExplanation:
        context = self.context
        return CallExplanation(
            tool=self.name if self.found is None else self.found.entry.name,
            agent=context.caller,
            allowed=allowed,
            gates=tuple(self.gates),
            cage=cage_summary(context.cage_policy, context.project_root),
            changes=changes,
            error=error,
        )


def _why(tools: AgentTools, entry: RegisteredTool) -> str:
    enabled = tools.enabled.get(entry.name)
    if enabled is None:
        return "follows from the tree of agents"
    off = f"; without {', '.join(sorted(enabled.off))}" if enabled.off else ""
    return f"{enabled.why}{off}"


async def _pipeline_gates(
    pipeline: Pipeline | None,
    dispatcher: ToolDispatcher,
    call: AdmittedCall,
    context: ToolCallContext,
) -> tuple[list[Gate], tuple[str, JsonValue] | None]:
    """Return what policies say or depend on; and name and arguments if one changes them."""
    if pipeline is None:
        return [], None
    status = pipeline.status
    gates: list[Gate] = []
    changed: tuple[str, JsonValue] | None = None
    for hook in _HOOKS:
        if status.refuses_all or hook in status.refused_hooks:
            error = pipeline.not_ready(hook)
            gates.append(Gate(hook, False, "pipeline", error.message, error.fix or ""))
            continue
        plan = pipeline.plans.get(hook)
        if plan is None:
            continue
        if hook == _HOOKS[0]:
            found, changed = await _asked_gates(pipeline, plan, dispatcher, call, context)
            gates += found
        else:
            names = ", ".join(step.name for step in plan.steps)
            gates.append(Gate(hook, None, "pipeline", f"depends on the result: {names}"))
    return gates, changed


async def _asked_gates(
    pipeline: Pipeline,
    plan: Plan,
    dispatcher: ToolDispatcher,
    call: AdmittedCall,
    context: ToolCallContext,
) -> tuple[list[Gate], tuple[str, JsonValue] | None]:
    from kaged.pipeline.errors import PluginError  # noqa: PLC0415 - loaded only with a pipeline
    from kaged.pipeline.remote import to_json  # noqa: PLC0415 - as above

    gates: list[Gate] = []
    outcome: HookOutcome | None = None
    failed = ""
    if any(step.pure for step in plan.steps):
        try:
            outcome = await dispatcher.dry_outcome(call, context, pipeline)
        except PluginError as error:
            failed = error.error.plugin_name
    denier = failed or (None if outcome is None else outcome.denied_by)
    before: list[str] = []  # who may change the call before a pure policy sees it
    for step in plan.steps:
        if step.switch.off:
            continue
        rule = f"policy {step.name}"
        if not step.pure:
            gates.append(Gate(plan.hook, None, rule, f"depends on {step.depends_on}"))
            before += [step.name] if step.may_edit else []
        elif step.name != denier:
            edits = outcome is not None and step.name in outcome.changed_by
            gates.append(Gate(plan.hook, True, rule, "changes the call" if edits else ""))
        else:
            gates.append(_denied_gate(plan.hook, rule, outcome, before))
            break  # those behind it are not asked
    if outcome is None or denier or not outcome.changed or before:
        return gates, None
    return gates, (str(outcome.payload.name), to_json(outcome.payload.args or {}))


def _denied_gate(hook: str, rule: str, outcome: HookOutcome | None, before: list[str]) -> Gate:
    refusal = None if outcome is None else outcome.refusal
    words = "the policy failed" if refusal is None else refusal.words
    remedy = "" if refusal is None else refusal.fix
    if outcome is not None and outcome.wants_approval:
        return Gate(hook, None, rule, f"depends on a person's yes: {words}", remedy)
    if before:
        return Gate(hook, None, rule, f"depends on {', '.join(before)}: {words}", remedy)
    return Gate(hook, False, rule, words, remedy)
