"""`LanguageServices`: language servers and debuggers of the loaded projects, one pair each."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Final, NamedTuple

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.config.agents import AgentTree
from kaged.config.reading import Loaded
from kaged.config.serverchoice import (
    AdapterChoice,
    choose_dap_adapters,
    choose_lsp_servers,
    choose_parallel_requests,
)
from kaged.config.settings import Settings
from kaged.projects.loaded import no_usable_project
from kaged.toolbox.dap import BUILTIN, DapBridge, caged_launcher, dap_tools
from kaged.toolbox.lsp import DEFAULT_COMMANDS, LspBridge, ServerStopReason, lsp_tools
from kaged.toolbox.lsp.aftermath import EditDiagnosis
from kaged.toolbox.lsp.filesync import ListFiles
from kaged.toolbox.lsp.own_programs import require_out_of_reach
from kaged.tools import Tool, ToolInvocation
from kaged.toolset.guests_reach import GuestsReach
from kaged.workspace import Workspace
from kaged.workspace.changes import FileChange

SWEEP_S: Final = 30.0  # how late an idle server may be stopped

_log = get_logger("kaged.bridges")


class LanguageServicePair(NamedTuple):
    """What answers questions about a project's code, and what debugs it."""

    lsp: LspBridge
    dap: DapBridge


@dataclass(frozen=True, slots=True)
class _Choice:
    """Everything that a pair is made of; a pair is made anew when it changes."""

    servers: Mapping[str, tuple[str, ...]]
    parallel: Mapping[str, int]
    adapters: Mapping[str, AdapterChoice]
    idle_s: float
    limit_s: float
    wait_s: float


@dataclass(slots=True)
class _ServedProject:
    """A loaded project. `asked` is what `choice` was worked out from."""

    id: str
    tree: AgentTree
    workspace: Workspace
    unsubscribe: Callable[[], None]
    asked: object = None
    choice: _Choice | None = None
    pair: LanguageServicePair | None = None


