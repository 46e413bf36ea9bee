"""`PluginInstaller`: the store, the running plugins and their tables, changed together.

Each method does what one command of the operator's says and gives the lines to print.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.installation import PluginStore
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.prompt import Change, InstallPrompt
from kaged.plugins.settings import ConfigSchemas
from kaged.plugins.states import PluginState
from kaged.plugins.storereader import Discovered, StoreProblem
from kaged.plugins.supervisor import PluginSupervisor

_ALIVE = frozenset({PluginState.RUNNING, PluginState.SPAWNING, PluginState.CRASHED})


@dataclass(frozen=True, slots=True)
class InstallOutcome:
    """What a command did, in lines for people."""

    name: str
    lines: tuple[str, ...]


class PluginInstaller:
    """Carries out the operator's decisions about plugins."""

    def __init__(self, store: PluginStore, supervisor: PluginSupervisor) -> None:
        self.store = store
        self._supervisor = supervisor
        self._problems: dict[str, StoreProblem] = {}

    @property
    def problems(self) -> tuple[StoreProblem, ...]:
        """The plugins in the store that are disabled for this run, and why."""
        return tuple(self._problems.values())

    async def open(self) -> Discovered:
        """Discover the store and register what can be used (PH-SUP-39); starts nothing."""
        found = await self.store.open()
        self._problems = {problem.name: problem for problem in found.problems}
        for plugin in found.plugins:
            self._supervisor.register(plugin)
        return found

    async def preview(self, path: Path, *, source: str = "") -> InstallPrompt:
        """Return what the operator is shown; see `PluginStore.prepare` for what it raises."""
        return await self.store.prepare(path, source=source)

    async def install(
        self,
        path: Path,
        digest: str,
        *,
        source: str = "",
        project_id: str | None = None,
        request_id: str | None = None,
    ) -> InstallOutcome:
        """Install or upgrade what the operator said yes to; a running plugin is restarted."""
        prompt, plugin = await self.store.install(
            path, digest, source=source, project_id=project_id, request_id=request_id
        )
        self._problems.pop(plugin.name, None)
        running = await self._take_in(plugin)
        if prompt.change is Change.INSTALL:
            lines = [
                f"✓ Installed {prompt.name} {prompt.version}",
                f"  → disabled; enable with: kaged plugin enable {prompt.name}",
            ]
        else:
            word = "Upgraded" if prompt.change is Change.UPGRADE else "Downgraded"
            lines = [f"✓ {word} {prompt.name} to {prompt.version}"]
        if running is not None:
            lines.append("  Plugin was running; restarting...")
            state = running.state
            good = state is PluginState.RUNNING
            mark = f"✓ {prompt.name} restarted" if good else f"✗ {prompt.name} is {state.value}"
            lines.append(mark if good else f"{mark}: {running.note}")
        return InstallOutcome(prompt.name, tuple(lines))

    async def renew(
        self, name: str, digest: str, *, request_id: str | None = None
    ) -> InstallOutcome:
        """Approve the changed files of an installed plugin."""
        plugin = await self.store.approve(name, digest, request_id=request_id)
        self._problems.pop(name, None)
        await self._take_in(plugin)
        return InstallOutcome(name, (f"✓ Agreed to {name} {plugin.version} as it is now",))

    async def uninstall(
        self,
        name: str,
        *,
        force: bool = False,
        keep_data: bool = False,
        active_sessions: int = 0,
        request_id: str | None = None,
    ) -> InstallOutcome:
        """Stop a plugin, remove its files, tables and entries, or seal what is not files.

        Raises:
            KagedError: `plugin_store_failed`; its data cannot be kept; nothing was changed.
            KagedError: `plugin_in_use`; sessions use it and `force` is not given; nothing was
                changed.
        """
        if active_sessions and not force:
            raise KagedError(
                f"Plugin {name} is active in {active_sessions} session(s). "
                "Stop sessions first, or use --force.",
                code="plugin_in_use",
                sessions=active_sessions,
            )
        known = name in self._supervisor.plugins
        if keep_data:
            await asyncio.to_thread(self.store.require_keepable, name)
        if known:
            await self._supervisor.unregister(name)
        else:
            self.store.require(name)
        kept = await self.store.uninstall(name, keep_data=keep_data, request_id=request_id)
        self._problems.pop(name, None)
        lines = [f"✓ Stopped {name}", "✓ Removed plugin files", "✓ Removed local config entry"]
        if kept is not None:
            lines += [
                f"✓ Kept for {name} {kept.version} only: {'; '.join(kept.words())}",
                "  → installing the same files gives it back",
                f"  → remove it for good with: kaged plugin forget {name}",
            ]
        elif keep_data:
            lines.append("  → there was no data to keep")
        return InstallOutcome(name, tuple(lines))

    async def forget(self, name: str, *, request_id: str | None = None) -> InstallOutcome:
        """Remove for good what was kept of uninstalled plugins of this name.

        Raises:
            PluginNotFound: nothing is.
        """
        removed = await self.store.forget_kept(name, request_id=request_id)
        lines = [
            f"✓ Removed what was kept of {name} {one.version}: "
            f"{'; '.join(one.words()) or 'a record'}"
            for one in removed
        ]
        return InstallOutcome(name, tuple(lines))

    async def enable(self, name: str, *, request_id: str | None = None) -> None:
        """Start a plugin and write its name into config.toml's enabled list.

        Raises:
            PluginNotFound: it is not installed.
            KagedError: `plugin_store_failed`; it is, but may not be used; `trouble` says why.
        """
        await asyncio.to_thread(self.store.get, name)
        await self._supervisor.enable(name, request_id=request_id)
        await self.store.set_enabled(name, enabled=True)

    async def disable(self, name: str, *, request_id: str | None = None) -> None:
        """Take the name out of config.toml's enabled list and stop the plugin."""
        await self.store.set_enabled(name, enabled=False)
        if name in self._supervisor.plugins:
            await self._supervisor.disable(name, request_id=request_id)

    async def _take_in(self, installed: InstalledPlugin) -> HostedPlugin | None:
        """Hand a plugin's new files to the supervisor; return it if it was running."""
        plugin = self._supervisor.plugins.get(installed.name)
        if plugin is None:
            self._supervisor.register(installed)
            return None
        alive = plugin.state in _ALIVE
        if alive:
            await plugin.stop("upgrade")
        plugin.installed = installed
        plugin.schemas = ConfigSchemas(installed.manifest)
        if alive:
            await plugin.start()
        return plugin if alive else None
