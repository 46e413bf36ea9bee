"""Tools of real plugins in real cages, dispatched at dispatch like any other tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.agent_trees import load_tree
from fakes.plugin_lab import PATIENCE_S, PluginLab
from fakes.readiness import always_ready
from kaged.kernel.identity import Actor, VouchedBy
from kaged.plugins.parts import HostSettings
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.registration import PluginTools
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from kaged.sessions.agent_tools import AgentToolService
from kaged.tools import ToolError, ToolSource
from raising import raises_code
from requirements import requirement

PROJECT = """\
primary:
  model: m
  system_prompt: p
  plugins:
    memory: {package: memory-md}
  subagents:
    coder: {model: m, system_prompt: p}
"""
CODER = "primary.subagents.coder"
TOOLS = [
    {
        "name": "retain",
        "description": "Keeps a text.",
        "parameters_schema": {
            "type": "object",
            "properties": {"content": {"type": "string"}},
            "required": ["content"],
        },
    },
    {"name": "recall", "description": "Finds it.", "parameters_schema": {"type": "object"}},
]


class PluginStage:
    """A plugin host and a dispatcher on one project, joined as the daemon joins them."""

    def __init__(self, lab: PluginLab, root: Path, project: str = PROJECT) -> None:
        self.lab = lab
        self.root = root
        self.log = root / "log"
        self.log.mkdir(parents=True)
        self.log.chmod(0o777)
        self.tree = load_tree(root / "project", project)
        parts = lab.parts
        self.tool_service = AgentToolService(
            parts.audit,
            parts.clock,
            parts.ids,
            ready=always_ready,
            plugins_of=lambda project, agent: [
                one.plugin.name for one in self.supervisor.participants(project, agent)
            ],
            pipeline=lambda: None,
        )
        source = PluginTools(self.tool_service.registry)
        self.supervisor = PluginSupervisor(parts, on_tools=source.refresh)
        source.connect(self.supervisor)

    async def add(self, on: dict[str, Any] | None = None) -> HostedPlugin:
        acts: dict[str, Any] = {
            "memory-md.retain": [{"echo": True}],
            "memory-md.recall": [{"echo": True}],
        }
        behaviour = {
            "log": str(self.log / "lines"),
            "answer": {"name": "memory-md"},
            "on": {**acts, **(on or {})},
        }
        installed = self.lab.install(
            behaviour,
            name="memory-md",
            capabilities=[f"write:fs:{self.log}"],
            tools=TOOLS,
        )
        return self.supervisor.register(installed)

    async def start(self, on: dict[str, Any] | None = None) -> HostedPlugin:
        plugin = await self.add(on)
        await self.supervisor.enable("memory-md")
        assert plugin.state is PluginState.RUNNING, self.lab.events
        await self.load()
        return plugin

    async def load(self) -> None:
        await self.supervisor.load_project("prj_1", self.tree)
        self.tool_service.project_loaded("prj_1", self.tree)

    async def reload(self, project: str) -> None:
        """Read the project file anew, as it is now."""
        self.tree = load_tree(self.root / "project", project)
        await self.load()

    async def call(self, name: str, agent: str = "primary", **params: Any) -> Any:
        who = Actor.operator("op", VouchedBy.UNIX, self.lab.parts.ids.tagged("req"))
        async with asyncio.timeout(PATIENCE_S):
            found = await self.tool_service.call("prj_1", agent, name, params, who)
        return found["result"]

    async def refusal(self, name: str, agent: str = "primary", **params: Any) -> ToolError:
        with pytest.raises(ToolError) as refused:
            await self.call(name, agent, **params)
        return refused.value

    def requests(self) -> list[dict[str, Any]]:
        """Return the tool calls that reached the plugin."""
        path = self.log / "lines"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if str(one.get("method", "")).startswith("memory-md.")]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[PluginStage]:
    lab = PluginLab(
        tmp_path, initialize_timeout_s=10.0, config_patience_s=0.5, request_timeout_s=4.0
    )
    await lab.open()
    made = PluginStage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()
    await lab.close()


@requirement("AT-REG-19", "PH-TOOL-15")
async def test_tools_come_and_go_with_their_plugin(stage: PluginStage) -> None:
    plugin = await stage.add({"memory-md.recall": [{"exit": 3}]})
    await stage.load()
    assert (await stage.refusal("memory-md.retain", content="x")).code == "tool_not_found"
    await stage.supervisor.enable("memory-md")
    await stage.load()
    entry = stage.tool_service.registry.get("memory-md.retain")
    assert entry is not None
    assert (entry.definition.source, entry.definition.plugin_name) == (
        ToolSource.PLUGIN,
        "memory-md",
    )
    assert (await stage.call("memory-md.retain", content="x"))["content"] == "x"
    # It crashes: the tools stay, and calls fail at once until it is back.
    assert (await stage.refusal("memory-md.recall")).code == "plugin_unavailable"
    await stage.lab.until(plugin, PluginState.CRASHED)
    assert "memory-md.retain" in stage.tool_service.registry
    unavailable = await stage.refusal("memory-md.retain", content="x")
    assert (unavailable.code, unavailable.number) == ("plugin_unavailable", -32000)
    stage.lab.wake(2)  # one wait is that of the old process's health check
    await stage.lab.until_event("plugin.initialized", 2)
    await stage.lab.until(plugin, PluginState.RUNNING)
    assert (await stage.call("memory-md.retain", content="y"))["content"] == "y"
    await stage.supervisor.disable("memory-md")
    assert (await stage.refusal("memory-md.retain", content="x")).code == "tool_not_found"
    assert len(stage.tool_service.registry) == 0


@requirement("AT-DISP-15", "PH-TOOL-13")
async def test_the_context_comes_from_the_host_alone(stage: PluginStage) -> None:
    await stage.start()
    forged = {"operator_id": "root", "agent_path": "primary"}
    for member in ("_context", "_config"):
        params: dict[str, Any] = {member: forged}
        error = await stage.refusal("memory-md.recall", **params)
        assert error.code == "invalid_params"
    assert (await stage.refusal("memory-md.retain", content=7)).number == -32602
    assert (await stage.refusal("memory-md.forget")).number == -32601
    assert (await stage.refusal("memory-md.recall", CODER)).number == -32601
    assert stage.requests() == []
    await stage.call("memory-md.retain", content="x")
    (request,) = stage.requests()
    (called,) = (
        data
        for _, data in await stage.lab.seen("tool.completed")
        if data["tool_name"] == "memory-md.retain" and data["success"]
    )
    assert request["params"]["_context"] == {
        "operator_id": "op",
        "project_id": "prj_1",
        "agent_path": "primary",
        "session_id": request["params"]["_context"]["session_id"],
        "request_id": called["request_id"],
    }
    assert request["params"]["_context"]["session_id"].startswith("ses_")


@requirement("AT-DISP-16")
async def test_silence_and_errors_of_a_plugin_are_answers(stage: PluginStage) -> None:
    await stage.start(
        {
            "memory-md.retain": [{"error": [-32005, "the index is being built"]}],
            "memory-md.recall": [{"hang": True}],
        }
    )
    busy = await stage.refusal("memory-md.retain", content="x")
    assert (busy.number, busy.message) == (-32005, "the index is being built")
    # The lab waits 4 s where a daemon waits 30.
    assert HostSettings("0.1.0").request_timeout_s == 30.0
    silent = await stage.refusal("memory-md.recall")
    assert silent.number == -32603
    assert "memory-md" in silent.message


@requirement("AT-REG-22")
async def test_the_second_plugin_of_a_name_is_refused_and_the_first_goes_on(
    stage: PluginStage,
) -> None:
    plugin = await stage.start()
    with raises_code("tool_name_collision") as collision:
        stage.supervisor.register(plugin.installed)
    assert collision.value.code == "tool_name_collision"
    [(_, told)] = await stage.lab.seen("plugin.tool_name_collision")
    assert told["first"] == told["second"] == f"memory-md ({plugin.installed.directory})"
    assert told["tool"].startswith("memory-md.")
    assert stage.supervisor.get("memory-md") is plugin
    assert stage.tool_service.registry.names() == ("memory-md.recall", "memory-md.retain")
    assert (await stage.call("memory-md.retain", content="x"))["content"] == "x"


@requirement("AT-AMB-49", "PH-AMB-19")
async def test_a_declared_method_is_no_tool(stage: PluginStage) -> None:
    plugin = await stage.start()
    assert "a.b" in plugin.installed.manifest.methods
    assert stage.tool_service.registry.names() == ("memory-md.recall", "memory-md.retain")
    for name in ("a.b", "memory-md.a.b", "memory-md.b"):
        assert (await stage.refusal(name)).code == "tool_not_found"
    assert stage.requests() == []


async def test_a_plugins_call_counts_as_a_change_and_is_on_record_first(
    stage: PluginStage,
) -> None:
    await stage.start()
    await stage.call("memory-md.retain", content="x")
    names = [name for name, _ in await stage.lab.seen() if name.startswith(("tool.", "plugin.m"))]
    assert names == [
        "tool.called",
        "plugin.method_called",
        "plugin.method_returned",
        "tool.completed",
    ]


DECLARED = """\
primary:
  model: m
  system_prompt: p
  plugins:
    memory: {{package: memory-md, isolation: {isolation}}}
  subagents:
    coder:
      model: m
      system_prompt: p
      plugins:
        memory: {{package: memory-md, isolation: {isolation}}}
      tools: {tools}
    other: {{model: m, system_prompt: p}}
