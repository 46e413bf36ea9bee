"""`AgentToolService`: the dispatcher of the loaded projects, as HTTP and the CLI see it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.ownership import OPERATORS, Ownership, ownership_of
from kaged.kernel.protected_paths import ProtectedRules
from kaged.projects.loaded import no_usable_project
from kaged.projects.readiness import Ready
from kaged.sessions.snapshot import SessionSnapshot, take_snapshot
from kaged.tools import ToolCallContext, ToolError, ToolSource
from kaged.tools.dispatch import ToolDispatcher
from kaged.tools.explain import explain_call
from kaged.tools.metrics import ToolMetrics
from kaged.tools.permissions import ToolPermissions, cage_summary
from kaged.tools.quotas import CallQuotas, QuotaRule
from kaged.tools.registry import ToolRegistry
from kaged.tools.resolution import AgentTools, resolve_tools
from kaged.workspace import FileLocks, FileThreads, Workspace
from kaged.workspace.locks import WAIT_LIMIT_S

if TYPE_CHECKING:
    from kaged.audit import AuditLog
    from kaged.base import Clock, Ids, JsonObject, JsonValue
    from kaged.config.agents import AgentTree
    from kaged.kernel.identity import Actor
    from kaged.kernel.policy import CagePolicy
    from kaged.pipeline.pipeline import Pipeline
    from kaged.tools.asking_gate import AskingGate
    from kaged.tools.call_approvals import CallApprovals
    from kaged.tools.definition import Handler, Tool
    from kaged.tools.outcomes import OutcomeSink, StartSink
    from kaged.tools.registry import RegisteredTool
    from kaged.tools.resolution import EnabledTool
    from kaged.tools.session_labels import SessionLabels
    from kaged.tools.shown_results import ShownResults
    from kaged.workspace import ProjectPath
    from kaged.workspace.journal_files import JournalFiles
    from kaged.workspace.undo_step import Author

_log = get_logger("kaged.tools")


async def _nothing(session_id: str, project_id: str, ownership: Ownership) -> None:
    """Remember no session."""


@dataclass(frozen=True, slots=True)
class ToolLinks:
    """What the tools of agents ask of, and tell to, services that are built on top of them.

    `delegate` answers `agent-<key>`; `fixed` gives the tools of callers whose session has fixed
    them; `outside` says whether an agent may have an outside server's tools; `run_ended` and
    `session_ended` are told.
    """

    delegate: Handler | None = None
    fixed: Callable[[ToolCallContext], AgentTools | None] = lambda _context: None
    outside: Callable[[str, str, str, AgentTree], bool] = lambda *_place: True
    run_ended: Sequence[Callable[[str, str], None]] = ()
    session_ended: Callable[[str], None] = lambda _session: None


MAX_CALLERS: Final = 1000
"""How many callers of a project's tools have a session each; the one not seen longest goes."""


@dataclass(frozen=True, slots=True)
class _CallerSession:
    """The session of somebody who calls tools without an agent in between."""

    session_id: str
    run_id: str


@dataclass(slots=True)
class _LoadedProject:
    """A loaded project: its agents, its files, and a session for each HTTP caller.

    The operator has one, and each person one in each chat: what they do is theirs. A reload begins
    new ones: what was resolved for the old ones is not changed under them.
    """

    tree: AgentTree
    workspace: Workspace
    callers: OrderedDict[Ownership, _CallerSession] = field(
        default_factory=OrderedDict[Ownership, _CallerSession]
    )
    resolved: dict[str, tuple[object, AgentTools]] = field(
        default_factory=dict[str, tuple[object, AgentTools]]
    )
    snapshot: tuple[SessionSnapshot, bool] | None = None


