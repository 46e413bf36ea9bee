"""The agent loop with real plugins in real cages: what a daemon has, without its listeners."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from fakes.loop_lab import PROJECT, LoopLab, loop_lab
from fakes.played_model import PlayedModel
from fakes.plugin_lab import PluginLab
from kaged.plugins.registration import PluginTools
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from kaged.sessions.hooks import SessionHooks

HOOKS = ["on_session_start", "on_session_idle", "pre_compact", "post_compact"]


class SessionStage:
    """Plugins first (`add`), then the project (`load`), then sessions."""

    def __init__(self, plugins: PluginLab, supervisor: PluginSupervisor, loop: LoopLab) -> None:
        self.plugins = plugins
        self.supervisor = supervisor
        self.loop = loop
        self.logs = plugins.root / "logs"
        self.logs.mkdir()
        self.logs.chmod(0o777)

    async def add(self, name: str, on: dict[str, Any] | None = None, **manifest: Any) -> None:
        """Add a stub that answers hooks with these actions."""
        behaviour: dict[str, Any] = {
            "log": str(self.logs / name),
            "answer": {"name": name},
            "on": {f"kaged.hook.{hook}": acts for hook, acts in (on or {}).items()},
        }
        await self._start(behaviour, name, **{"hooks": HOOKS, **manifest})

    async def _start(self, behaviour: dict[str, Any], name: str, **manifest: Any) -> None:
        installed = self.plugins.install(
            behaviour, name=name, capabilities=[f"write:fs:{self.logs}"], **manifest
        )
        self.supervisor.register(installed)
        await self.supervisor.enable(name)
        assert self.supervisor.get(name).state is PluginState.RUNNING, self.plugins.events

    async def load(self, **primary: Any) -> None:
        """Load a project with this primary agent."""
        spec = {"model": "default", "system_prompt": "You help.", **primary}
        tree = self.loop.load(yaml.safe_dump({"primary": spec}, sort_keys=False))
        await self.supervisor.load_project(PROJECT, tree)

    def received(self, name: str) -> list[dict[str, Any]]:
        """Return the params of the hooks that a plugin got, oldest first."""
        path = self.logs / name
        if not path.exists():
            return []
        # The plugin may be writing the last line just now: only what has its end counts.
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        lines = [json.loads(one) for one in whole.splitlines()]
        return [one["params"] for one in lines if one.get("method", "").startswith("kaged.hook.")]


def declared(*names: str, **more: Any) -> dict[str, Any]:
    """Declare plugins on an agent."""
    return {name: {"package": name, **more} for name in names}


@asynccontextmanager
async def session_stage(
    tmp_path: Path, model: PlayedModel | None = None, **more: Any
) -> AsyncGenerator[SessionStage]:
    """Open a stage below a folder; words are those of `loop_lab`."""
    lab = PluginLab(tmp_path, initialize_timeout_s=20.0, config_patience_s=0.5)
    await lab.open()
    supervisor = PluginSupervisor(lab.parts, on_tools=lambda: tools.refresh())  # noqa: PLW0108 - made below
    hooks = SessionHooks(supervisor.hooks, supervisor.participants)

    def names_on(project: str, agent: str) -> list[str]:
        return [one.plugin.name for one in supervisor.participants(project, agent)]

    try:
        async with loop_lab(tmp_path, model, hooks=hooks, plugins_of=names_on, **more) as loop:
            tools = PluginTools(loop.agent_tools.registry)
            tools.connect(supervisor)
            yield SessionStage(lab, supervisor, loop)
            await loop.driver.close()
    finally:
        await supervisor.stop_all()
        await lab.close()


__all__ = ["HOOKS", "SessionStage", "declared", "session_stage"]
