"""`isolation` beside the package and `config.isolation` are one setting (PH-AMB-24)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.plugin_lab import PluginLab
from kaged.config import AgentTree, load_project, resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.pluginwords import Isolation
from kaged.config.reading import Loaded
from kaged.plugins.knob_write import KnobService
from kaged.plugins.supervisor import PluginSupervisor
from raising import raises_code
from requirements import requirement

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"isolation": {"type": "string", "enum": ["agent", "project"]}},
    "additionalProperties": False,
}
KNOB = {
    "isolation": {
        "type": "enum",
        "label": "Isolation",
        "values": ["agent", "project"],
        "default": "agent",
        "binds_to": "config.isolation",
    }
}


class Stage:
    def __init__(self, lab: PluginLab, root: Path) -> None:
        self.lab = lab
        self.root = root / "project"
        self.supervisor = PluginSupervisor(lab.parts)
        self.service = KnobService(self.supervisor, lab.parts.audit, models=dict)
        installed = lab.install({}, config_schema=SCHEMA, knobs=KNOB)
        self.supervisor.register(installed)
        self.supervisor.register(lab.install({}, name="plain"))

    def tree(self) -> AgentTree:
        loaded = load_project(self.root)
        return resolve_agents(loaded, Loaded(DaemonConfig()), Loaded(LocalConfig()))

    async def load(self, primary: dict[str, Any], sub: dict[str, Any] | None = None) -> Any:
        spec: dict[str, Any] = {"model": "m", "system_prompt": "x", "plugins": primary}
        if sub is not None:
            below = {"model": "m", "system_prompt": "y", "description": "d", "plugins": sub}
            spec["subagents"] = {"coder": below}
        (self.root / ".kaged").mkdir(parents=True, exist_ok=True)
        file = self.root / ".kaged" / "project.yaml"
        file.write_text(yaml.safe_dump({"primary": spec}), encoding="utf-8")
        return await self.supervisor.load_project("p", self.tree())

    def isolation(self, agent: str = "primary", plugin: str = "stub") -> Isolation:
        declaration = self.supervisor.declaration("p", agent, plugin)
        assert declaration is not None
        return declaration.isolation(self.supervisor.get(plugin).schemas)

    def config(self, agent: str = "primary") -> Any:
        declaration = self.supervisor.declaration("p", agent, "stub")
        assert declaration is not None
        return declaration.effective(self.supervisor.get("stub").schemas, {})

    async def turn(self, value: str) -> None:
        async def reload(project: str) -> None:
            await self.supervisor.load_project(project, self.tree())

        await self.service.write(
            "p", "primary", "stub", "isolation", value, request_id="req_1", reload=reload
        )


@pytest.fixture
def stage(lab: PluginLab, tmp_path: Path) -> Stage:
    return Stage(lab, tmp_path)


@requirement("PH-AMB-24")
async def test_either_spelling_gives_the_same_isolation_and_a_conflict_is_refused(
    stage: Stage,
) -> None:
    coder = "primary.subagents.coder"
    for declared in (
        {"package": "stub", "isolation": "project"},
        {"package": "stub", "config": {"isolation": "project"}},
        {"package": "stub", "isolation": "project", "config": {"isolation": "project"}},
    ):
        admitted = await stage.load({"stub": declared}, {"stub": {}})
        assert admitted.refused == ()
        for agent in ("primary", coder):
            assert stage.isolation(agent) is Isolation.PROJECT
            assert stage.config(agent) == {"isolation": "project"}
    await stage.load({"stub": {"package": "stub"}})
    assert (stage.isolation(), stage.config()) == (Isolation.AGENT, {"isolation": "agent"})
    conflict = {"package": "stub", "isolation": "agent", "config": {"isolation": "project"}}
    (refused,) = (await stage.load({"stub": conflict})).refused
    assert refused.event == "plugin.config_validation_failed"
    # A subagent cannot leave what the primary shares.
    shared = {"package": "stub", "config": {"isolation": "project"}}
    (refused,) = (
        await stage.load({"stub": shared}, {"stub": {"config": {"isolation": "agent"}}})
    ).refused
    assert refused.agent_path == coder
    # A plugin whose schema has no such field is not meant by it.
    await stage.load({"plain": {"package": "plain", "config": {"isolation": "project"}}})
    assert stage.isolation(plugin="plain") is Isolation.AGENT


@requirement("PH-AMB-24")
async def test_a_knob_turns_the_isolation_unless_the_declaration_says_it(stage: Stage) -> None:
    await stage.load({"stub": {"package": "stub"}})
    await stage.turn("project")
    assert stage.isolation() is Isolation.PROJECT
    await stage.turn("agent")
    assert stage.isolation() is Isolation.AGENT
    await stage.load({"stub": {"package": "stub", "isolation": "project"}})
    with raises_code("knob_value_refused"):
        await stage.turn("agent")
    assert stage.isolation() is Isolation.PROJECT
