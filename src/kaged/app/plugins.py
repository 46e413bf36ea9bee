"""`Plugins`: the plugin host as the HTTP edge sees it, and how it is put together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import structlog

from kaged import __version__
from kaged.app.settings import Settings
from kaged.audit import AuditLog
from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError
from kaged.cage import Spawner
from kaged.config.agents import AgentTree
from kaged.config.knobs import Knob
from kaged.kernel.policy import CageLimits
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.installation import PluginStore
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.parts import HostParts, HostSettings
from kaged.plugins.settings import thaw
from kaged.plugins.storage import StorageBroker
from kaged.plugins.supervisor import PluginSupervisor
from kaged.serve.http.services import Asker
from kaged.store import Store
from kaged.wire.context import CallContext

_log = structlog.get_logger("kaged.plugins")


class Plugins:
    """Carries out what operators ask of plugins, and tells plugins about projects."""

    def __init__(self, installer: PluginInstaller, supervisor: PluginSupervisor) -> None:
        self.supervisor = supervisor
        self._installer = installer
        self._changes: asyncio.Queue[tuple[str, AgentTree | None]] = asyncio.Queue()

    async def run(self) -> None:
        """Start what is enabled, then tell plugins about projects, for as long as the daemon runs.

        In a task of its own: neither a slow plugin nor a failing one holds up the daemon's start
        or the loading of a project.
        """
        await self._installer.open()
        await self.supervisor.start_all(self._installer.store.enabled())
        while True:
            project_id, tree = await self._changes.get()
            try:
                if tree is None:
                    await self.supervisor.unload_project(project_id)
                else:
                    await self.supervisor.load_project(project_id, tree)
            except KagedError as error:
                _log.warning("plugins.project", project=project_id, problem=error.message)

    async def stop(self) -> None:
        """Stop every plugin, each within its own bounds."""
        await self.supervisor.stop_all()

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take note that a project was loaded or read anew; its plugins are told in turn."""
        self._changes.put_nowait((project_id, tree))

    def project_unloaded(self, project_id: str) -> None:
        """Take note that a project is gone; its plugins are told in turn."""
        self._changes.put_nowait((project_id, None))

    def list(self) -> Sequence[JsonObject]:
        """Describe every installed plugin, also those that are disabled for this run."""
        broken: list[JsonObject] = [
            {"name": one.name, "state": one.state, "note": one.detail}
            for one in self._installer.problems
        ]
        return [*self.supervisor.statuses(), *broken]

    def get(self, name: str) -> JsonObject:
        """Describe one plugin. Raises PluginNotFound."""
        for one in self._installer.problems:
            if one.name == name:
                return {"name": one.name, "state": one.state, "note": one.detail}
        return self.supervisor.status(name)

    def logs(self, name: str) -> Sequence[str]:
        """Give the last lines of its standard error."""
        return self.supervisor.get(name).last_stderr

    def knobs(self, name: str) -> JsonObject:
        """Give its knobs as the manifest declares them."""
        manifest = self.supervisor.get(name).installed.manifest
        return {name: _knob_json(knob) for name, knob in manifest.knobs.items()}

    async def preview(self, path: str) -> JsonObject:
        """Give what the operator is shown before an install or upgrade."""
        return (await self._installer.preview(_absolute(path))).as_json()

    async def install(self, path: str, digest: str, who: Asker) -> JsonObject:
        """Install or upgrade exactly the files whose digest the operator agreed to."""
        done = await self._installer.install(_absolute(path), digest, source=path)
        return {"name": done.name, "lines": list(done.lines)}

    async def uninstall(self, name: str, *, force: bool, who: Asker) -> JsonObject:
        """Remove a plugin with its files, tables and entries."""
        done = await self._installer.uninstall(name, force=force)
        return {"name": done.name, "lines": list(done.lines)}

    async def enable(self, name: str, who: Asker) -> JsonObject:
        """Enable and start a plugin."""
        await self._installer.enable(name)
        return self.get(name)

    async def disable(self, name: str, who: Asker) -> JsonObject:
        """Stop and disable a plugin."""
        await self._installer.disable(name)
        return self.get(name)

    async def restart(self, name: str, who: Asker) -> JsonObject:
        """Stop and start a plugin."""
        await self.supervisor.restart(name, "restart")
        return self.get(name)

    async def call(self, name: str, method: str, params: JsonObject, who: Asker) -> JsonValue:
        """Call a method of a plugin as the daemon itself (PH-AMB-56)."""
        context = CallContext(request_id=who.request_id, operator_id=who.caller.operator_id)
        return await self.supervisor.call(name, method, params, context)


async def build_plugins(
    settings: Callable[[], Settings],
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    store: Store,
    audit: AuditLog,
    clock: Clock,
    ids: Ids,
    on_notification: Callable[[str, str, JsonValue], None],
) -> Plugins:
    """Put the plugin host together; nothing is started yet."""
    chosen = settings()
    daemon, places = chosen.daemon.value, chosen.places
    broker = await StorageBroker.open(store, audit, clock, ids)
    plugin_store = PluginStore(
        daemon.plugins.dir or places.plugins_dir,
        data_dir=places.plugin_data_dir,
        local_toml=places.local_toml,
        config_toml=places.config_toml,
        audit=audit,
        clock=clock,
        ids=ids,
        environ=environ,
        limits=lambda name: _limits(settings(), name),
    )
    parts = HostParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        ids=ids,
        settings=HostSettings(
            daemon_version=__version__,
            log_level=daemon.logging.level.value,
            runtimes=daemon.sandbox.runtimes,
            request_timeout_s=daemon.plugins.request_timeout_seconds,
        ),
        storage=broker,
        on_notification=on_notification,
    )
    supervisor = PluginSupervisor(
        parts,
        system_config=lambda plugin: _system_half(settings(), plugin),
        may_use=lambda project, plugin: plugin_store.may_use(project, plugin.installed),
    )
    return Plugins(PluginInstaller(plugin_store, supervisor, tables=broker), supervisor)


def _knob_json(knob: Knob) -> JsonObject:
    """Give a knob as the manifest has it; what was left out there is left out here."""
    found = {field.name: thaw(getattr(knob, field.name)) for field in fields(knob)}
    return {name: value for name, value in found.items() if value is not None or name == "default"}


def _limits(settings: Settings, name: str) -> CageLimits:
    """Give one plugin's limits: its own entry over the common one over the defaults."""
    sandbox = settings.daemon.value.sandbox
    common = sandbox.limits.over(CageLimits())
    own = sandbox.plugins.get(name)
    return common if own is None else own.over(common)


def _system_half(settings: Settings, plugin: InstalledPlugin) -> JsonObject:
    """Give the operator's secrets for a plugin. Raises ConfigInvalid when one cannot be used."""
    found = thaw(settings.local.value.plugin(plugin.package, plugin.name).values.reveal())
    return found if isinstance(found, dict) else {}


def _absolute(path: str) -> Path:
    found = Path(path)
    if not found.is_absolute():
        raise PluginNotFound(f"{path} is not an absolute path", fix="give the full path")
    return Path(os.path.normpath(found))


__all__ = ["Plugins", "build_plugins"]
