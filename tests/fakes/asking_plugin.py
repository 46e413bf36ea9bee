"""A caged plugin that asks the host whatever a call tells it to ask, and gives back the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.plugin_lab import PluginLab
from fakes.storage_arena import StorageArena
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.storage import StorageQuota

MAIN = """
import json, sys

number = 0

def put(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        put({"jsonrpc": "2.0", "id": message["id"], "result": {
            "name": params["plugin_name"], "version": "1.0.0", "api_version": 1,
            "methods": ["a.b", "c.d"], "notifications": [], "capabilities_used": []}})
    elif method == "ping":
        put({"jsonrpc": "2.0", "id": message["id"], "result": {"status": "ok"}})
    elif method == "shutdown":
        break
    elif method == "a.b":
        number += 1
        put({"jsonrpc": "2.0", "id": number, "method": params["asked"],
             "params": params["with"]})
        reply = json.loads(sys.stdin.readline())
        assert reply["id"] == number, reply
        result = {key: reply[key] for key in ("result", "error") if key in reply}
        put({"jsonrpc": "2.0", "id": message["id"], "result": result})
    elif method == "c.d":
        try:
            with open(params["path"], "rb") as file:
                found = {"read": len(file.read())}
        except OSError as error:
            found = {"failed": type(error).__name__}
        put({"jsonrpc": "2.0", "id": message["id"], "result": found})
    elif "id" in message:
        put({"jsonrpc": "2.0", "id": message["id"], "result": {}})
"""


class AskingLab:
    """Real cages, a real database, and plugins that ask."""

    def __init__(self, lab: PluginLab, arena: StorageArena) -> None:
        self.lab = lab
        self.arena = arena

    async def plugin(self, name: str, *capabilities: str) -> HostedPlugin:
        """Start a plugin with these capabilities."""
        return await self.lab.running(
            files={"main.py": MAIN}, name=name, capabilities=list(capabilities)
        )

    async def ask(self, plugin: HostedPlugin, method: str, params: Any) -> dict[str, Any]:
        """Let a plugin ask the host; return the answer as it came over the wire."""
        return await self.lab.call(plugin, **{"asked": method, "with": params})

    async def sql(
        self, plugin: HostedPlugin, method: str, sql: str, *values: Any
    ) -> dict[str, Any]:
        params = {"sql": sql, "params": list(values)}
        return await self.ask(plugin, f"kaged.storage.{method}", params)

    async def read(self, plugin: HostedPlugin, path: Path) -> dict[str, Any]:
        """Let a plugin try to read a file of the host's."""
        return await self.lab.call(plugin, "c.d", path=str(path))


@asynccontextmanager
async def asking_lab(
    root: Path, quotas: Mapping[str, StorageQuota] | None = None
) -> AsyncGenerator[AskingLab]:
    """Open a lab with storage; everything is closed at the end."""
    home = root / "home"
    home.mkdir()
    arena = await StorageArena(home).open(quotas)
    lab = PluginLab(root, config_patience_s=0.5)
    await lab.open(storage=arena.broker)
    try:
        yield AskingLab(lab, arena)
    finally:
        await lab.close()
        await arena.close()


__all__ = ["AskingLab", "asking_lab"]
