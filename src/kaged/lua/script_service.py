"""`ScriptService`: the Lua scripts of the loaded projects, each project with workers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from kaged import __version__
from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.log import get_logger
from kaged.cage.net import SystemResolver
from kaged.config.settings import read_settings
from kaged.inbox import AnsweredBy, Inbox
from kaged.lua.calls import CallParts, HostCalls
from kaged.lua.check import check_script
from kaged.lua.dialogs import DialogAnswers, Dialogs
from kaged.lua.errors import ScriptDown, ScriptToolFailed
from kaged.lua.folder import FoundScripts, ScriptFile, read_folders
from kaged.lua.hooked_calls import ScriptPolicies
from kaged.lua.keeping import ScriptStore
from kaged.lua.limits import ScriptLimits
from kaged.lua.moves import ScriptSessions
from kaged.lua.programs import ScriptPrograms
from kaged.lua.runtime import ScriptRuntime
from kaged.lua.script import ScriptParts
from kaged.lua.session_events import SessionEventForwarder
from kaged.lua.tools import ScriptTools
from kaged.lua.web import ScriptWeb
from kaged.projects.loaded import no_usable_project
from kaged.projects.readiness import Guard, Ready

if TYPE_CHECKING:
    from pathlib import Path

    from kaged.audit import AuditLog
    from kaged.base import Clock, Ids
    from kaged.cage import Spawner
    from kaged.config.agents import AgentTree
    from kaged.config.daemonconfig import PluginsSection
    from kaged.config.settings import Settings
    from kaged.events import EventHub
    from kaged.kernel.identity import Actor
    from kaged.kernel.lua_powers import LuaPowers
    from kaged.lua.script import ScriptHost
    from kaged.models.provided import ProviderQuestion
    from kaged.pipeline.pipeline import Pipeline
    from kaged.sessions.session_services import SessionServices
    from kaged.sessions.transforms import Transforms
    from kaged.tools.registry import ToolRegistry
    from kaged.workspace import Workspace

TOPIC: Final = "lua"
KEPT: Final = "lua-store"
DIALOG_WAIT_S: Final = 25.0

_log = get_logger("kaged.lua")


class ScriptService:
    """The scripts of every loaded project; what HTTP and the command line ask about them."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        environ: Mapping[str, str],
        workspace_of: Callable[[str], Workspace],
        sessions: SessionServices,
        registry: ToolRegistry,
        *,
        spawner: Spawner,
        audit: AuditLog,
        hub: EventHub,
        inbox: Inbox,
        clock: Clock,
        ids: Ids,
        limits: ScriptLimits | None = None,
        ready: Ready,
        guard: Guard | None = None,
        pipeline: Callable[[], Pipeline | None] = lambda: None,
    ) -> None:
        self._pipeline = pipeline
        self._project_ready = ready
        self._guard = guard or Guard("scripts", each_project=True)
        self._settings = settings
        self._environ = environ
        self._workspace_of = workspace_of
        self._sessions = sessions
        self._spawner = spawner
        self._audit = audit
        self._hub = hub
        self._dialog_answers = DialogAnswers(inbox)
        self._clock = clock
        self._ids = ids
        self._limits = limits or ScriptLimits()
        self._resolver = SystemResolver()
        self._runtimes: dict[str, ScriptRuntime] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks("lua")
        self._open = asyncio.Event()
        self.tools = ScriptTools(
            registry, self._call_tool, lambda: bool(self._settings().daemon.value.lua.net)
        )
        # What a reload read from config.toml, and the settings that were in force then: once the
        # daemon has others, those are newer.
        self._reread: tuple[Settings, PluginsSection] | None = None

    # -- projects ------------------------------------------------------------------------------

    def forward_events(self, transforms: Transforms | None) -> SessionEventForwarder:
        """Tie the scripts to the daemon's sessions."""
        session_services = self._sessions
        return SessionEventForwarder(
            self._runtimes.get,
            session_services.lifecycle,
            session_services.navigation,
            session_services.transcript,
            transforms,
            self._audit.post,
        )

    def run(self) -> None:
        """Let scripts start: cages can be made now."""
        self._open.set()

    def project_loaded(self, project_id: str, _tree: AgentTree) -> None:
        """Load the scripts for a project; one that is loaded already keeps its scripts."""
        if project_id not in self._runtimes:
            runtime = self._make(project_id)
            self._runtimes[project_id] = runtime
            self._loads[project_id] = self._tasks.start(self._load(project_id, runtime), project_id)

    def project_unloaded(self, project_id: str) -> None:
        """End a project's scripts."""
        runtime = self._runtimes.pop(project_id, None)
        loading = self._loads.pop(project_id, None)
        if loading is not None:
            loading.cancel()
        if runtime is not None:
            self._tasks.start(runtime.close(), f"end of {project_id}")

    async def close(self) -> None:
        """End all scripts."""
        for loading in self._loads.values():
            loading.cancel()
        await asyncio.gather(*(one.close() for one in self._runtimes.values()))
        self._runtimes.clear()
        await self._tasks.close()
        self._resolver.close()

    # -- what people ask -----------------------------------------------------------------------

    async def describe(self, project_id: str) -> JsonObject:
        """Return a project's scripts and commands, once they are loaded.

        Raises `project_not_found`.
        """
        runtime = await self._ready(project_id)
        grants = self._plugins.capabilities
        return {
            "folder": str(self._folder()),
            **runtime.describe(),
            "commands": [*runtime.commands()],
            "problems": [str(one) for one in grants.problems],
        }

    async def command(
        self, project_id: str, name: str, raw: str, *, interactive: bool
    ) -> JsonObject:
        """Run a command of a script, once its project is guarded.

        Raises `lua_command_not_found`, `project_not_found` and ProjectOpening.
        """
        await self._project_ready(project_id)
        runtime = await self._ready(project_id)
        output = await runtime.command(name.lstrip("/:"), raw, interactive=interactive)
        return output.as_json()

    async def dialogs(self, project_id: str, wait_s: float) -> list[JsonObject]:
        """Return the open dialogs, waiting for one if there is none. The waiter is a front end."""
        runtime = await self._ready(project_id)
        if wait_s <= 0:
            return [*runtime.dialogs.open()]
        return [*await runtime.dialogs.wait(min(wait_s, DIALOG_WAIT_S))]

    async def answer(self, project_id: str, dialog_id: str, value: JsonValue, who: Actor) -> None:
        """Answer a dialog; null dismisses it. Raises `lua_dialog_not_found`."""
        runtime = await self._ready(project_id)
        await runtime.dialogs.answer(dialog_id, value, AnsweredBy.of(who))

    async def front(
        self, project_id: str, script: str, entry: str, params: JsonObject
    ) -> JsonObject:
        """Let a script draw, complete or handle a key for a front end. Raises ScriptDown."""
        return await (await self._ready(project_id)).ask_ui(script, entry, params)

    async def reload(self, project_id: str, who: Actor) -> JsonObject:
        """Read the folder and the grants again and load everything anew.

        Raises:
            KagedError: `project_not_found`; no such project is loaded.
            ConfigInvalid: config.toml cannot be used; everything stays as it was.
        """
        runtime = await self._ready(project_id)
        settings = self._settings()
        fresh = await asyncio.to_thread(read_settings, settings.places, self._environ)
        self._reread = (settings, fresh.daemon.value.plugins)
        _log.info("lua.reloaded", project=project_id, request_id=who.request_id)
        await self._load(project_id, runtime)
        return await self.describe(project_id)

    async def check(self, name: str, source: str) -> JsonObject:
        """Load a script once without letting it do anything; return what it asks for."""
        file = ScriptFile(name, f"{name}.lua", source)
        return await check_script(file, self._granted(name), self._parts)

    async def ask_model(self, question: ProviderQuestion) -> AsyncGenerator[JsonObject]:
        """Yield what a project's script answers as a model. Raises ModelError."""
        runtime = await self._ready(question.project_id)
        async with aclosing(runtime.providers.ask(question)) as events:
            async for event in events:
                yield event

    def stated_window(self, project_id: str, provider: str, model: str) -> int | None:
        """Return the window of a model as a project's script states it; None when none does."""
        runtime = self._runtimes.get(project_id)
        return None if runtime is None else runtime.providers.stated_window(provider, model)

    # -- own -----------------------------------------------------------------------------------

    async def _call_tool(
        self, project_id: str, stem: str, name: str, arguments: JsonObject, session_id: str
    ) -> JsonObject:
        try:
            runtime = await self._ready(project_id)
            return await runtime.call_tool(stem, name, arguments, session_id)
        except ScriptDown as error:
            raise ScriptToolFailed(error.message, fix=error.fix or "") from error

    async def _ready(self, project_id: str) -> ScriptRuntime:
        runtime = self._runtimes.get(project_id)
        if runtime is None:
            raise no_usable_project(project_id)
        loading = self._loads.get(project_id)
        if loading is not None:
            await asyncio.wait({loading})
        return runtime

    def _make(self, project_id: str) -> ScriptRuntime:
        session_services, workspace = self._sessions, self._workspace_of(project_id)
        sessions = ScriptSessions(
            project_id,
            service=session_services.service,
            transcript=session_services.transcript,
            navigation=session_services.navigation,
            driver=lambda: session_services.driver,
            audit=self._audit.post,
        )
        stores: dict[str, ScriptStore] = {}
        folder = self._settings().places.state_dir / KEPT

        def publish(name: str, data: JsonObject) -> None:
            self._hub.publish(f"{TOPIC}:{project_id}", name, {"project_id": project_id, **data})

        def store_of(stem: str) -> ScriptStore:
            return stores.setdefault(stem, ScriptStore(folder, project_id, stem))

        async def describe() -> JsonObject:
            current = await sessions.current()
            header = (
                await session_services.transcript.header(current) if current is not None else None
            )
            content = header.content if header is not None else {}
            return {
                "cwd": workspace.root,
                "model": content.get("model"),
                "system_prompt": content.get("system_prompt"),
            }

        granted = self._settings().daemon.value.lua
        web = ScriptWeb(granted.net, self._resolver, granted.net_trusted)
        dialogs = Dialogs(project_id, self._dialog_answers, self._ids, self._clock, publish)
        calls = HostCalls(
            CallParts(
                project_id=project_id,
                workspace=workspace,
                sessions=sessions,
                programs=ScriptPrograms(self._spawner, workspace, self._environ, project_id),
                web=web,
                dialogs=dialogs,
                clock=self._clock,
                environ=self._environ,
                audit=self._audit.post,
                notice=lambda script, level, message: runtime.notice(script, level, message),  # noqa: PLW0108 - made below
                store_of=store_of,
                describe=describe,
                policies=ScriptPolicies(
                    self._pipeline,
                    self._sessions.labels,
                    project_id,
                    self._clock,
                    self._ids,
                    web.trusts,
                ),
            )
        )
        runtime = ScriptRuntime(
            calls,
            sessions,
            dialogs,
            publish=publish,
            offer=partial(self.tools.offers, project_id),
            required=lambda: self._settings().daemon.value.lua.required,
        )
        return runtime

    async def _load(self, project_id: str, runtime: ScriptRuntime) -> None:
        """Load what the folder holds; until that is done, the scripts from before guard."""
        with self._guard.rising(project_id):
            found = await asyncio.to_thread(self._read)
            if found.scripts:  # only these need cages
                await self._open.wait()
            config = self._plugins.config
            await runtime.load(
                found,
                self._parts(runtime),
                self._granted,
                lambda stem: dict(config.get(stem, {})),
            )

    def _read(self) -> FoundScripts:
        return read_folders([self._folder()], self._settings().daemon.value.lua.enabled)

    def _folder(self) -> Path:
        settings = self._settings()
        return settings.daemon.value.lua.dir or settings.places.lua_dir

    def _granted(self, stem: str) -> LuaPowers:
        return self._plugins.capabilities.of(stem)

    @property
    def _plugins(self) -> PluginsSection:
        settings = self._settings()
        if self._reread is not None and self._reread[0] is settings:
            return self._reread[1]
        return settings.daemon.value.plugins

    def _parts(self, host: ScriptHost) -> ScriptParts:
        return ScriptParts(
            spawner=self._spawner,
            clock=self._clock,
            limits=self._limits,
            host=host,
            host_version=__version__,
            strict_context=self._settings().daemon.value.lua.strict_context,
        )
