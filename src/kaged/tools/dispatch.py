"""`ToolDispatcher`: every tool call, whoever asks, passes here once and in this order.

    resolve → scope → enabled → validate → decide → pipeline → run → pipeline → record

The first step that fails ends the call; no later one has any effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.access import missing_access
from kaged.kernel.permissions import PathFact
from kaged.tools.call import ToolInvocation
from kaged.tools.context import require_complete
from kaged.tools.dry_run import is_held_back, report_of
from kaged.tools.errors import ToolCapabilityRefused, ToolError
from kaged.tools.faults import agent_error, broken_tool
from kaged.tools.gates import (
    arguments,
    no_such_tool,
    parse_args,
    require_edition,
    require_enabled,
    require_open,
    require_scope,
    resolve_path,
)
from kaged.tools.outcomes import OutcomeSink, StartSink, ToolOutcome, ToolStart
from kaged.tools.permissions import ToolPermissions
from kaged.tools.registry import FoundTool
from kaged.tools.result_text import PLAIN_VIEW, ResultView
from kaged.tools.shown_results import ShownResults
from kaged.tools.trail import CANCELLED, CallTrail, is_refusal

if TYPE_CHECKING:
    from kaged.audit import AuditLog
    from kaged.base import Clock, JsonValue
    from kaged.kernel.access import AccessGrant
    from kaged.kernel.permissions import CompiledPolicy
    from kaged.pipeline.hooked_call import HookOutcome
    from kaged.pipeline.pipeline import Pipeline
    from kaged.tools.asking_gate import AskingGate
    from kaged.tools.call_approvals import CallApprovals
    from kaged.tools.context import ToolCallContext
    from kaged.tools.hooked_tool_call import HookedToolCall
    from kaged.tools.quotas import CallQuotas
    from kaged.tools.registry import RegisteredTool, ToolRegistry
    from kaged.tools.resolution import AgentTools
    from kaged.tools.session_labels import SessionLabels
    from kaged.workspace import ProjectPath, Workspace

_UNLABELLED: frozenset[str] = frozenset()
_PRE, _POST, _DELEGATE = "tool_pre_invoke", "tool_post_invoke", "token_delegate"
_CANCELLATION: JsonObject = {"code": CANCELLED, "message": "The call was cancelled."}

_log = get_logger(__name__)


class Callers(Protocol):
    """What dispatch asks about a caller; the host answers from the loaded project."""

    def tools(self, context: ToolCallContext) -> AgentTools:
        """Return the tools of the calling agent, as they were fixed for its session."""
        ...

    def workspace(self, context: ToolCallContext) -> Workspace:
        """Return the workspace of the caller's project."""
        ...

    def could_have(self, context: ToolCallContext, name: str) -> bool:
        """Return whether a rule could give the calling agent a tool that it does not have."""
        ...


@dataclass(slots=True)  # not frozen: that would double what making one costs, and it is private
class AdmittedCall:
    """A call that passed every gate of the host: what is needed to run it."""

    entry: RegisteredTool
    args: JsonObject
    paths: tuple[ProjectPath, ...]
    policy: CompiledPolicy | None
    workspace: Workspace
    dry_run: bool = False

    @property
    def held_back(self) -> bool:
        """Return whether it is only told what the call would do."""
        return self.dry_run and is_held_back(self.entry.tool, self.args)