"""


@requirement("PH-AMB-20")
async def test_declaring_a_plugin_enables_its_tools_for_any_agent(stage: PluginStage) -> None:
    await stage.start()
    assert (await stage.refusal("memory-md.retain", CODER, content="x")).code == "tool_not_found"
    await stage.reload(DECLARED.format(isolation="agent", tools="{}"))
    own = {"memory-md.recall", "memory-md.retain"}
    assert own <= set(stage.tool_service.tools_of("prj_1", CODER).names)
    assert (await stage.call("memory-md.retain", CODER, content="x"))["content"] == "x"
    for rule, left in (
        ("{'memory-md.retain': {enabled: false}}", {"memory-md.recall"}),
        ("{'memory-md.*': {enabled: false}}", set[str]()),
    ):
        await stage.reload(DECLARED.format(isolation="agent", tools=rule))
        assert set(stage.tool_service.tools_of("prj_1", CODER).names) & own == left
        assert (await stage.refusal("memory-md.retain", CODER, content="x")).code == (
            "tool_not_found"
        )
        assert own <= set(stage.tool_service.tools_of("prj_1", "primary").names)


@requirement("PH-ISO-05")
async def test_a_shared_plugin_is_there_only_for_agents_that_declare_it(
    stage: PluginStage,
) -> None:
    await stage.start()
    await stage.reload(DECLARED.format(isolation="project", tools="{}"))
    other = "primary.subagents.other"
    takes_part = {
        agent: [one.plugin.name for one in stage.supervisor.participants("prj_1", agent)]
        for agent in ("primary", CODER, other)
    }
    assert takes_part == {"primary": ["memory-md"], CODER: ["memory-md"], other: []}
    assert stage.tool_service.tools_of("prj_1", other).names == []
    assert (await stage.refusal("memory-md.retain", other, content="x")).number == -32601
    assert (await stage.call("memory-md.retain", CODER, content="x"))["content"] == "x"
