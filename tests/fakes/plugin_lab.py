"""`PluginLab`: a plugin host with real cages, a recorded audit log, and backoff that tests own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog
import yaml

from fakes.audit_sink import MemorySink
from fakes.stocked_cache import stocked
from kaged.audit import AuditEvent, AuditLog, AuditRow, ChainKey
from kaged.base import Ids, JsonValue, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.config.manifest import parse_manifest
from kaged.kernel.capabilities import CapabilitySet, parse_capabilities
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.parts import HostParts, HostSettings
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.states import PluginState
from kaged.plugins.storage import StorageBroker
from kaged.wire.context import WireContext

STUB = Path(__file__).parents[1] / "guests" / "stub_plugin.py"
PATIENCE_S = 15.0
BASE_MANIFEST: dict[str, Any] = {
    "name": "stub",
    "version": "1.0.0",
    "kaged_api": 1,
    "description": "A plugin that does what the test says.",
    "command": ["/usr/bin/env", "python3", "./main.py"],
    "capabilities": [],
    "methods": ["a.b", "c.d"],
}


def manifest(**more: Any) -> Any:
    """Read the base manifest with these members. Raises ConfigFileInvalid."""
    return parse_manifest(yaml.safe_dump({**BASE_MANIFEST, **more})).value


class PluginLab:
    """Builds plugins in `root` and runs them in real cages."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cage_events: list[tuple[str, dict[str, Any]]] = []
        self.notifications: list[tuple[str, str, JsonValue]] = []
        self.naps: list[float] = []
        self.logs: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self._wake: asyncio.Queue[None] = asyncio.Queue()
        self._settings = settings
        self._plugins: list[HostedPlugin] = []
        self.parts: HostParts
        self.spawner: Spawner

    async def open(self, storage: StorageBroker | None = None) -> None:
        clock = SystemClock()
        ids = Ids(clock)
        self.root.chmod(0o755)
        audit = await AuditLog.open(MemorySink(), clock=clock, ids=ids, key=ChainKey(b"k" * 32))
        self.spawner = Spawner(
            CageSettings(
                cache_dir=stocked(self.root / "cage-cache"), protected=(str(self.root / "home"),)
            ),
            on_event=lambda name, data: audit.post(AuditEvent(name, data)),
        )
        audit.subscribe(self._row)
        defaults: dict[str, Any] = {"daemon_version": "0.1.0", "restart_spread": None}
        self.parts = HostParts(
            spawner=self.spawner,
            audit=audit,
            clock=clock,
            ids=ids,
            settings=HostSettings(**{**defaults, **self._settings}),
            storage=storage,
            on_notification=self._notified,
            sleep=self._nap,
            log=structlog.wrap_logger(None, processors=[self._logged]),
        )

    async def close(self) -> None:
        for plugin in self._plugins:
            await plugin.stop("test ended")
        await self.parts.audit.close()
        await self.spawner.close()

    # -- making plugins ------------------------------------------------------------------------

    def install(
        self,
        behaviour: Mapping[str, Any] | None = None,
        *,
        grants: list[str] | None = None,
        files: Mapping[str, str] | None = None,
        **manifest: Any,
    ) -> InstalledPlugin:
        """Put a stub (or other files) into a directory of its own and read its manifest."""
        data = {**BASE_MANIFEST, **manifest}
        directory = self.root / "plugins" / str(data["name"])
        directory.mkdir(parents=True, exist_ok=True)
        if files is None:
            shutil.copy(STUB, directory / "main.py")
        for name, text in (files or {}).items():
            (directory / name).write_text(text, encoding="utf-8")
        (directory / "behaviour.json").write_text(json.dumps(behaviour or {}), encoding="utf-8")
        text = yaml.safe_dump(data)
        (directory / "kaged-plugin.yaml").write_text(text, encoding="utf-8")
        return InstalledPlugin(
            directory=directory,
            data_dir=self.root / "data" / str(data["name"]),
            manifest=parse_manifest(text).value,
            package=str(data["name"]),
            grants=parse_capabilities(grants) if grants else CapabilitySet(),
        )

    def behave(self, plugin: HostedPlugin | InstalledPlugin, behaviour: Mapping[str, Any]) -> None:
        """Change how the next process of a stub behaves."""
        installed = plugin.installed if isinstance(plugin, HostedPlugin) else plugin
        path = installed.directory / "behaviour.json"
        path.write_text(json.dumps(behaviour), encoding="utf-8")

    def plugin(self, installed: InstalledPlugin) -> HostedPlugin:
        """Make the host's side of a plugin; it is stopped when the lab closes."""
        made = HostedPlugin(installed, self.parts, on_state=lambda *_: self._changed.set())
        self._plugins.append(made)
        return made

    async def remove(self, plugin: HostedPlugin) -> None:
        """Stop a plugin and keep nothing more of it."""
        await plugin.stop("the test is done with it")
        self._plugins.remove(plugin)

    async def start(self, behaviour: Mapping[str, Any] | None = None, **rest: Any) -> HostedPlugin:
        """Install a stub and start it."""
        plugin = self.plugin(self.install(behaviour, **rest))
        await plugin.start()
        return plugin

    async def running(
        self, behaviour: Mapping[str, Any] | None = None, **rest: Any
    ) -> HostedPlugin:
        """Install a stub, start it and see that it runs."""
        plugin = await self.start(behaviour, **rest)
        assert plugin.state is PluginState.RUNNING, (plugin.note, self.events)
        return plugin

    def context(self, **members: str | None) -> WireContext:
        return WireContext(request_id=self.parts.ids.tagged("req"), operator_id="op", **members)

    async def call(self, plugin: HostedPlugin, method: str = "a.b", **params: Any) -> Any:
        """Call a method as the daemon itself."""
        async with asyncio.timeout(PATIENCE_S):
            return await plugin.call_method(method, params, self.context())

    # -- watching ------------------------------------------------------------------------------

    async def seen(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the audit events so far, or only those of these names."""
        await self.parts.audit.flush()
        return [event for event in self.events if not names or event[0] in names]

    async def names(self) -> list[str]:
        return [name for name, _ in await self.seen()]

    async def until(self, plugin: HostedPlugin, *states: PluginState) -> None:
        """Wait until a plugin is in one of these states."""
        async with asyncio.timeout(PATIENCE_S):
            while plugin.state not in states:
                self._changed.clear()
                if plugin.state in states:
                    return
                await self._changed.wait()

    async def until_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait until an audit event of this name was written so many times; return the last."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._changed.clear()
                found = await self.seen(name)
                if len(found) >= count:
                    return found[-1][1]
                await self._changed.wait()

    def wake(self, times: int = 1) -> None:
        """Let so many waits (backoff, health interval) end."""
        for _ in range(times):
            self._wake.put_nowait(None)

    async def napping(self, count: int) -> None:
        """Wait until the host has asked for so many waits."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.naps) < count:
                self._changed.clear()
                if len(self.naps) < count:
                    await self._changed.wait()

    def processes(self) -> list[int]:
        """Return the pids of live processes in cages of this lab, whoever their parent is by now.

        A cage's command line names no path of the lab (options travel by descriptor), so they are
        found as descendants of a bwrap of ours, and by the lab's paths in their environment.
        """
        parents: dict[int, tuple[int, str]] = {}
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
                parents[int(entry.name)] = (int(rest.split()[1]), name.partition("(")[2])
                if os.fsencode(str(self.root)) in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
        for pid in parents:
            line = [pid]
            while line[-1] in parents and line[-1] != os.getpid():
                line.append(parents[line[-1]][0])
            if line[-1] == os.getpid() and any(parents[one][1] == "bwrap" for one in line[:-1]):
                found.add(pid)
        return sorted(found - {os.getpid()})

    async def _nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        self._changed.set()
        await self._wake.get()

    def _row(self, row: AuditRow) -> None:
        kept = self.cage_events if row.name.startswith("cage.") else self.events
        kept.append((row.name, json.loads(row.data_json)))
        self._changed.set()

    def _notified(self, plugin: str, kind: str, params: JsonValue) -> None:
        self.notifications.append((plugin, kind, params))
        self._changed.set()

    def _logged(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        self.logs.append({"level": method, **event})
        self._changed.set()
        raise structlog.DropEvent

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.logs if entry["event"] == event]
