"""`PluginSupervisor`: every plugin of this host, the projects that use them, their tools.

register → start_all / enable → plugin runs → load_project → calls, hooks, tools → stop_all
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kaged.audit import AuditEvent
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree
from kaged.config.manifest import ToolDeclaration
from kaged.kernel.capabilities import ExecCapability, FsCapability, PathBase
from kaged.kernel.identity import Actor
from kaged.plugins.admission import PluginAdmission, admit_project
from kaged.plugins.declarations import Declaration, DeclarationRefusal
from kaged.plugins.errors import PluginConfigInvalid, PluginNotFound
from kaged.plugins.hooks import HookRunner, Participant
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.parts import HostParts
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.states import PluginState
from kaged.plugins.status import plugin_status
from kaged.wire.context import WireContext

_FULL_NAME: Final = re.compile(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class PluginTool:
    """A tool of a running plugin, under its full name."""

    name: str
    plugin_name: str
    declaration: ToolDeclaration


class PluginSupervisor:
    """Owns the plugins. Nothing a plugin does reaches another plugin or the host through it."""

    def __init__(
        self,
        parts: HostParts,
        *,
        system_config: Callable[[InstalledPlugin], JsonObject] | None = None,
        current: Callable[[InstalledPlugin], InstalledPlugin] | None = None,
        may_use: Callable[[str, HostedPlugin], bool] | None = None,
        on_tools: Callable[[], None] | None = None,
    ) -> None:
        self.hooks = HookRunner(parts)
        self._parts = parts
        self._active_pipeline = parts.active_pipeline
        self._system_config = system_config
        self._current = current
        self._may_use = may_use or (lambda _project, plugin: plugin.installed.local)
        self._on_tools = on_tools or (lambda: None)
        self._plugins: dict[str, HostedPlugin] = {}
        self._projects: dict[str, tuple[Declaration, ...]] = {}
        self._refused: dict[str, tuple[DeclarationRefusal, ...]] = {}
        self._tools: dict[str, PluginTool] = {}
        self._announced: set[tuple[str, str, str]] = set()

    # -- plugins -------------------------------------------------------------------------------

    @property
    def plugins(self) -> MappingProxyType[str, HostedPlugin]:
        """Every registered plugin by name."""
        return MappingProxyType(self._plugins)

    @property
    def tools(self) -> MappingProxyType[str, PluginTool]:
        """The tools of plugins that run or are being restarted, by full name."""
        return MappingProxyType(self._tools)

    def get(self, name: str) -> HostedPlugin:
        """Return a plugin. Raises PluginNotFound."""
        try:
            return self._plugins[name]
        except KeyError:
            raise PluginNotFound(
                f"no plugin named {name!r} is installed",
                fix="`kaged plugin list` shows the names",
                name=name,
            ) from None

    def register(self, installed: InstalledPlugin) -> HostedPlugin:
        """Take in an installed plugin; it rests disabled until it is started.

        Raises:
            KagedError: `tool_name_collision`; a plugin of this name is there already and keeps its
                tools.
            KagedError: `tool_name_invalid`; a tool does not go by the plugin's name; nothing is
                registered.
        """
        for declared in installed.manifest.tools:
            full = f"{installed.name}.{declared.name}"
            if _FULL_NAME.fullmatch(full) is None:
                raise KagedError(
                    f"{full} is no name for a tool of {installed.name}",
                    code="tool_name_invalid",
                    fix="tools are called <plugin>.<name>, in lower case",
                    name=installed.name,
                )
        first = self._plugins.get(installed.name)
        if first is not None:
            tool = next((t.name for t in installed.manifest.tools), "")
            self._parts.post(
                "plugin.tool_name_collision",
                {
                    "first": f"{first.name} ({first.installed.directory})",
                    "second": f"{installed.name} ({installed.directory})",
                    "tool": f"{installed.name}.{tool}",
                },
            )
            raise KagedError(
                f"a plugin named {installed.name} is registered already",
                code="tool_name_collision",
                fix="remove one of the two directories",
                name=installed.name,
            )
        plugin = HostedPlugin(
            installed,
            self._parts,
            on_state=self._state_changed,
            system_config=self._system_config,
            current=self._current,
        )
        plugin.project_half = lambda: self._first_half(plugin)
        self._plugins[installed.name] = plugin
        return plugin

    async def unregister(self, name: str) -> HostedPlugin:
        """Stop a plugin and forget it; its files are the caller's business."""
        plugin = self.get(name)
        await plugin.stop("removed")
        self._withdraw(plugin)
        del self._plugins[name]
        return plugin

    async def start_all(self, names: Iterable[str]) -> None:
        """Start the enabled plugins side by side; one that fails holds up nobody."""
        wanted = [self._plugins[name] for name in names if name in self._plugins]
        await asyncio.gather(*(plugin.start() for plugin in wanted))

    async def stop_all(self) -> None:
        """Stop every plugin side by side, each within its own bounds (PH-SUP-26)."""
        await asyncio.gather(*(plugin.stop("shutdown") for plugin in self._plugins.values()))
        self._tools.clear()

    async def enable(self, name: str, *, request_id: str | None = None) -> None:
        """Start a plugin at the operator's word; a running one is left alone.

        Raises:
            KagedError: `plugin_files_changed`; it is not started.
        """
        plugin = self.get(name)
        await asyncio.to_thread(plugin.installed.require_unchanged)
        await self._parts.audit.record(
            AuditEvent("plugin.enabled", {"name": name}, request_id=request_id)
        )
        if plugin.state not in {PluginState.RUNNING, PluginState.SPAWNING}:
            if plugin.state is PluginState.CRASHED:
                await plugin.stop("enabled again")
            await plugin.start()

    async def disable(
        self, name: str, reason: str = "operator", *, request_id: str | None = None
    ) -> None:
        """Stop a plugin and leave it disabled."""
        plugin = self.get(name)
        await plugin.stop(reason)
        plugin.rest_disabled()
        self._withdraw(plugin)
        data: JsonObject = {"name": name, "reason": reason}
        self._parts.post("plugin.disabled", data, request_id=request_id)

    async def restart(self, name: str, reason: str) -> None:
        """Stop and start a plugin, for a new version or a new cage; one that is off stays off."""
        plugin = self.get(name)
        if plugin.state in {PluginState.RUNNING, PluginState.CRASHED, PluginState.SPAWNING}:
            await plugin.stop(reason)
            await plugin.start()

    async def restart_at_word(self, name: str) -> None:
        """Stop and start a plugin at the operator's word, also one that was given up."""
        plugin = self.get(name)
        if plugin.state is PluginState.FAILED:
            await plugin.start()
        else:
            await self.restart(name, "restart")

    async def operator_changed(self, name: str, fresh: InstalledPlugin, half: JsonObject) -> bool:
        """Start a running plugin anew where the operator's files give it something else now.

        Returns whether it was. One that does not run reads them when it starts.
        """
        plugin = self.get(name)
        running = plugin.installed
        same = (fresh.grants, fresh.limits) == (running.grants, running.limits)
        if plugin.state is not PluginState.RUNNING or (same and half == plugin.system_config):
            return False
        before, now = set(running.grants.texts), set(fresh.grants.texts)
        self._parts.log.info(
            "plugin.operator_changed",
            plugin=name,
            granted=sorted(now - before),
            taken_back=sorted(before - now),
            settings=sorted(
                key
                for key in half.keys() | plugin.system_config.keys()
                if half.get(key) != plugin.system_config.get(key)
            ),
        )
        await self.restart(name, "the operator's settings changed")
        return True

    async def reload(self, installed: InstalledPlugin) -> None:
        """Switch a running plugin to other files without a gap (PH-BEY-02).

        Raises:
            PluginNotFound, KagedError: `plugin_unavailable`; there is nothing running to reload.
            StartFailed: the new process did not come up; the old one goes on.
        """
        plugin = self.get(installed.name)
        await plugin.replace(installed)
        self._withdraw(plugin)
        self._state_changed(plugin, plugin.state)

    def status(self, name: str) -> JsonObject:
        """Describe one plugin. Raises PluginNotFound."""
        refused: list[JsonValue] = [
            f"{project_id} {one.agent_path}: {one.reason}"
            for project_id, refusals in self._refused.items()
            for one in refusals
            if one.plugin == name
        ]
        return {**plugin_status(self.get(name), self._parts.clock), "refused": refused}

    def statuses(self) -> list[JsonObject]:
        """Describe every plugin, by name."""
        return [self.status(name) for name in sorted(self._plugins)]

    # -- projects ------------------------------------------------------------------------------

    async def load_project(self, project_id: str, tree: AgentTree) -> PluginAdmission:
        """Take in (or take in again) the declarations of a project and tell its plugins."""
        admitted = admit_project(project_id, tree, self._plugins, self._may_use)
        for event, data in admitted.events:
            self._parts.post(event, data)
        for refusal in admitted.refused:
            self._parts.log.warning(
                "plugin.declaration_refused",
                plugin=refusal.plugin,
                project=project_id,
                agent=refusal.agent_path,
                why=refusal.reason,
            )
        self._refused[project_id] = admitted.refused
        before = {d.plugin_name for d in self._projects.get(project_id, ())}
        self._projects[project_id] = admitted.accepted
        now = dict.fromkeys(d.plugin_name for d in admitted.accepted)
        root = tree.project.root
        for name in now:
            await self._activate(self._plugins[name], project_id, root)
        for name in before - now.keys():
            if name in self._plugins:  # it may have been uninstalled in the meantime
                await self._deactivate(self._plugins[name], project_id)
        return admitted

    async def unload_project(self, project_id: str) -> None:
        """Forget a project and tell its plugins."""
        self._refused.pop(project_id, None)
        declared = self._projects.pop(project_id, ())
        for name in dict.fromkeys(d.plugin_name for d in declared):
            if name in self._plugins:
                await self._deactivate(self._plugins[name], project_id)

    def declarations(self, plugin: str) -> list[Declaration]:
        """Return a plugin's accepted declarations, projects in load order, tree order within."""
        return [d for found in self._projects.values() for d in found if d.plugin_name == plugin]

    def declaration(self, project_id: str, agent_path: str, plugin: str) -> Declaration | None:
        """Return one agent's accepted declaration of a plugin."""
        for found in self._projects.get(project_id, ()):
            if found.agent_path == agent_path and found.plugin_name == plugin:
                return found
        return None

    def participants(self, project_id: str, agent_path: str) -> Sequence[Participant]:
        """Return the plugins of one agent for its hooks, in declared order."""
        return [
            Participant(self._plugins[d.plugin_name], d)
            for d in self._projects.get(project_id, ())
            if d.agent_path == agent_path and d.plugin_name in self._plugins
        ]

    # -- calls ---------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        method: str,
        params: JsonObject,
        context: WireContext,
        *,
        timeout_s: float | None = None,
        who: Actor | None = None,
    ) -> JsonValue:
        """Call a declared method; see `HostedPlugin.call_method` for what it raises.

        With a pipeline in force its plugins come first and last; see `call_with_hooks`. They are
        told `who` calls.
        """
        plugin = self.get(name)
        pipeline = self._active_pipeline.pipeline
        if pipeline is None:
            return await plugin.call_method(method, params, context, timeout_s=timeout_s)
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.plugins.hooked_method import call_with_hooks  # noqa: PLC0415  # see the line above

        return await call_with_hooks(
            pipeline, self._parts, plugin, method, params, context, timeout_s=timeout_s, who=who
        )

    async def call_tool(self, name: str, params: JsonObject, context: WireContext) -> JsonValue:
        """Call a tool by its full name, under the calling agent's configuration."""
        plugin_name, _, tool = name.partition(".")
        plugin = self.get(plugin_name)
        return await plugin.call_tool(tool, params, context, self._config_for(plugin, context))

    def _config_for(self, plugin: HostedPlugin, context: WireContext) -> JsonObject | None:
        if context.project_id is None or context.agent_path is None:
            return None
        found = self.declaration(context.project_id, context.agent_path, plugin.name)
        return found and found.deliverable(plugin.schemas, plugin.system_config)

    # -- own -----------------------------------------------------------------------------------

    async def _activate(self, plugin: HostedPlugin, project_id: str, root: Path) -> None:
        changed = plugin.projects.get(project_id) != root
        plugin.projects[project_id] = root
        if changed and _sees_projects(plugin) and plugin.state is PluginState.RUNNING:
            await self.restart(plugin.name, "its projects changed")
        config = self._project_config(plugin, project_id)
        await plugin.project_activated(project_id, config)
        if config or plugin.schemas.any:
            await self._deliver(plugin, config)
        self._announce(plugin)

    async def _deactivate(self, plugin: HostedPlugin, project_id: str) -> None:
        plugin.projects.pop(project_id, None)
        self._announced = {
            seen for seen in self._announced if seen[:2] != (plugin.name, project_id)
        }
        if _sees_projects(plugin) and plugin.state is PluginState.RUNNING:
            await self.restart(plugin.name, "its projects changed")
        await plugin.project_deactivated(project_id)

    async def _deliver(self, plugin: HostedPlugin, config: JsonObject) -> None:
        try:
            await plugin.update_config(config)
        except PluginConfigInvalid as error:
            self._parts.log.warning("plugin.config_refused", plugin=plugin.name, why=error.message)
        except KagedError as error:
            self._parts.log.info(
                "plugin.config_not_delivered", plugin=plugin.name, why=error.message
            )

    def _project_config(self, plugin: HostedPlugin, project_id: str) -> JsonObject:
        """Return the config of the primary's declaration, else of the first in tree order."""
        own = [d for d in self._projects.get(project_id, ()) if d.plugin_name == plugin.name]
        return _leading(own).effective(plugin.schemas, plugin.system_config)

    def _first_half(self, plugin: HostedPlugin) -> JsonObject:
        """Return the project half for a new process: of the project that was loaded last."""
        own = self.declarations(plugin.name)
        if not own:
            return {}
        last = own[-1].project_id
        return _leading([one for one in own if one.project_id == last]).project_half

    def _state_changed(self, plugin: HostedPlugin, state: PluginState) -> None:
        if state is PluginState.RUNNING:
            for tool in plugin.installed.manifest.tools:
                full = f"{plugin.name}.{tool.name}"
                self._tools[full] = PluginTool(full, plugin.name, tool)
            self._announce(plugin)
            self._on_tools()
        elif state in {PluginState.FAILED, PluginState.STOPPED, PluginState.DISABLED}:
            self._withdraw(plugin)

    def _announce(self, plugin: HostedPlugin) -> None:
        """Audit each tool once per declaring agent, when it can first be used (PH-TOOL-12)."""
        if plugin.state is not PluginState.RUNNING:
            return
        for declaration in self.declarations(plugin.name):
            key = (plugin.name, declaration.project_id, declaration.agent_path)
            if key in self._announced:
                continue
            self._announced.add(key)
            for tool in plugin.installed.manifest.tools:
                self._parts.post(
                    "plugin.tool_registered",
                    {
                        "name": plugin.name,
                        "tool": f"{plugin.name}.{tool.name}",
                        "agent_path": declaration.agent_path,
                    },
                )

    def _withdraw(self, plugin: HostedPlugin) -> None:
        gone = [name for name, tool in self._tools.items() if tool.plugin_name == plugin.name]
        for name in gone:
            del self._tools[name]
        self._announced = {seen for seen in self._announced if seen[0] != plugin.name}
        if gone:
            self._on_tools()


def _leading(declared: Sequence[Declaration]) -> Declaration:
    return next((one for one in declared if one.is_root), declared[0])


def _sees_projects(plugin: HostedPlugin) -> bool:
    """Return whether its cage shows project directories; another project is then another cage."""
    return any(
        isinstance(item, FsCapability | ExecCapability) and item.place.base is PathBase.PROJECT
        for item in plugin.installed.capabilities
    )