class AgentToolService:
    """Dispatches calls of agents of loaded projects; tells which tools they have, and why."""

    def __init__(
        self,
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        *,
        plugins_of: Callable[[str, str], Sequence[str]],
        pipeline: Callable[[], Pipeline | None],
        registry: ToolRegistry | None = None,
        outcomes: Sequence[OutcomeSink] = (),
        starts: Sequence[StartSink] = (),
        labels: SessionLabels | None = None,
        approvals: CallApprovals | None = None,
        quotas: Sequence[QuotaRule] = (),
        cages_off: Callable[[], bool] = lambda: False,
        on_session: Callable[[str, str, Ownership], Awaitable[object]] = _nothing,
        sealed: str | None = None,
        file_wait_s: float = WAIT_LIMIT_S,
        refuse_hard_links: bool = False,
        asking: AskingGate | None = None,
        undo_files: Callable[[str], JournalFiles | None] = lambda _project: None,
        rules: Callable[[str], ProtectedRules] = lambda _root: ProtectedRules(),
        on_reviewed: Callable[[str, str], None] = lambda _run, _path: None,
        ready: Ready,
        results: ShownResults | None = None,
    ) -> None:
        self._ready = ready
        self._sealed = sealed
        self._undo_files = undo_files
        self._rules = rules
        self._on_reviewed = on_reviewed
        self._audit = audit
        self._links = ToolLinks()
        self._on_session = on_session
        self._begun: set[str] = set()
        self.registry = ToolRegistry() if registry is None else registry
        self.metrics = ToolMetrics(clock)
        self.dispatcher = ToolDispatcher(
            self.registry,
            self,
            audit,
            clock,
            pipeline=pipeline,
            outcomes=(*outcomes, self.metrics),
            starts=starts,
            labels=labels,
            approvals=approvals,
            quotas=CallQuotas(quotas, clock) if quotas else None,
            permissions=ToolPermissions(refuse_hard_links=refuse_hard_links),
            results=results,
            asking=asking,
        )
        self._clock = clock
        self._ids = ids
        self._plugins_of = plugins_of
        self._cages_off = cages_off
        self._pipeline = pipeline
        self._projects: dict[str, _LoadedProject] = {}
        self._edition = 0
        self._locks = FileLocks(clock, file_wait_s)
        self._threads = FileThreads()
        self.registry.subscribe(self._registry_changed)

    def connect(self, links: ToolLinks) -> None:
        """Take what was built later; before any project is loaded."""
        self._links = links

    def register(self, tools: Sequence[Tool]) -> None:
        """Take in built-in tools."""
        self.registry.register_all(tools)

    # -- projects ------------------------------------------------------------------------------

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take in a project, or its files read anew."""
        known = self._projects.get(project_id)
        root = str(tree.project.root)
        workspace = (
            known.workspace
            if known is not None and known.tree.project.root == tree.project.root
            else Workspace(
                root,
                locks=self._locks,
                clock=self._clock,
                threads=self._threads,
                sealed=self._sealed,
                undo=self._undo_files(project_id),
                rules=self._rules(os.path.realpath(root)),
                on_reviewed=partial(self._reviewed, project_id),
            )
        )
        self._projects[project_id] = _LoadedProject(tree, workspace)
        for caller in () if known is None else known.callers.values():
            self._run_ended(project_id, caller.run_id)
        for agent in tree:
            for warning in self.tools_of(project_id, agent.path).warnings:
                _log.warning("tools.rule_matches_nothing", project=project_id, note=warning.message)

    def _reviewed(self, project_id: str, author: Author, path: ProjectPath, why: str) -> None:
        """Put on record that a tool wrote what a person should look at before it is trusted."""
        data: JsonObject = {
            "path": path.relative,
            "why": why,
            "who": author.caller,
            "run_id": author.run_id,
            "session_id": author.session_id,
        }
        self._audit.post(AuditEvent("protected_path.changed", data, project_id=project_id))
        self._on_reviewed(author.run_id, path.relative)

    def project_unloaded(self, project_id: str) -> None:
        """Forget a project."""
        known = self._projects.pop(project_id, None)
        if known is None:
            return
        for caller in known.callers.values():
            self._begun.discard(caller.session_id)
            known.workspace.reads.forget_session(caller.session_id)

    def tools_of(self, project_id: str, agent_path: str) -> AgentTools:
        """Return the tools of an agent as they are now.

        Raises `project_not_found`, `agent_not_found`.
        """
        project = self._require(project_id, agent_path)
        plugins = frozenset(self._plugins_of(project_id, agent_path))
        key = (self._edition, plugins)
        known = project.resolved.get(agent_path)
        if known is not None and known[0] == key:
            return known[1]
        fresh = self._resolve(project_id, project, agent_path, plugins)
        project.resolved[agent_path] = (key, fresh)
        return fresh

    def _resolve(
        self,
        project_id: str,
        project: _LoadedProject,
        agent_path: str,
        plugins: frozenset[str],
        also: str | None = None,
    ) -> AgentTools:
        return resolve_tools(
            project.tree,
            agent_path,
            self.registry,
            plugins=plugins,
            delegate=self._links.delegate,
            outside=lambda owner: self._links.outside(owner, project_id, agent_path, project.tree),
            also=also,
        )

    def snapshot(self, project_id: str) -> SessionSnapshot:
        """Fix the agents of a project as they are now; sessions that find the same share it.

        Raises:
            KagedError: `project_not_found`; it is not loaded.
        """
        project = self._project(project_id)
        tools: dict[str, AgentTools] = {
            agent.path: self.tools_of(project_id, agent.path) for agent in project.tree
        }
        off = self._cages_off() and not project.tree.restricted
        known = project.snapshot
        if known is not None and known[1] == off:
            agents = known[0].agents
            if all(agents[path].tools is own for path, own in tools.items()):
                return known[0]
        fresh = take_snapshot(
            project_id,
            project.tree,
            self.registry,
            tools,
            root=project.workspace.root,
            cages_off=off,
        )
        project.snapshot = (fresh, off)
        return fresh

    # -- what dispatch asks --------------------------------------------------------------------

    def tools(self, context: ToolCallContext) -> AgentTools:
        """Return the tools of the caller, as its session has them."""
        fixed = self._links.fixed(context)
        return self.tools_of(context.project_id, context.caller) if fixed is None else fixed

    def workspace(self, context: ToolCallContext) -> Workspace:
        """Return the workspace of the caller's project. Raises `project_not_found`."""
        return self._require(context.project_id, context.caller).workspace

    def could_have(self, context: ToolCallContext, name: str) -> bool:
        """Return whether a rule could give the calling agent a tool that it does not have."""
        project_id, agent = context.project_id, context.caller
        project = self._require(project_id, agent)
        plugins = frozenset(self._plugins_of(project_id, agent))
        return name in self._resolve(project_id, project, agent, plugins, name).enabled

    def workspace_of(self, project_id: str) -> Workspace:
        """Return the workspace of a loaded project. Raises `project_not_found`."""
        return self._project(project_id).workspace

    # -- what people ask -----------------------------------------------------------------------

    def list(self, project_id: str, agent: str) -> JsonObject:
        """Describe the tools of an agent, with the rule that gives it each."""
        tools = self.tools_of(project_id, agent)
        exported = {str(one["name"]): one for one in tools.export(self.registry)}
        described: list[JsonValue] = []
        for name in tools.names:
            entry = self.registry.get(name) or tools.synthetic.get(name)
            if entry is not None:
                shown = _described(entry, tools.enabled.get(name))
                described.append({**shown, "parameters": exported[name]["parameters"]})
        warnings: list[JsonValue] = [
            {"pattern": one.pattern, "line": one.line, "message": one.message}
            for one in tools.warnings
        ]
        project = self._projects[project_id]
        policy = self._policy(project, agent)
        return {
            "agent": agent,
            "cage": cage_summary(policy, str(project.tree.project.root)),
            "dry_run": tools.dry_run,
            "tools": described,
            "warnings": warnings,
        }

    async def call(
        self,
        project_id: str,
        agent: str,
        name: str,
        params: JsonObject,
        who: Actor,
        *,
        schema_hash: str | None = None,
    ) -> JsonObject:
        """Make a call as an agent, on behalf of somebody, in a session of their own.

        Raises:
            ToolError: with `number` and `detail` in its data.
            KagedError: `project_not_found`, `agent_not_found`; there is no such caller.
            ProjectOpening: what guards the project is not loaded.
        """
        await self._ready(project_id)
        context = self._context(project_id, agent, who)
        await self.begin_session(context)
        try:
            result = await self.dispatcher.dispatch(name, params, context, schema_hash=schema_hash)
        except ToolError as error:
            error.data = {**error.data, "number": int(error.number), "detail": error.detail}
            raise
        return {"request_id": context.request_id, "result": result}

    async def explain(
        self, project_id: str, agent: str, name: str, params: JsonObject, who: Actor
    ) -> JsonObject:
        """Return whether a call would be allowed, by which rules, and what would change that."""
        context = self._context(project_id, agent, who)
        found = await explain_call(
            self.dispatcher, name, params, context, pipeline=self._pipeline()
        )
        return found.as_json()

    def stats(self, project_id: str | None, agent: str | None, tool: str | None) -> JsonObject:
        """Return how often tools were called, how that ended and how long it took."""
        return self.metrics.stats(project_id=project_id, agent=agent, tool=tool)

    # -- what other edges ask ------------------------------------------------------------------

    def context_for(
        self, project_id: str, agent: str, who: Actor, *, session_id: str, run_id: str
    ) -> ToolCallContext:
        """Return the context of a call in a session that the edge keeps itself (AT-CTX-01)."""
        return self._context(project_id, agent, who, _CallerSession(session_id, run_id))

    async def dispatch(
        self,
        name: str,
        params: JsonObject,
        context: ToolCallContext,
        *,
        schema_hash: str | None = None,
    ) -> JsonValue:
        """Make a call in such a context. Raises ToolError, ProjectOpening."""
        await self._ready(context.project_id)
        await self.begin_session(context)
        return await self.dispatcher.dispatch(name, params, context, schema_hash=schema_hash)

    async def begin_session(self, context: ToolCallContext) -> None:
        """Put the session of a caller into the store, once."""
        if context.session_id not in self._begun:
            who = context.identity
            ownership = OPERATORS if who is None else ownership_of(who)
            await self._on_session(context.session_id, context.project_id, ownership)
            self._begun.add(context.session_id)

    def session_ended(self, context: ToolCallContext) -> None:
        """Let go of what a session of an edge left behind."""
        self._let_go(context.project_id, context.session_id, context.run_id)

    # -- own -----------------------------------------------------------------------------------

    def _context(
        self, project_id: str, agent: str, who: Actor, caller: _CallerSession | None = None
    ) -> ToolCallContext:
        project = self._require(project_id, agent)
        caller = caller or self._caller(project_id, project, who)
        return ToolCallContext(
            session_id=caller.session_id,
            run_id=caller.run_id,
            caller=agent,
            project_id=project_id,
            project_root=project.workspace.root,
            cage_policy=self._policy(project, agent),
            request_id=who.request_id,
            operator_id=who.operator_name,
            identity=who.if_known,
        )

    def _caller(self, project_id: str, project: _LoadedProject, who: Actor) -> _CallerSession:
        """Return the session of an HTTP caller: begun with their first call."""
        ownership = ownership_of(who)
        found = project.callers.get(ownership)
        if found is None:
            found = _CallerSession(f"ses_{self._ids.ulid()}", f"run_{self._ids.ulid()}")
            project.callers[ownership] = found
            if len(project.callers) > MAX_CALLERS:
                _, gone = project.callers.popitem(last=False)
                self._let_go(project_id, gone.session_id, gone.run_id)
        project.callers.move_to_end(ownership)
        return found

    def _let_go(self, project_id: str, session_id: str, run_id: str) -> None:
        self._begun.discard(session_id)
        project = self._projects.get(project_id)
        if project is not None:
            project.workspace.reads.forget_session(session_id)
        self._run_ended(project_id, run_id)
        self._links.session_ended(session_id)

    def _run_ended(self, project_id: str, run_id: str) -> None:
        for tell in self._links.run_ended:
            tell(project_id, run_id)

    def _policy(self, project: _LoadedProject, agent: str) -> CagePolicy | None:
        """Return the policy for an agent's calls; None when the operator wants no cages.

        A restricted project is held to its policy all the same.
        """
        off = self._cages_off() and not project.tree.restricted
        return None if off else project.tree[agent].cage.value

    def _project(self, project_id: str) -> _LoadedProject:
        project = self._projects.get(project_id)
        if project is None:
            raise no_usable_project(project_id)
        return project

    def _require(self, project_id: str, agent_path: str) -> _LoadedProject:
        project = self._project(project_id)
        if agent_path not in project.tree.agents:
            known = ", ".join(sorted(project.tree.agents))
            raise KagedError(
                f"There is no agent {agent_path!r}.",
                code="agent_not_found",
                fix=f"The agents are {known}.",
            )
        return project

    def _registry_changed(self) -> None:
        self._edition += 1


def _described(entry: RegisteredTool, enabled: EnabledTool | None) -> JsonObject:
    definition = entry.definition
    off: list[JsonValue] = [] if enabled is None else [*sorted(enabled.off)]
    synthetic = enabled is None
    return {
        "name": entry.name,
        "namespace": definition.namespace,
        "description": definition.description,
        "source": str(ToolSource.BUILTIN if synthetic else definition.source),
        "plugin_name": definition.plugin_name,
        "principal_scope": definition.principal_scope,
        "requires": [one.as_json() for one in definition.requires],
        "tool_version": definition.version,
        "schema_hash": entry.schema_hash,
        "why": "follows from the tree of agents" if enabled is None else enabled.why,
        "off_actions": off,
    }
