"""`PluginService`: the plugin host as the HTTP edge sees it, and how it is put together."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kaged.base import JsonObject, JsonValue
from kaged.base.checks import CheckRow, CheckStatus
from kaged.config.agents import AgentTree
from kaged.config.pluginwords import PRIMARY
from kaged.config.problems import ConfigFileInvalid, Problem
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import AccessAction, may
from kaged.plugins.consent import ConsentService
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.gallery import gallery_directory, is_gallery_word
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.kept import OWNER_PREFIX
from kaged.plugins.knob_write import KnobService
from kaged.plugins.plugin_projects import START_PATIENCE_S, PluginProjects
from kaged.plugins.storage import StorageBroker
from kaged.plugins.storereader import StoreProblem
from kaged.plugins.supervisor import PluginSupervisor
from kaged.projects.agreement import SettingEdit
from kaged.projects.readiness import Ready
from kaged.store.session_rows import session_not_found
from kaged.wire.context import WireContext

if TYPE_CHECKING:
    from kaged.store.session_rows import SessionRecord

ReloadProject = Callable[[str, Actor, SettingEdit], Awaitable[object]]
"""Reads a project's files again on behalf of somebody."""

_KEPT: Final = "Data that uninstalled plugins left, for the same files only."
_NAMED: Final = 5


