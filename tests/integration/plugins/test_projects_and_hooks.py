"""Plugins of a loaded project: declarations, tools, hooks and the compactor, with real cages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.plugin_lab import PluginLab
from kaged.config import AgentTree, load_project, resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.reading import Loaded
from kaged.plugins.hooks import CompactionEvent
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from kaged.wire.context import WireContext
from raising import raises_code
from requirements import requirement

HOOKS = ["on_session_start", "on_session_idle", "pre_compact", "post_compact"]
SYSTEM = {"id": "m0", "role": "system", "content": "be kind"}
OLD = {"id": "m1", "role": "user", "content": "hello"}
EVENT = CompactionEvent(
    being_compacted=[OLD],  # pyright: ignore[reportArgumentType] - literals
    remaining=[SYSTEM],  # pyright: ignore[reportArgumentType] - literals
    strategy="summarize",
    trigger="threshold_crossed",
    always_keep=[SYSTEM],  # pyright: ignore[reportArgumentType] - literals
)


class Stage:
    """A lab with a supervisor and one project."""

    def __init__(self, lab: PluginLab, tmp_path: Path) -> None:
        self.lab = lab
        self.supervisor = PluginSupervisor(lab.parts)
        self.root = tmp_path / "project"
        self.logs = tmp_path / "logs"
        self.logs.mkdir()
        self.logs.chmod(0o777)

    async def add(self, name: str, on: dict[str, Any] | None = None, **manifest: Any) -> None:
        log = self.logs / name
        behaviour: dict[str, Any] = {
            "log": str(log),
            "answer": {"name": name},
            "on": {f"kaged.hook.{hook}": acts for hook, acts in (on or {}).items()},
        }
        for tool in manifest.get("tools", []):
            behaviour["on"][f"{name}.{tool['name']}"] = [{"echo": True}]
        installed = self.lab.install(
            behaviour, name=name, capabilities=[f"write:fs:{self.logs}"], **manifest
        )
        self.supervisor.register(installed)
        await self.supervisor.enable(name)
        assert self.supervisor.get(name).state is PluginState.RUNNING, self.lab.events

    def tree(self, primary: dict[str, Any]) -> AgentTree:
        spec = {"model": "m", "system_prompt": "x", **primary}
        folder = self.root / ".kaged"
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"primary": spec}, sort_keys=False)
        (folder / "project.yaml").write_text(text, encoding="utf-8")
        loaded = load_project(self.root)
        return resolve_agents(loaded, Loaded(DaemonConfig()), Loaded(LocalConfig()))

    async def load(self, primary: dict[str, Any]) -> Any:
        return await self.supervisor.load_project("music", self.tree(primary))

    def received(self, name: str) -> list[dict[str, Any]]:
        path = self.logs / name
        # The plugin may be writing the last line just now: only what has its end counts.
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def methods(self, name: str) -> list[str]:
        return [message["method"] for message in self.received(name) if "method" in message]

    def context(self, agent: str = "primary") -> WireContext:
        return self.lab.context(project_id="music", agent_path=agent, session_id="ses_1")

    def participants(self, agent: str = "primary") -> Any:
        return self.supervisor.participants("music", agent)


@pytest.fixture
async def stage(lab: PluginLab, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()


def plugins(*names: str, **shared: Any) -> dict[str, Any]:
    return {"plugins": {name: {"package": name, **shared} for name in names}}


@requirement(
    "PH-HOOK-24",
    "PH-HOOK-16",
    "PH-HOOK-17",
    "PH-HOOK-31",
    "PH-AUD-21",
    "PH-AUD-22",
    "PH-AMB-48",
)
async def test_injections_come_wrapped_in_declared_order(stage: Stage) -> None:
    for name in ("zeta", "alpha", "mid"):
        text = f"<plugin:{name}>hello from {name}</plugin:{name}>" if name == "mid" else name
        await stage.add(name, {"on_session_start": [{"result": {"inject": text}}]}, hooks=HOOKS)
    await stage.load(plugins("zeta", "alpha", "mid"))
    context = stage.context()
    seen = await stage.supervisor.hooks.session_start(stage.participants(), context)
    assert seen.inject == (
        "<plugin:zeta>zeta</plugin:zeta>",
        "<plugin:alpha>alpha</plugin:alpha>",
        "<plugin:mid><plugin:mid>hello from mid</plugin:mid></plugin:mid>",
    )
    events = await stage.lab.seen("plugin.hook.fired", "plugin.hook.returned")
    assert [(name, data["name"]) for name, data in events] == [
        (event, plugin)
        for plugin in ("zeta", "alpha", "mid")
        for event in ("plugin.hook.fired", "plugin.hook.returned")
    ]
    fired = events[0][1]
    assert fired == {
        "name": "zeta",
        "hook": "on_session_start",
        "agent_path": "primary",
        "session_id": "ses_1",
        "request_id": context.request_id,
    }
    assert events[1][1]["has_result"] is True


@requirement(
    "PH-HOOK-01", "PH-HOOK-12", "PH-HOOK-13", "PH-HOOK-18", "PH-HOOK-20", "PH-CTX-09", "PH-HOOK-32"
)
async def test_each_hook_is_a_request_with_its_own_params(stage: Stage) -> None:
    null = [{"result": None}]
    await stage.add("watch", dict.fromkeys(HOOKS, null), hooks=HOOKS)
    await stage.load(plugins("watch"))
    hooks, who, context = stage.supervisor.hooks, stage.participants(), stage.context()
    await hooks.session_start(who, context)
    await hooks.session_idle(who, context, [OLD])  # pyright: ignore[reportArgumentType] - literals
    await hooks.pre_compact(who, context, EVENT)
    await hooks.post_compact(who, context, EVENT)
    fired = [m for m in stage.received("watch") if m["method"].startswith("kaged.hook.")]
    assert [m["method"] for m in fired] == [f"kaged.hook.{hook}" for hook in HOOKS]
    assert all(type(m["id"]) is int and m["params"]["_context"]["agent_path"] for m in fired)
    assert set(fired[0]["params"]) == {"_context"}
    assert fired[1]["params"]["transcript"] == [OLD]
    for message in fired[2:]:
        params = message["params"]
        assert set(params) == {
            "_context",
            "role",
            "messages_being_compacted",
            "messages_remaining",
            "strategy",
            "trigger",
        }
        assert (params["role"], params["strategy"], params["trigger"]) == (
            "observer",
            "summarize",
            "threshold_crossed",
        )


@requirement("PH-HOOK-02", "PH-HOOK-08", "PH-ISO-01", "PH-AMB-09")
async def test_only_subscribed_plugins_of_that_agent_hear_a_hook(stage: Stage) -> None:
    null = {hook: [{"result": None}] for hook in HOOKS}
    await stage.add("all-hooks", null, hooks=HOOKS)
    await stage.add("one-hook", null, hooks=["post_compact"])
    await stage.add("none-chosen", null, hooks=HOOKS)
    await stage.add("below", null, hooks=HOOKS)
    primary = plugins("all-hooks", "one-hook", "none-chosen")
    primary["plugins"]["none-chosen"]["hooks"] = []
    primary["subagents"] = {
        "helper": {"model": "m", "system_prompt": "y", **plugins("below")},
    }
    await stage.load(primary)
    hooks, context = stage.supervisor.hooks, stage.context()
    await hooks.pre_compact(stage.participants(), context, EVENT)
    await hooks.post_compact(stage.participants(), context, EVENT)
    below = "primary.subagents.helper"
    await hooks.pre_compact(stage.participants(below), stage.context(below), EVENT)

    def fired(name: str) -> list[str]:
        return [m for m in stage.methods(name) if m.startswith("kaged.hook.")]

    assert fired("all-hooks") == ["kaged.hook.pre_compact", "kaged.hook.post_compact"]
    assert fired("one-hook") == ["kaged.hook.post_compact"]
    assert fired("none-chosen") == []
    assert fired("below") == ["kaged.hook.pre_compact"]


@requirement("PH-HOOK-11", "PH-HOOK-10", "PH-AUD-25")
async def test_a_primary_only_hook_on_a_subagent_is_a_warning(stage: Stage) -> None:
    await stage.add("memory", {"on_session_idle": [{"result": None}]}, hooks=HOOKS)
    declared = plugins("memory", hooks=["on_session_idle", "post_compact"])
    helper = {"model": "m", "system_prompt": "y", **declared}
    admitted = await stage.load({"subagents": {"helper": helper}})
    assert len(admitted.accepted) == 1
    illegal = await stage.lab.until_event("plugin.hook.illegal")
    agent = "primary.subagents.helper"
    assert illegal == {"name": "memory", "hook": "on_session_idle", "agent_path": agent}
    who = stage.participants(agent)
    await stage.supervisor.hooks.session_idle(who, stage.context(agent), [])
    assert "kaged.hook.on_session_idle" not in stage.methods("memory")


@requirement("PH-HOOK-29")
async def test_a_hook_of_a_dead_plugin_is_skipped(stage: Stage) -> None:
    await stage.add("gone", {"on_session_start": [{"result": {"inject": "x"}}]}, hooks=HOOKS)
    await stage.load(plugins("gone"))
    await stage.supervisor.get("gone").stop("test")
    seen = await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert seen.inject == ()


@requirement("PH-HOOK-09", "PH-AMB-07", "PH-ROLE-02")
async def test_observers_retain_and_inject_around_a_compaction(stage: Stage) -> None:
    both = [{"result": {"retain": ["keep me"], "inject": "note"}}]
    for n in range(5):
        await stage.add(f"watch-{n}", {"pre_compact": both, "on_session_start": both}, hooks=HOOKS)
    await stage.load(plugins(*(f"watch-{n}" for n in range(5))))
    outcome = await stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), EVENT)
    assert outcome.observed.retain == ("keep me",) * 5
    assert outcome.observed.inject == tuple(
        f"<plugin:watch-{n}>note</plugin:watch-{n}>" for n in range(5)
    )
    assert (outcome.replacement, outcome.fallback) == (None, None)
    start = await stage.supervisor.hooks.session_start(stage.participants(), stage.context())
    assert start.retain == ()


ANSWER = {
    "role": "compactor",
    "messages": [SYSTEM, {"role": "user", "content": "short"}],
    "superseded": ["m1"],
    "summary": "hello was said",
}


def compactor(key: str = "squeeze") -> dict[str, Any]:
    return {**plugins(key), "compaction": {"delegate": {"plugin": key}}}


@requirement("PH-HOOK-21", "PH-AMB-08", "PH-AUD-34")
async def test_the_designated_compactor_replaces_the_messages(stage: Stage) -> None:
    await stage.add(
        "squeeze", {"pre_compact": [{"result": ANSWER}]}, hooks=HOOKS, roles=["compactor"]
    )
    await stage.load(compactor())
    outcome = await stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), EVENT)
    assert outcome.fallback is None
    assert outcome.replacement is not None
    assert list(outcome.replacement.messages) == ANSWER["messages"]
    assert outcome.replacement.superseded == ("m1",)
    assert outcome.replacement.summary == "hello was said"
    sent = next(m for m in stage.received("squeeze") if "pre_compact" in m["method"])
    assert sent["params"]["role"] == "compactor"
    await stage.supervisor.hooks.post_compact(stage.participants(), stage.context(), EVENT)
    assert not [name for name in await stage.lab.names() if name.startswith("compaction.")]


@requirement("PH-ROLE-04", "PH-AMB-08")
async def test_without_designation_or_role_nobody_replaces_anything(stage: Stage) -> None:
    await stage.add(
        "squeeze", {"pre_compact": [{"result": ANSWER}]}, hooks=HOOKS, roles=["compactor"]
    )
    await stage.add("watch", {"pre_compact": [{"result": ANSWER}]}, hooks=HOOKS)
    await stage.load(plugins("squeeze", "watch"))
    outcome = await stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), EVENT)
    assert (outcome.replacement, outcome.fallback) == (None, None)
    assert not [m for m in stage.methods("squeeze") if "pre_compact" in m]
    admitted = await stage.load(compactor("watch"))
    assert [(r.plugin, "no compactor" in r.reason) for r in admitted.refused] == [("watch", True)]


@pytest.mark.parametrize(
    ("acts", "why"),
    [
        pytest.param([{"error": [-32000, "broken"]}], "no answer"),
        pytest.param([{"noise": ""}], "no answer"),
        pytest.param(
            [{"result": {**ANSWER, "role": "observer"}}], "role", marks=requirement("PH-ROLE-09")
        ),
        pytest.param([{"result": {**ANSWER, "messages": None}}], "messages"),
        pytest.param(
            [{"result": {**ANSWER, "superseded": ["zz"]}}],
            "superseded",
        ),
        pytest.param(
            [{"result": {**ANSWER, "messages": [SYSTEM, 5]}}],
            "message",
            marks=requirement("PH-ROLE-20"),
        ),
        pytest.param([{"result": {**ANSWER, "messages": [OLD]}}], "always-keep"),
        pytest.param([{"result": None}], "not an object"),
    ],
)
async def test_every_failure_of_the_compactor_is_a_fallback(
    stage: Stage, acts: list[dict[str, Any]], why: str
) -> None:
    await stage.add(
        "squeeze", {"pre_compact": acts}, hooks=HOOKS, roles=["compactor"], hook_timeout_sec=1
    )
    await stage.load(compactor())
    outcome = await stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), EVENT)
    assert outcome.replacement is None
    assert outcome.fallback is not None
    assert why in outcome.fallback
    names = await stage.lab.names()
    assert ("compactor_dropped_always_keep" in names) == (why == "always-keep")
    assert not [name for name in names if name.startswith("compaction.")]


async def test_a_dead_compactor_is_a_fallback(stage: Stage) -> None:
    await stage.add("squeeze", hooks=HOOKS, roles=["compactor"])
    await stage.load(compactor())
    await stage.supervisor.get("squeeze").stop("test")
    outcome = await stage.supervisor.hooks.pre_compact(stage.participants(), stage.context(), EVENT)
    assert outcome.fallback is not None


TOOLS = [{"name": "retain", "description": "x", "parameters_schema": {"type": "object"}}]


@requirement("PH-TOOL-01", "PH-TOOL-12", "PH-AUD-26", "PH-TOOL-06")
async def test_tools_enter_with_the_handshake_and_are_announced_per_agent(stage: Stage) -> None:
    await stage.add("memory", tools=TOOLS)
    assert list(stage.supervisor.tools) == ["memory.retain"]
    assert await stage.lab.seen("plugin.tool_registered") == []
    await stage.add("notes", tools=TOOLS)
    helper = {"model": "m", "system_prompt": "y", **plugins("memory")}
    await stage.load(
        {
            **plugins("memory", "notes"),
            "subagents": {"helper": helper, "other": {"model": "m", "system_prompt": "z"}},
        }
    )
    events = [data for _, data in await stage.lab.seen("plugin.tool_registered")]
    of_memory = [
        {"name": "memory", "tool": "memory.retain", "agent_path": agent}
        for agent in ("primary", "primary.subagents.helper")
    ]
    of_notes = {"name": "notes", "tool": "notes.retain", "agent_path": "primary"}
    assert sorted(events, key=lambda one: one["name"]) == [*of_memory, of_notes]
    await stage.supervisor.disable("memory")
    assert list(stage.supervisor.tools) == ["notes.retain"]
    await stage.supervisor.enable("memory")  # it enters anew; the other was never away
    later = [data for _, data in await stage.lab.seen("plugin.tool_registered")]
    assert later[len(events) :] == of_memory


@requirement("PH-TOOL-05", "PH-AUD-27")
async def test_a_second_plugin_of_the_same_name_is_refused(stage: Stage, tmp_path: Path) -> None:
    await stage.add("memory", tools=TOOLS)
    twin = stage.supervisor.get("memory").installed
    with raises_code("tool_name_collision"):
        stage.supervisor.register(twin)
    event = await stage.lab.until_event("plugin.tool_name_collision")
    assert event["tool"] == "memory.retain"
    assert {"first", "second", "tool"} == set(event)
    assert stage.supervisor.get("memory").state is PluginState.RUNNING
    assert list(stage.supervisor.tools) == ["memory.retain"], "the first keeps its tool"


SCHEMA = {
    "type": "object",
    "properties": {"tags": {"type": "array"}, "budget": {"type": "string", "default": "mid"}},
    "additionalProperties": False,
}


@requirement("PH-AMB-23", "PH-AMB-18")
async def test_each_agents_call_runs_under_its_own_config(stage: Stage) -> None:
    await stage.add("memory", tools=TOOLS, config_schema=SCHEMA)
    primary = plugins("memory", isolation="project", config={"tags": ["p"], "budget": "low"})
    helper = {
        "model": "m",
        "system_prompt": "y",
        "plugins": {"memory": {"config": {"tags": ["h"]}}},
    }
    await stage.load({**primary, "subagents": {"helper": helper}})
    agents = ("primary", "primary.subagents.helper", "primary.subagents.helper", "primary")
    for agent in agents:
        result: Any = await stage.supervisor.call_tool(
            "memory.retain", {"content": "x"}, stage.context(agent)
        )
        assert result["_context"]["agent_path"] == agent
        assert set(result) == {"content", "_context"}
    tail = [
        (m["method"], m["params"].get("config"))
        for m in stage.received("memory")
        if m["method"] in {"config.update", "memory.retain"}
    ]
    low, high = {"tags": ["p"], "budget": "low"}, {"tags": ["h"], "budget": "low"}
    assert tail[-6:] == [
        ("memory.retain", None),
        ("config.update", high),
        ("memory.retain", None),
        ("memory.retain", None),
        ("config.update", low),
        ("memory.retain", None),
    ]


async def test_per_call_config_travels_with_the_call(stage: Stage) -> None:
    await stage.add("memory", tools=TOOLS, config_schema=SCHEMA, per_call_config=True)
    await stage.load(plugins("memory", config={"tags": ["p"]}))
    result: Any = await stage.supervisor.call_tool("memory.retain", {"a": 1}, stage.context())
    assert result["_config"] == {"tags": ["p"], "budget": "mid"}
    assert set(result) == {"a", "_context", "_config"}


@requirement("PH-METH-07", "PH-METH-08", "PH-AMB-61", "PH-HAND-07")
async def test_projects_are_told_to_plugins_that_use_them(stage: Stage) -> None:
    await stage.add("memory", config_schema=SCHEMA)
    declared = plugins("memory", config={"tags": ["p"]})
    await stage.load(declared)
    await stage.load(declared)
    await stage.supervisor.unload_project("music")
    config = {"tags": ["p"], "budget": "mid"}
    told = [
        (m["method"], m["params"])
        for m in stage.received("memory")
        if m["method"].startswith(("projects.", "config."))
    ]
    assert told == [
        ("config.update", {"config": {"budget": "mid"}}),
        ("projects.activated", {"project": "music", "config": config}),
        ("config.update", {"config": config}),
        ("projects.activated", {"project": "music", "config": config}),
        ("projects.deactivated", {"project": "music"}),
    ]
    await stage.load(declared)
    await stage.supervisor.restart("memory", "test")
    greetings = [m for m in stage.received("memory") if m["method"] == "initialize"]
    assert [m["params"]["projects"] for m in greetings] == [[], ["music"]]


@requirement("PH-CONF-06", "PH-CONF-07", "PH-CONF-03")
async def test_the_system_half_decides_whether_a_plugin_runs(
    lab: PluginLab, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    schema = {
        "type": "object",
        "properties": {"api_token": {"type": "string"}},
        "required": ["api_token"],
    }
    secrets: dict[str, Any] = {}
    supervisor = PluginSupervisor(lab.parts, system_config=lambda _: dict(secrets))
    installed = lab.install(
        {"log": str(logs / "log")},
        capabilities=[f"write:fs:{logs}"],
        config_schema=SCHEMA,
        system_config_schema=schema,
    )
    plugin = supervisor.register(installed)
    await supervisor.enable("stub")
    assert plugin.state is PluginState.FAILED
    names = await lab.names()
    assert names == ["plugin.enabled", "plugin.spawned", "plugin.config_validation_failed"]
    secrets["api_token"] = "hunter2"
    await supervisor.enable("stub")
    assert plugin.state is PluginState.RUNNING
    text = (logs / "log").read_text(encoding="utf-8").splitlines()
    updates = [json.loads(line)["params"] for line in text if "config.update" in line]
    assert updates == [{"config": {"budget": "mid", "api_token": "hunter2"}}]
    assert "hunter2" not in json.dumps(await lab.seen())
    await supervisor.stop_all()


@requirement(
    "PH-SUP-38",
    "PH-SUP-36",
    "PH-AUD-13",
    "PH-SUP-28",
    "PH-SUP-29",
    "PH-SUP-30",
)
async def test_the_supervisors_operations(stage: Stage) -> None:
    supervisor, lab = stage.supervisor, stage.lab
    plugin = supervisor.register(lab.install({"on": {"a.b": [{"result": 1}]}}))
    assert plugin.state is PluginState.DISABLED
    await supervisor.start_all(["stub", "not-there"])
    assert plugin.state is PluginState.RUNNING
    assert await supervisor.call("stub", "a.b", {}, lab.context()) == 1
    assert supervisor.status("stub")["state"] == "running"
    await supervisor.disable("stub")
    assert list(plugin.history)[-3:] == [
        PluginState.RUNNING,
        PluginState.STOPPED,
        PluginState.DISABLED,
    ]
    disabled = await lab.until_event("plugin.disabled")
    assert disabled == {"name": "stub", "reason": "operator"}
    await supervisor.enable("stub")
    assert await lab.until_event("plugin.enabled") == {"name": "stub"}
    assert list(plugin.history)[-2:] == [PluginState.SPAWNING, PluginState.RUNNING]
    await supervisor.stop_all()
    assert supervisor.status("stub")["state"] == "stopped"