class LanguageServices:
    """Makes each project's bridges when they are first needed, and ends them in time.

    A pair exists from the first question or the first file that a tool touches: servers that
    start later are told of those files. It stays the same for as long as the servers and adapters
    chosen for the project do.
    """

    def __init__(
        self,
        spawner: Spawner,
        settings: Callable[[], Settings],
        workspace_of: Callable[[str], Workspace],
        *,
        trusted: Callable[[str], bool],
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        environ: Mapping[str, str],
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._spawner = spawner
        self._settings = settings
        self._workspace_of = workspace_of
        self._trusted = trusted
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._environ = environ
        self._sweep_s = sweep_s
        self._launch_adapter = caged_launcher(spawner)
        self._list_files: ListFiles | None = None
        self._projects: dict[str, _ServedProject] = {}
        self._tasks = Tasks("bridges")
        # Held apart from the tasks that are cancelled at the end: these are let finish.
        self._ending = Tasks("ends of bridges")
        self._endings: set[asyncio.Task[None]] = set()
        self._sweeping = False
        self._closed = False

    @property
    def environ(self) -> Mapping[str, str]:
        """The host's variables, without those that nothing started for an agent may have."""
        return self._environ

    def connect(self, list_files: ListFiles) -> None:
        """Take what lists the files of a project; before any project is loaded."""
        self._list_files = list_files

    def tools(self) -> tuple[Tool, ...]:
        """Return `code.lsp` and `debug`, on the bridges of the caller."""
        return (
            *lsp_tools(lambda call: (pair := self._pair_of(call)) and pair.lsp),
            *dap_tools(lambda call: (pair := self._pair_of(call)) and pair.dap),
        )

    def diagnosis(self) -> EditDiagnosis:
        """Return what reports to the tools that change files what they broke; starts no server."""

        def bridge_of(call: ToolInvocation) -> LspBridge | None:
            project = self._projects.get(call.context.project_id)
            pair = None if project is None else project.pair
            return None if pair is None else pair.lsp

        return EditDiagnosis(bridge_of)

    # -- projects --------------------------------------------------------------------------------

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take in a project, or its files read anew; starts nothing."""
        known = self._projects.get(project_id)
        workspace = self._workspace_of(project_id)
        if known is not None and known.workspace is workspace:
            known.tree = tree
            return
        if known is not None:
            self.project_unloaded(project_id)

        def touched(change: FileChange) -> None:
            fresh = project.pair is None
            pair = self._pair(project)
            if fresh and pair is not None:
                # The bridge has only just begun to listen, and not been told of this one.
                pair.lsp.sync.hear(change)

        project = _ServedProject(project_id, tree, workspace, lambda: None)
        project.unsubscribe = workspace.changes.subscribe(touched)
        self._projects[project_id] = project

    def project_unloaded(self, project_id: str) -> None:
        """Let go of a project; its servers and debug sessions end in the background."""
        project = self._projects.pop(project_id, None)
        if project is not None:
            project.unsubscribe()
            self._end_later(project.pair, ServerStopReason.PROJECT)

    def get_bridges_for_project(self, root: str) -> LanguageServicePair:
        """Return the pair of the loaded project with this root. Raises `project_not_found`."""
        for project in self._projects.values():
            if project.workspace.root == root:
                pair = self._pair(project)
                if pair is not None:
                    return pair
        raise no_usable_project(f"in {root}")

    async def end_run(self, project_id: str, run_id: str) -> None:
        """End what a run has left behind in the debugger (AT-DAP-05)."""
        project = self._projects.get(project_id)
        if project is not None and project.pair is not None:
            await project.pair.dap.end_run(run_id)

    def run_ended(self, project_id: str, run_id: str) -> None:
        """Do the same as `end_run`, in the background."""
        if not self._closed:
            self._keep(self.end_run(project_id, run_id), f"end {run_id}")

    def servers(self, project_id: str) -> JsonObject:
        """Describe a project's language servers; starts none. Raises `project_not_found`."""
        project = self._projects.get(project_id)
        if project is None:
            raise no_usable_project(project_id)
        pair = self._pair(project)
        if pair is None:
            raise KagedError("The daemon is ending.", code="project_not_found")
        origins = self._origins(project)
        found: list[JsonValue] = []
        for language in pair.lsp.pool.known():
            status = pair.lsp.pool.status(language)
            installed, install = pair.lsp.pool.installed(language)
            found.append(
                {
                    **status,
                    "installed": installed,
                    "install": install,
                    "configured_by": origins[language],
                }
            )
        return {"servers": found}

    # -- time ------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Stop the servers that nobody has asked anything for too long."""
        for project in list(self._projects.values()):
            if project.pair is not None:
                await project.pair.lsp.pool.stop_idle()

    async def close(self) -> None:
        """End every server and debug session: the daemon ends."""
        self._closed = True
        await self._tasks.close()
        if self._endings:
            await asyncio.wait(self._endings)
        for project in self._projects.values():
            project.unsubscribe()
        pairs = [one.pair for one in self._projects.values() if one.pair is not None]
        self._projects.clear()
        await asyncio.gather(*(_end(pair, ServerStopReason.DAEMON) for pair in pairs))

    # -- own -------------------------------------------------------------------------------------

    def _pair_of(self, call: ToolInvocation) -> LanguageServicePair | None:
        project = self._projects.get(call.context.project_id)
        return None if project is None else self._pair(project)

    def _pair(self, project: _ServedProject) -> LanguageServicePair | None:
        """Return the pair of a project as its servers are chosen now; None when all is ending."""
        if self._closed:
            return project.pair
        settings, trusted = self._settings(), self._trusted(project.id)
        # Compared by identity: asked at every call, and each of these is replaced, never changed.
        asked = (id(project.tree), id(settings), trusted)
        if project.pair is not None and project.asked == asked:
            return project.pair
        choice = self._choose(project, settings, trusted=trusted)
        project.asked = asked
        if project.pair is not None and project.choice == choice:
            return project.pair
        before, project.choice = project.pair, choice
        project.pair = self._make(project, choice)
        if before is not None:
            project.pair.lsp.sync.remember(before.lsp.sync.tracked())
            self._end_later(before, ServerStopReason.RELOAD)
        if not self._sweeping:
            self._sweeping = True
            self._tasks.start(self._sweep_for_ever(), "idle language servers")
        return project.pair

    def _make(self, project: _ServedProject, choice: _Choice) -> LanguageServicePair:
        def emit(name: str, data: JsonObject) -> None:
            self._post(AuditEvent(name, data, project_id=project.id))

        return LanguageServicePair(
            LspBridge(
                project.workspace,
                choice.servers,
                self._spawner,
                clock=self._clock,
                emit=emit,
                environ=self._environ,
                idle_s=choice.idle_s,
                limit_s=choice.limit_s,
                parallel=choice.parallel,
                list_files=self._list_files,
                guard=lambda language, command: self._require_out_of_reach(
                    project, language, command
                ),
            ),
            DapBridge(
                project.workspace.root,
                choice.adapters,
                self._spawner,
                self._launch_adapter,
                ids=self._ids,
                emit=emit,
                environ=self._environ,
                changeable=lambda path: GuestsReach(project.tree).changeable(path),
                wait_s=choice.wait_s,
            ),
        )

    def _require_out_of_reach(
        self, project: _ServedProject, language: str, command: tuple[str, ...]
    ) -> None:
        """Refuse a server whose program, or a file of its command, a caged agent may write.

        A path that the operator's config.toml names is the operator's word. A bare name is not: it
        may be found in the project, where the daemon was started in its virtual environment.
        """
        if self._origins(project).get(language) == "config.toml":
            if project.choice is None or "/" in project.choice.servers[language][0]:
                return
            command = command[:1]
        writable = GuestsReach(project.tree).writable
        require_out_of_reach(language, command, project.workspace.root, writable)

    def _choose(self, project: _ServedProject, settings: Settings, *, trusted: bool) -> _Choice:
        loaded, daemon = Loaded(project.tree.project), settings.daemon
        servers = choose_lsp_servers(loaded, daemon, DEFAULT_COMMANDS, trusted=trusted)
        adapters = choose_dap_adapters(loaded, daemon, BUILTIN, trusted=trusted)
        return _Choice(
            {language: one.value for language, one in servers.items()},
            choose_parallel_requests(loaded, daemon, trusted=trusted),
            {runtime: one.value for runtime, one in adapters.items()},
            daemon.value.lsp.idle_timeout_seconds,
            daemon.value.lsp.request_timeout_seconds,
            daemon.value.dap.wait_seconds,
        )

    def _origins(self, project: _ServedProject) -> Mapping[str, str]:
        """Return which of the three places names each language's server."""
        own = {one.lang for one in project.tree.project.dsl.lsp.servers}
        operator = self._settings().daemon.value.lsp.servers
        trusted = self._trusted(project.id)
        return {
            language: "project"
            if trusted and language in own
            else ("config.toml" if language in operator else "built in")
            for language in ({} if project.choice is None else project.choice.servers)
        }

    def _end_later(self, pair: LanguageServicePair | None, reason: ServerStopReason) -> None:
        if pair is not None:
            self._keep(_end(pair, reason), "end of bridges")

    def _keep(self, work: Coroutine[object, object, None], name: str) -> None:
        ending = self._ending.start(work, name)
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _post(self, event: AuditEvent) -> None:
        try:
            self._audit.post(event)
        except AuditUnavailable as error:
            # What it tells of has happened already.
            _log.error("audit.event_lost", audit_event=event.name, error=str(error))

    async def _sweep_for_ever(self) -> None:
        while True:
            idle_s = self._settings().daemon.value.lsp.idle_timeout_seconds
            await asyncio.sleep(min(self._sweep_s, idle_s))
            await self.sweep()


def without(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return an environment without the variables whose names match one of these globs."""
    hidden = tuple(patterns)
    return {
        name: value
        for name, value in environ.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in hidden)
    }


async def _end(pair: LanguageServicePair, reason: ServerStopReason) -> None:
    await pair.dap.close()
    await pair.lsp.close(reason)
