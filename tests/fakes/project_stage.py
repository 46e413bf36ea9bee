"""`ProjectStage`: a plugin lab with a supervisor and one project whose files a test rewrites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fakes.plugin_lab import PluginLab
from kaged.base import JsonObject
from kaged.config import AgentTree, load_project, resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.reading import Loaded
from kaged.plugins.admission import PluginAdmission
from kaged.plugins.hooks import CompactionEvent
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from kaged.wire.context import WireContext

TOOL = {"name": "say", "description": "d", "parameters_schema": {"type": "object"}}
SYSTEM: Any = {"id": "m0", "role": "system", "content": "be kind"}
OLD: Any = {"id": "m1", "role": "user", "content": "hello"}


def event(old: list[Any] | None = None) -> CompactionEvent:
    """Describe a compaction that takes `old`, or one message, out of the window."""
    return CompactionEvent(
        being_compacted=[OLD] if old is None else old,
        remaining=[SYSTEM],
        strategy="delegate",
        trigger="threshold_crossed",
        always_keep=[SYSTEM],
    )


class ProjectStage:
    """Stubs that write down every line they get, used by the agents of the project `p`."""

    def __init__(self, lab: PluginLab, root: Path) -> None:
        self.lab = lab
        self.secrets: dict[str, JsonObject] = {}
        self.supervisor = PluginSupervisor(
            lab.parts, system_config=lambda plugin: self.secrets.get(plugin.name, {})
        )
        self.root = root / "project"
        self.logs = root / "logs"
        self.logs.mkdir()
        self.logs.chmod(0o777)

    async def add(
        self, name: str, behaviour: dict[str, Any] | None = None, **manifest: Any
    ) -> HostedPlugin:
        """Register a stub and start it, however that ends."""
        wanted: dict[str, Any] = {"log": str(self.logs / name), **(behaviour or {})}
        wanted["answer"] = {"name": name, **wanted.get("answer", {})}
        wanted["on"] = dict(wanted.get("on", {}))
        for tool in manifest.get("tools", []):
            wanted["on"].setdefault(f"{name}.{tool['name']}", [{"echo": True}])
        capabilities = [f"write:fs:{self.logs}", *manifest.pop("capabilities", [])]
        installed = self.lab.install(wanted, name=name, capabilities=capabilities, **manifest)
        plugin = self.supervisor.register(installed)
        await self.supervisor.enable(name)
        return plugin

    async def running(self, name: str, *rest: Any, **manifest: Any) -> HostedPlugin:
        """Register a stub and see that it runs."""
        plugin = await self.add(name, *rest, **manifest)
        assert plugin.state is PluginState.RUNNING, (plugin.note, self.lab.events)
        return plugin

    def tree(self, primary: dict[str, Any], root: Path | None = None) -> AgentTree:
        """Write the project file and read it."""
        where = root or self.root
        spec = {"model": "m", "system_prompt": "x", **primary}
        (where / ".kaged").mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"primary": spec}, sort_keys=False)
        (where / ".kaged" / "project.yaml").write_text(text, encoding="utf-8")
        return resolve_agents(load_project(where), Loaded(DaemonConfig()), Loaded(LocalConfig()))

    async def load(
        self, primary: dict[str, Any], project: str = "p", root: Path | None = None
    ) -> PluginAdmission:
        """Load or reload the project."""
        return await self.supervisor.load_project(project, self.tree(primary, root))

    async def tool(self, name: str, agent: str = "primary", **params: Any) -> Any:
        """Call a tool as an agent of the project."""
        return await self.supervisor.call_tool(name, params, self.context(agent))

    def context(self, agent: str = "primary", project: str = "p") -> WireContext:
        return self.lab.context(project_id=project, agent_path=agent, session_id="ses_1")

    def participants(self, agent: str = "primary") -> Any:
        return self.supervisor.participants("p", agent)

    def received(self, name: str) -> list[dict[str, Any]]:
        """Return every message that a stub got."""
        lines = (self.logs / name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def methods(self, name: str) -> list[str]:
        return [message["method"] for message in self.received(name) if "method" in message]


def subagent(**more: Any) -> dict[str, Any]:
    """Write an agent below the primary."""
    return {"model": "m", "system_prompt": "y", "description": "d", **more}


__all__ = ["ProjectStage", "subagent"]