class ToolDispatcher:
    """Takes tool calls from agents and gives results, or a `ToolError`."""

    def __init__(
        self,
        registry: ToolRegistry,
        callers: Callers,
        audit: AuditLog,
        clock: Clock,
        *,
        pipeline: Callable[[], Pipeline | None] = lambda: None,
        outcomes: Sequence[OutcomeSink] = (),
        starts: Sequence[StartSink] = (),
        labels: SessionLabels | None = None,
        approvals: CallApprovals | None = None,
        quotas: CallQuotas | None = None,
        permissions: ToolPermissions | None = None,
        results: ShownResults | None = None,
        asking: AskingGate | None = None,
    ) -> None:
        self.registry = registry
        self.callers = callers
        self.permissions = permissions or ToolPermissions()
        self.results = results or ShownResults()
        self._audit = audit
        self._clock = clock
        self._pipeline = pipeline
        self._outcomes = tuple(outcomes)
        self._starts = tuple(starts)
        self._labels = labels
        self._approvals = approvals
        self._quotas = quotas
        self._asking = asking

    async def dispatch(
        self,
        name: str,
        params: JsonValue,
        context: ToolCallContext,
        *,
        schema_hash: str | None = None,
    ) -> JsonValue:
        """Carry out one call; `schema_hash` names the parameters that the caller has read.

        Raises:
            ToolError: whatever keeps it from having a result, in the one shape of all tools.
            ContextInvalid: the host's own context is incomplete; nothing was done or recorded.
        """
        require_complete(context)
        started_s = self._clock.monotonic_s()
        trail = CallTrail(self._audit, context, name)
        found = self.find(name, context)
        result: JsonValue = None
        error: ToolError | None = None
        start: ToolStart | None = None
        try:
            if found is not None:
                trail.tool_name, trail.alias = found.entry.name, found.alias
            if self._starts:
                start = self._begin(trail, params, context)
            await trail.called(params, "" if found is None else found.entry.source)
            call, context = await self._admitted(name, found, params, context, schema_hash)
            if self._quotas is not None:
                self._quotas.require(call.entry.definition, context)
            hooked = await self._hooked(call, context)
            if hooked is not None:
                changed = await hooked.before(call.entry, call.args)
                if changed is not None:
                    call = self._admit_changed(changed, call, hooked, trail, context)
            await self._label(call, hooked, context)
            # Nothing goes out for a call that is not carried out: no token is asked for.
            headers = None
            if hooked is not None and not call.held_back:
                headers = await hooked.headers(call.entry)
            await trail.admitted()
            result = await self._carry_out(call, headers, trail, context)
            if hooked is not None:
                result = await hooked.after(call.entry, result)
        except asyncio.CancelledError:
            duration_ms = self._since_ms(started_s)
            trail.cancelled(duration_ms)
            self._tell(trail, found, params, context, None, None, duration_ms, start)
            raise
        except KagedError as raised:
            error = agent_error(raised, context, trail.tool_name)
        # Boundary: a tool that breaks ends its own call, never the run or the daemon. A panic of a
        # Rust library under it is no `Exception`.
        except BaseException as raised:  # noqa: BLE001 - see above
            error = broken_tool(raised, context, trail.tool_name)
        duration_ms = self._since_ms(started_s)
        try:
            await trail.ended(error, duration_ms)
        finally:
            # Also when the caller is torn down just now: the call has its outcome.
            self._tell(trail, found, params, context, result, error, duration_ms, start, ended=True)
        if error is not None:
            raise error
        return result

    def admit(
        self,
        name: str,
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        schema_hash: str | None = None,
    ) -> AdmittedCall:
        """Take a call through the gates of the host; returns what is needed to run it.

        Has no effects.

        Raises:
            ToolError: the first gate that is closed.
        """
        tools = self.callers.tools(context)
        if found is None:
            raise no_such_tool(name, tools)
        entry = found.entry
        asked = arguments(found, params)
        require_scope(entry, context)
        require_enabled(entry, asked, tools, context.granted_tools)
        require_edition(entry, schema_hash)
        args = parse_args(entry, params, asked)
        admitted = self.decide(entry, args, context)
        admitted.dry_run = tools.dry_run
        return admitted

    def decide(
        self, entry: RegisteredTool, args: JsonObject, context: ToolCallContext
    ) -> AdmittedCall:
        """Decide a valid call: every path of it against the caller's cage.

        Raises:
            InvalidParams: a path leaves the project.
            ToolCapabilityRefused: the cage does not grant what the call needs.
        """
        tool = entry.tool
        workspace = self.callers.workspace(context)
        policy = self.permissions.compiled(context.cage_policy)
        wanted = tool.paths(args)
        paths = tuple([resolve_path(workspace, one) for one in wanted]) if wanted else ()
        requires = (
            tool.definition.requires if tool.requires_for is None else tool.requires_for(args)
        )
        if requires:
            decision = self.permissions.decide(requires, policy, wanted, paths)
            if not decision.allowed:
                if decision.fault:
                    _log.error(
                        "tools.permission_check_failed", tool=entry.name, fault=decision.fault
                    )
                raise ToolCapabilityRefused.of(decision)
        if paths:
            require_open(workspace, requires, wanted, paths)
        return AdmittedCall(entry, args, paths, policy, workspace)

    def missing_access(
        self, found: FoundTool, params: JsonValue, context: ToolCallContext
    ) -> tuple[AccessGrant, ...]:
        """Return the grants that a call lacks which `decide` refuses; nothing where none helps.

        Raises:
            ToolError: the arguments do not fit, or a path leaves the project.
        """
        tool = found.entry.tool
        policy = self.permissions.compiled(context.cage_policy)
        if policy is None:
            return ()
        args = parse_args(found.entry, params, arguments(found, params))
        workspace = self.callers.workspace(context)
        facts = [
            PathFact(one.value, resolve_path(workspace, one).resolved, one.search)
            for one in tool.paths(args)
        ]
        requires = (
            tool.definition.requires if tool.requires_for is None else tool.requires_for(args)
        )
        return missing_access(requires, policy, facts, workspace.root)

    def could_have(self, context: ToolCallContext, name: str) -> bool:
        """Return whether a rule could give the calling agent a tool that it does not have."""
        return self.callers.could_have(context, name)

    def find(self, name: str, context: ToolCallContext) -> FoundTool | None:
        """Return what a name stands for to this caller."""
        found = self.registry.find(name)
        if found is None and name.startswith("agent-"):
            entry = self.callers.tools(context).synthetic.get(name)
            return None if entry is None else FoundTool(entry)
        return found

    async def shown(
        self,
        name: str | None,
        result: JsonValue,
        context: ToolCallContext,
        *,
        room_tokens: int | None = None,
    ) -> str:
        """Return the text with which a result enters the window of whoever called.

        `room_tokens` is how much room the window has for it. Without a name it is words of the
        host: an error, or what a person answered.
        """
        try:
            view, readers = (
                self._view(name, context),
                frozenset(self.callers.tools(context).enabled),
            )
        except KagedError:
            # The project was unloaded meanwhile: nothing can be read any more, and nothing is kept.
            view, readers = PLAIN_VIEW, frozenset[str]()
        return await self.results.show(
            result, context, view=view, readers=readers, room_tokens=room_tokens
        )

    def fits(self, name: str, text: str, context: ToolCallContext) -> bool:
        """Return whether a result's text may enter a window as it is."""
        return self.results.fits(text, self._view(name, context))

    async def dry_outcome(
        self, call: AdmittedCall, context: ToolCallContext, pipeline: Pipeline
    ) -> HookOutcome:
        """Return what the pure policies say about a call that is not made. Raises PluginError."""
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.tools.hooked_tool_call import (  # noqa: PLC0415 - see the line above
            ask_pure_policies,
        )

        labels = self._labels
        known = _UNLABELLED if labels is None else await labels.of(context.session_id)
        return await ask_pure_policies(pipeline, context, call.entry, call.args, self._clock, known)

    # -- own -----------------------------------------------------------------------------------

    def _view(self, name: str | None, context: ToolCallContext) -> ResultView:
        found = None if name is None else self.find(name, context)
        return PLAIN_VIEW if found is None else found.entry.tool.view

    async def _admitted(
        self,
        name: str,
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        schema_hash: str | None,
    ) -> tuple[AdmittedCall, ToolCallContext]:
        """Admit a call, with a question to a person on the way if its agent may ask one."""
        if self._asking is not None and self.callers.tools(context).asks:
            return await self._asking.admit(self, name, found, params, context, schema_hash)
        return self.admit(name, found, params, context, schema_hash), context

    async def _carry_out(
        self,
        call: AdmittedCall,
        headers: Mapping[str, str] | None,
        trail: CallTrail,
        context: ToolCallContext,
    ) -> JsonValue:
        """Run the tool, or tell what it would do."""
        if call.held_back:
            trail.dry_run = True
            return report_of(call.entry.tool, call.args, call.paths)
        if _changes(call):
            await trail.require_durable()
        handed = ToolInvocation(
            context,
            call.args,
            call.paths,
            call.policy,
            call.workspace,
            self._audit,
            call.entry.name,
            headers,
        )
        return await call.entry.tool.handler(handed)

    async def _hooked(self, call: AdmittedCall, context: ToolCallContext) -> HookedToolCall | None:
        """Open the way through the extension pipeline, if a plugin waits on it."""
        pipeline = self._pipeline()
        if pipeline is None or not (
            pipeline.has_hooks_for(_PRE)
            or pipeline.has_hooks_for(_POST)
            or (call.entry.tool.endpoint is not None and pipeline.has_hooks_for(_DELEGATE))
        ):
            return None
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.tools.hooked_tool_call import HookedToolCall  # noqa: PLC0415 - see the line above

        labels = self._labels
        known = _UNLABELLED if labels is None else await labels.of(context.session_id)
        return HookedToolCall(
            pipeline, context, call.entry, self._clock, known, labels, self._approvals
        )

    async def _label(
        self, call: AdmittedCall, hooked: HookedToolCall | None, context: ToolCallContext
    ) -> None:
        """Put what a tool's results are known to be on the session.

        Before the call, because an error or half of an answer is as much a result.
        """
        tool = call.entry.tool
        if not tool.labels:
            return
        if self._labels is not None:
            await self._labels.add(
                context.session_id, tool.labels, source=call.entry.name, run_id=context.run_id
            )
        if hooked is not None:
            hooked.label(tool.labels)

    def _admit_changed(
        self,
        changed: tuple[str, JsonValue],
        call: AdmittedCall,
        hooked: HookedToolCall,
        trail: CallTrail,
        context: ToolCallContext,
    ) -> AdmittedCall:
        """Take a call that a pipeline plugin changed through all gates again (EX-AMB-22)."""
        name, args = changed
        trail.changed_by = ", ".join(hooked.changed_by)
        outcome = "refused"
        try:
            again = self.admit(name, self.find(name, context), args, context)
            outcome = "decided"
        finally:
            trail.call_changed(hooked.change_record(call.entry.name, call.args, changed, outcome))
        return again

    def _begin(self, trail: CallTrail, params: JsonValue, context: ToolCallContext) -> ToolStart:
        """Notify the listeners that a call begins."""
        start = ToolStart(context, trail.tool_name, params)
        for sink in self._starts:
            try:
                sink.tool_started(start)
            # Boundary: who keeps or shows calls never changes them.
            except Exception as fault:  # noqa: BLE001 - see above
                _log.error("tools.start_not_delivered", tool=trail.tool_name, error=repr(fault))
        return start

    def _tell(
        self,
        trail: CallTrail,
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        result: JsonValue,
        error: ToolError | None,
        duration_ms: float,
        start: ToolStart | None,
        *,
        ended: bool = False,
    ) -> None:
        """Report how a call ended to those who keep and show it; one that has not was cancelled."""
        if not self._outcomes:
            return
        said = None if error is None else error.as_json()
        outcome = ToolOutcome(
            context=context,
            tool_name=trail.tool_name,
            alias=trail.alias,
            params=params,
            result=result if error is None else None,
            error=said if ended else dict(_CANCELLATION),
            denied=error is not None and is_refusal(error),
            duration_ms=duration_ms,
            tool_version="" if found is None else found.entry.definition.version,
            schema_hash="" if found is None else found.entry.schema_hash,
            start=start,
            cancelled=not ended,
        )
        for sink in self._outcomes:
            try:
                sink.tool_called(outcome)
            # Boundary: who keeps or shows outcomes never changes them.
            except Exception as fault:  # noqa: BLE001 - see above
                _log.error("tools.outcome_not_delivered", tool=trail.tool_name, error=repr(fault))

    def _since_ms(self, started_s: float) -> float:
        # To the microsecond; `round` to digits takes three times as long.
        return round((self._clock.monotonic_s() - started_s) * 1e6) / 1000


def _changes(call: AdmittedCall) -> bool:
    changes = call.entry.tool.changes
    return changes if isinstance(changes, bool) else changes(call.args)