class PluginService:
    """Carries out what operators ask of plugins, and tells plugins about projects."""

    def __init__(
        self,
        installer: PluginInstaller,
        supervisor: PluginSupervisor,
        *,
        projects: PluginProjects,
        consents: ConsentService,
        knobs: KnobService,
        broker: StorageBroker,
        reload_project: ReloadProject,
        session_of: Callable[[str], Awaitable[SessionRecord]],
        ready: Ready,
    ) -> None:
        self._project_ready = ready
        self._session_of = session_of
        self._active_sessions: Callable[[Collection[str]], int] = lambda _projects: 0
        self.supervisor = supervisor
        self.projects = projects
        self._installer = installer
        self._consents = consents
        consents.connect(self._changed)
        self._knobs = knobs
        self._broker = broker
        self._reload_project = reload_project
        self._opened = asyncio.Event()

    def connect(self, active_sessions: Callable[[Collection[str]], int]) -> None:
        """Take what counts the sessions of projects that have a run under way."""
        self._active_sessions = active_sessions

    async def run(self) -> None:
        """Start what is enabled, then tell plugins about projects, for as long as the daemon runs.

        In a task of its own: neither a slow plugin nor a failing one holds up the daemon's start
        or the loading of a project.
        """
        try:
            await self._installer.open()
            await self.projects.open()
        finally:
            self._opened.set()
        await self.projects.run(self.supervisor.start_all(self._installer.store.enabled()))

    async def ready(self) -> None:
        """Wait until it is known what is installed; asked earlier, a plugin would not be there."""
        await self._opened.wait()

    async def wait_started(self) -> None:
        """Wait for plugins that are still starting; one that takes too long is done without.

        They have no tools yet, and a session keeps the tools that it starts with.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_PATIENCE_S):
                await self.ready()
                await self.projects.settled()

    async def apply_operator_settings(self) -> Sequence[Problem]:
        """Start plugins anew that the operator's files give something else; return their faults.

        A plugin whose section cannot be used goes on with what it was started with.
        """
        await self.ready()
        store, problems = self._installer.store, list[Problem]()
        for name, plugin in [*self.supervisor.plugins.items()]:
            try:
                fresh = await asyncio.to_thread(store.current, plugin.installed)
                half = await asyncio.to_thread(store.system_config, fresh)
            except ConfigFileInvalid as error:
                problems += error.problems
                continue
            await self.supervisor.operator_changed(name, fresh, half)
        return problems

    async def stop(self) -> None:
        """Stop every plugin, each within its own bounds."""
        await self.supervisor.stop_all()
        await self._consents.close()

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take note that a project was loaded or read anew; its plugins are told in turn."""
        self.projects.loaded(project_id, tree)

    def project_unloaded(self, project_id: str) -> None:
        """Take note that a project is gone; its plugins are told in turn."""
        self.projects.unloaded(project_id)

    def names_on(self, project_id: str, agent_path: str) -> Sequence[str]:
        """Return the plugins that an agent declares and that its project may use."""
        found = self.supervisor.participants(project_id, agent_path)
        return [one.plugin.name for one in found]

    def list(self) -> Sequence[JsonObject]:
        """Describe every installed plugin, also those that are disabled for this run."""
        broken = [_problem_json(one) for one in self._installer.problems]
        return [*self.supervisor.statuses(), *broken]

    async def kept(self) -> Sequence[JsonObject]:
        """Describe what `uninstall --keep-data` has left of plugins."""
        found = await asyncio.to_thread(self._installer.store.kept)
        return [one.as_json() for one in found]

    async def kept_row(self) -> CheckRow:
        """Return doctor's row about the data that is kept of uninstalled plugins."""
        store = self._installer.store
        lost = await asyncio.to_thread(store.unreadable_kept)
        if lost:
            files = ", ".join(map(str, lost[:_NAMED]))
            found = f"the record of what was kept cannot be read: {files}"
            fix = (
                "Put the file back from a backup; without it no plugin is given that data. "
                f"Or remove it for good: kaged plugin forget '{OWNER_PREFIX}{lost[0].stem}'"
            )
            return CheckRow("plugins.kept", CheckStatus.WARN, _KEPT, found, fix)
        count = len(await asyncio.to_thread(store.kept))
        said = f"of {count} plugins" if count else "none"
        return CheckRow("plugins.kept", CheckStatus.OK, _KEPT, said)

    async def forget(self, name: str, who: Actor) -> JsonObject:
        """Remove for good what was kept of plugins of this name, or of `~ID` without a record.

        Raises PluginNotFound.
        """
        done = await self._installer.forget(name, request_id=who.request_id)
        return {"name": done.name, "lines": list(done.lines)}

    def get(self, name: str) -> JsonObject:
        """Describe one plugin. Raises PluginNotFound."""
        for one in self._installer.problems:
            if one.name == name:
                return _problem_json(one)
        return self.supervisor.status(name)

    def logs(self, name: str) -> Sequence[str]:
        """Return the last lines of its standard error."""
        return self.supervisor.get(name).last_stderr

    def knobs(self, name: str) -> JsonObject:
        """Return its knobs as the manifest declares them."""
        return self._knobs.schema(name)

    def knob_values(self, name: str, project_id: str, agent_path: str) -> JsonObject:
        """Return its knobs with the values in force for one agent of a loaded project."""
        return self._knobs.values(project_id, agent_path, name)

    def compaction_knobs(self, project_id: str, agent_path: str) -> list[JsonObject]:
        """Return the knobs of an agent's observers and compactors, each with its plugin."""
        return self._knobs.compaction_view(project_id, agent_path)

    async def write_knob(
        self,
        name: str,
        project_id: str,
        agent_path: str,
        knob: str,
        value: JsonValue,
        who: Actor,
    ) -> JsonObject:
        """Write a knob into the project file and hand the new config to the plugin."""

        async def read_again(project: str) -> None:
            await self._reload_project(project, who, edit)
            await self.projects.settled()

        await self.projects.settled()
        edit = self._knobs.edit_of(project_id, agent_path, name, knob)
        change = await self._knobs.write(
            project_id,
            agent_path,
            name,
            knob,
            value,
            request_id=who.request_id,
            reload=read_again,
        )
        return change.as_json()

    async def consents(self, project_id: str | None) -> Sequence[JsonObject]:
        """Return the questions that wait for the operator, and those answered with no."""
        await self.projects.asked()
        return [one.as_json() for one in self._consents.requests(project_id)]

    async def answer_consent(
        self,
        consent_id: str,
        *,
        allowed: bool,
        digest: str | None,
        path: str | None,
        who: Actor,
    ) -> JsonObject:
        """Take the operator's answer; return the next question, if there is one."""
        await self.projects.asked()
        request = self._consents.get(consent_id)
        following = await self._consents.answer(
            consent_id,
            allowed=allowed,
            digest=digest,
            path=None if path is None else _absolute(path),
            who=who,
        )
        return {
            "name": request.plugin,
            "done": following is None,
            "next": None if following is None or following.declined else following.as_json(),
        }

    async def preview(self, path: str) -> JsonObject:
        """Return what the operator is shown before an install or upgrade."""
        found = await self._directory(path)
        source = path if is_gallery_word(path) else ""
        return (await self._installer.preview(found, source=source)).as_json()

    async def install(self, path: str, digest: str, who: Actor) -> JsonObject:
        """Install or upgrade exactly the files whose digest the operator agreed to."""
        done = await self._installer.install(
            await self._directory(path), digest, source=path, request_id=who.request_id
        )
        await self._changed(done.name)
        return {"name": done.name, "lines": list(done.lines)}

    async def _directory(self, path: str) -> Path:
        """Return where a plugin lies: a directory's path, or `gallery:NAME`."""
        if is_gallery_word(path):
            return await asyncio.to_thread(gallery_directory, path)
        return _absolute(path)

    async def preview_changed_files(self, name: str) -> JsonObject:
        """Return what the operator is shown before agreeing to changed files of a plugin."""
        return (await self._installer.store.prepare_approval(name)).as_json()

    async def renew(self, name: str, digest: str, who: Actor) -> JsonObject:
        """Approve an installed plugin's files as they are now."""
        done = await self._installer.renew(name, digest, request_id=who.request_id)
        await self._changed(name)
        return {"name": done.name, "lines": list(done.lines)}

    async def uninstall(self, name: str, *, force: bool, keep_data: bool, who: Actor) -> JsonObject:
        """Remove a plugin with its files, tables and entries, or seal all but its files."""
        used_in = {one.project_id for one in self.supervisor.declarations(name)}
        done = await self._installer.uninstall(
            name,
            force=force,
            keep_data=keep_data,
            active_sessions=self._active_sessions(used_in),
            request_id=who.request_id,
        )
        await self._changed(name)
        return {"name": done.name, "lines": list(done.lines)}

    async def export(self, name: str, path: str, who: Actor) -> JsonObject:
        """Write a plugin's tables into a new file of SQL."""
        self.get(name)
        written = await self._broker.export(name, _absolute(path))
        return {"path": str(written.path), "tables": list(written.tables), "rows": written.rows}

    async def enable(self, name: str, who: Actor) -> JsonObject:
        """Enable and start a plugin."""
        await self._installer.enable(name, request_id=who.request_id)
        return self.get(name)

    async def disable(self, name: str, who: Actor) -> JsonObject:
        """Stop and disable a plugin."""
        await self._installer.disable(name, request_id=who.request_id)
        return self.get(name)

    async def reload(self, name: str, who: Actor) -> JsonObject:
        """Read a running plugin's files again and switch to them without a gap."""
        fresh = await asyncio.to_thread(self._installer.store.get, name)
        await self.supervisor.reload(fresh)
        await self._changed(name)
        return self.get(name)

    async def restart(self, name: str, who: Actor) -> JsonObject:
        """Stop and start a plugin, also one that has failed.

        Raises:
            KagedError: `plugin_files_changed`; the running process goes on.
        """
        await asyncio.to_thread(self.supervisor.get(name).installed.require_unchanged)
        await self.supervisor.restart_at_word(name)
        return self.get(name)

    async def call(
        self,
        name: str,
        method: str,
        params: JsonObject,
        who: Actor,
        *,
        session_id: str | None = None,
    ) -> JsonValue:
        """Call a method of a plugin as the daemon itself, or for a session (PH-AMB-56).

        Raises:
            SessionNotFound: there is no such session.
            ProjectOpening: what guards calls is not loaded.
        """
        context = WireContext(request_id=who.request_id, operator_id=who.person_id)
        if session_id is not None:
            session = await self._session_of(session_id)
            # What comes back may label the session, which is more than to look at it.
            if not may(who, AccessAction.STEER, session.ownership):
                raise session_not_found(session_id)
            context = replace(
                context,
                project_id=session.project_id,
                agent_path=PRIMARY,
                session_id=session.id,
            )
        await self._project_ready(context.project_id or None)
        return await self.supervisor.call(name, method, params, context, who=who)

    async def _changed(self, name: str) -> None:
        self.projects.plugin_changed(name)
        await self.projects.settled()


def _problem_json(problem: StoreProblem) -> JsonObject:
    return {"name": problem.name, "state": problem.state, "note": problem.detail}


def _absolute(path: str) -> Path:
    found = Path(path)
    if not found.is_absolute():
        raise PluginNotFound(f"{path} is not an absolute path", fix="give the full path")
    return Path(os.path.normpath(found))
