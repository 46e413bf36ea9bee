"""A dispatcher on a folder: the tools under test, one calling agent, and what went on record."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable, Redactor
from kaged.audit.folding import FoldingGate
from kaged.base import Clock, Ids, JsonObject, JsonValue, SystemClock
from kaged.config.jsonschemas import compile_schema
from kaged.kernel.net import parse_target
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode, SeccompProfile
from kaged.kernel.requirements import ToolRequirement
from kaged.pipeline.pipeline import Pipeline
from kaged.tools import (
    PathParam,
    Tool,
    ToolCallContext,
    ToolDefinition,
    ToolError,
    ToolInvocation,
    ToolSource,
)
from kaged.tools.dispatch import ToolDispatcher
from kaged.tools.outcomes import ToolOutcome
from kaged.tools.quotas import CallQuotas
from kaged.tools.registry import ToolRegistry
from kaged.tools.resolution import AgentTools, EnabledTool
from kaged.workspace import Workspace

HEALTH_WAIT_S = 60


class RecordedAudit:
    """An audit log in a list, redacted as the real one. `down` makes it fail like a full disk.

    `down_for` names events that alone cannot be written.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.raw: list[AuditEvent] = []
        self.down = False
        self.down_for: set[str] = set()
        self.flushes = 0
        self.folding = FoldingGate(SystemClock())
        self._redactor = Redactor()

    async def record(self, event: AuditEvent, *, durable: bool | None = None) -> None:
        self._keep(event, durable=bool(durable))

    def offer(self, event: AuditEvent) -> bool:
        if event.name in self.down_for:
            return False
        self._keep(event, durable=False)
        return True

    def post(self, event: AuditEvent) -> None:
        self._keep(event, durable=False)

    async def flush(self) -> None:
        self.flushes += 1
        if self.down:
            raise AuditUnavailable("the audit log cannot be written: disk full")

    def names(self) -> list[str]:
        """Return the names of the events, in order."""
        return [name for name, _ in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the data of the events of one name."""
        return [data for known, data in self.events if known == name]

    def _keep(self, event: AuditEvent, *, durable: bool) -> None:
        if event.name in self.down_for or (self.down and durable):
            raise AuditUnavailable("the audit log cannot be written: disk full")
        if self.down:
            return
        self.raw.append(event)
        data = self._redactor.redact(event)
        self.events.append(
            (event.name, {**data, "project_id": event.project_id, "request_id": event.request_id})
        )


def cage(
    *fs: str,
    root: Path,
    capabilities: Iterable[str] = (),
    net: Iterable[str] = (),
    relaxed: bool = False,
) -> CagePolicy:
    """Make a policy; `fs` entries are written `ro ./src`."""
    grants: list[FsGrant] = []
    for entry in fs:
        mode, _, path = entry.partition(" ")
        grants.append(FsGrant(os.path.normpath(root.resolve() / path), FsMode(mode)))
    return CagePolicy(
        fs=tuple(grants),
        net=tuple(map(parse_target, net)),
        capabilities=frozenset(capabilities),
        seccomp=SeccompProfile.RELAXED if relaxed else SeccompProfile.DEFAULT,
    )


@dataclass
class LabCallers:
    """Answers what dispatch asks: the same tools and workspace for every caller."""

    own_tools: AgentTools
    own_workspace: Workspace

    def tools(self, context: ToolCallContext) -> AgentTools:
        return self.own_tools

    def workspace(self, context: ToolCallContext) -> Workspace:
        return self.own_workspace

    def could_have(self, context: ToolCallContext, name: str) -> bool:
        return False


class ToolLab:
    """A dispatcher with the given tools, all enabled for one caller, on the folder `root`.

    `policy` None is a caller without a cage. `errors` of calls are raised; `refusal` gives them.
    """

    def __init__(
        self,
        root: Path,
        tools: Iterable[Tool],
        policy: CagePolicy | None = None,
        caller: str = "primary",
        *,
        enabled: Sequence[str] | None = None,
        off: JsonObject | None = None,
        clock: Clock | None = None,
        pipeline: Pipeline | None = None,
        quotas: CallQuotas | None = None,
        workspace: Workspace | None = None,
        session_id: str = "ses_1",
        log: AuditLog | None = None,
    ) -> None:
        """Make a lab; with `log` calls are recorded there and not in `audit`."""
        self.root = root.resolve()
        self.clock = clock or SystemClock()
        self.ids = Ids(self.clock)
        self.audit = RecordedAudit()
        self.outcomes: list[ToolOutcome] = []
        self.registry = ToolRegistry()
        self.registry.register_all(tools)
        self.workspace = workspace or Workspace(str(self.root))
        names = self.registry.names() if enabled is None else enabled
        switched = off or {}
        self.tools = AgentTools(
            agent=caller,
            enabled=MappingProxyType(
                {
                    name: EnabledTool(
                        name, "in the lab", frozenset(cast("list[str]", switched.get(name, [])))
                    )
                    for name in names
                }
            ),
            synthetic=MappingProxyType({}),
        )
        self.context = ToolCallContext(
            session_id=session_id,
            run_id="run_1",
            caller=caller,
            project_id="prj_1",
            project_root=str(self.root),
            cage_policy=policy,
            request_id="req_0",
        )
        self.dispatcher = ToolDispatcher(
            self.registry,
            LabCallers(self.tools, self.workspace),
            log or cast("AuditLog", self.audit),
            self.clock,
            pipeline=lambda: pipeline,
            outcomes=(self,),
            quotas=quotas,
        )
        self._calls = 0

    async def call(self, name: str, /, **params: JsonValue) -> Any:
        """Make a call; returns its result or raises its ToolError. Every call has its own id."""
        return await self.call_with(name, params)

    async def call_with(self, name: str, params: Any, **changes: Any) -> Any:
        """Make a call with any params; `changes` are fields of the context."""
        self._calls += 1
        context = replace(self.context, request_id=f"req_{self._calls}", **changes)
        result = await self.dispatcher.dispatch(name, params, context)
        self._check_shape(name, result)
        return result

    def _check_shape(self, name: str, result: JsonValue) -> None:
        """Check that a built-in tool returns plain JSON of its declared shape (AT-REG-07)."""
        json.dumps(result, allow_nan=False)
        found = self.registry.find(name)
        if found is not None and found.entry.definition.source is ToolSource.BUILTIN:
            compile_schema(found.entry.definition.returns).validate(result)

    async def refusal(self, name: str, /, **params: JsonValue) -> ToolError:
        """Make a call that must fail, and return its error."""
        return await self.refusal_with(name, params)

    async def refusal_with(self, name: str, params: Any, **changes: Any) -> ToolError:
        """Make a call with any params that must fail, and return its error."""
        try:
            result = await self.call_with(name, params, **changes)
        except ToolError as error:
            return error
        raise AssertionError(f"{name} answered {str(result)[:200]}")

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take note of an outcome, as the session manager does."""
        self.outcomes.append(outcome)


class Spy:
    """A tool's handler that remembers its calls and answers `result`, or raises `fails_with`."""

    def __init__(self, result: JsonValue = None) -> None:
        self.calls: list[ToolInvocation] = []
        self.result: JsonValue = {"ok": True} if result is None else result
        self.fails_with: BaseException | None = None

    async def __call__(self, call: ToolInvocation) -> JsonValue:
        self.calls.append(call)
        if self.fails_with is not None:
            raise self.fails_with
        return self.result


def make_tool(
    name: str = "file.peek",
    *,
    handler: Any = None,
    properties: JsonObject | None = None,
    required: Sequence[str] = (),
    requires: Iterable[ToolRequirement] = (),
    paths: Iterable[str] = (),
    search: Iterable[str] = (),
    plugin: str | None = None,
    root_only: bool = False,
    **tool_fields: Any,
) -> Tool:
    """Make a small tool; `paths` and `search` name the properties that hold paths."""
    given: JsonObject = dict(properties or {})
    path_fields, search_fields = tuple(paths), tuple(search)
    for field in (*path_fields, *search_fields):
        given.setdefault(field, {"type": "string"})

    def read_paths(args: JsonObject) -> tuple[PathParam, ...]:
        found: list[PathParam] = []
        for field in (*path_fields, *search_fields):
            value = args.get(field)
            values = value if isinstance(value, list) else [] if value is None else [value]
            found += [PathParam(field, str(one), search=field in search_fields) for one in values]
        return tuple(found)

    if path_fields or search_fields:
        tool_fields.setdefault("paths", read_paths)
    return Tool(
        ToolDefinition(
            name=name,
            namespace=plugin or name.partition(".")[0],
            description=f"The tool {name} of a test.",
            parameters={
                "type": "object",
                "properties": given,
                "required": list(required),
                "additionalProperties": False,
            },
            returns={"type": "object"},
            requires=tuple(requires),
            source=ToolSource.PLUGIN if plugin else ToolSource.BUILTIN,
            plugin_name=plugin,
            principal_scope="root-only" if root_only else None,
        ),
        handler or Spy(),
        **tool_fields,
    )


async def until_health(log: AuditLog, *, ok: bool) -> None:
    """Wait until a real audit log has noticed that its sink fails, or that it works again."""
    changed = asyncio.Event()
    stop = log.subscribe_health(lambda _health: changed.set())
    try:
        async with asyncio.timeout(HEALTH_WAIT_S):
            while log.health.ok is not ok:
                if ok and (await log.retry()).ok:  # now, not at the next interval
                    return
                await changed.wait()
                changed.clear()
    finally:
        stop()


__all__ = ["LabCallers", "RecordedAudit", "Spy", "ToolLab", "cage", "make_tool", "until_health"]
