"""Tools that plugins offer: whose they are, when they are there, and what reaches the plugin."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import TOOL, Ear, heard
from whole.harness.project import Project

Maker = Callable[..., PluginFolder]
RECALL = {"name": "recall", "description": "Finds it.", "parameters_schema": {"type": "object"}}
LIST_TAGS = {**RECALL, "name": "list_tags"}
KID = "primary.subagents.kid"


class Memory:
    """A plugin with three tools and one method, on a project with a subagent beside it."""

    def __init__(self, daemon: Daemon, one: PluginFolder, project: Project) -> None:
        self.daemon = daemon
        self.one = one
        self.project = project
        name = one.name
        on = {
            f"{name}.retain": [{"echo": True}],
            f"{name}.recall": [{"exit": 3}],
            f"{name}.list_tags": [{"echo": True}],
            "a.b": [{"echo": True}],
        }
        self.ear: Ear = heard(one, {"on": on}, tools=[TOOL, RECALL, LIST_TAGS], methods=["a.b"])

    def declare(self, primary: bool = True, kid: bool = False, **more: Any) -> None:
        """Declare it on these agents; `more` goes to the subagent."""
        declared = {self.one.name: {"package": self.one.name}}
        below = {"model": "default", "system_prompt": "x", **more}
        below |= {"plugins": declared} if kid else {}
        self.project.describe(
            plugins=declared if primary else {}, subagents={"kid": below}, tools={}
        )
        self.project.reload()

    def tools(self, agent: str = "primary") -> list[str]:
        """Return the plugin's tools that an agent has."""
        shown = self.project.get(f"/tools?agent={agent}")["tools"]
        return sorted(one["name"] for one in shown if one["plugin_name"] == self.one.name)

    @property
    def all(self) -> list[str]:
        """The full names of its tools."""
        return sorted(f"{self.one.name}.{name}" for name in ("list_tags", "recall", "retain"))


@pytest.fixture
def memory(daemon: Daemon, plugin: Maker, project: Project) -> Memory:
    """Return a plugin with three tools, not installed yet."""
    return Memory(daemon, plugin(), project)


@whole("PH-TOOL-01", "PH-TOOL-03", "PH-TOOL-12", "PH-AUD-26")
def test_tools_are_there_from_the_handshake_on_under_the_plugins_name(memory: Memory) -> None:
    memory.one.install()
    memory.declare(kid=True)
    assert memory.tools() == []
    assert memory.one.audit("plugin.tool_registered") == []
    memory.daemon.post(f"/plugins/{memory.one.name}/enable")
    assert memory.tools() == memory.tools(KID) == memory.all
    shown = [one for one in memory.project.get("/tools")["tools"] if one["source"] == "plugin"]
    assert sorted(one["name"] for one in shown) == memory.all, "the full names alone"
    for one in shown:
        assert (one["plugin_name"], one["namespace"]) == (memory.one.name, memory.one.name)
        assert re.fullmatch(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*", one["name"])
    rows = exactly(6, lambda: memory.one.audit("plugin.tool_registered"))
    assert sorted((row["data"]["tool"], row["data"]["agent_path"]) for row in rows) == sorted(
        (tool, agent) for tool in memory.all for agent in ("primary", KID)
    )
    assert {row["data"]["name"] for row in rows} == {memory.one.name}
    memory.daemon.post(f"/plugins/{memory.one.name}/disable")
    assert memory.tools() == []
    memory.daemon.post(f"/plugins/{memory.one.name}/enable")
    assert memory.tools() == memory.all
    again = exactly(12, lambda: memory.one.audit("plugin.tool_registered"))
    assert len({(row["data"]["tool"], row["data"]["agent_path"]) for row in again}) == 6


@whole("PH-TOOL-06")
def test_no_word_is_kept_for_somebody(daemon: Daemon, project: Project, tmp_path: Path) -> None:
    one = PluginFolder(
        daemon, tmp_path / "memory", {"on": {"memory.retain": [{"echo": True}]}},
        name="memory", tools=[TOOL],
    )  # fmt: skip
    assert one.run()["state"] == "running"
    project.describe(plugins={"memory": {"package": "memory"}})
    project.reload()
    assert project.call("memory.retain", content="x")["content"] == "x"


@whole("PH-TOOL-08", "PH-AMB-20", "PH-AMB-19")
def test_who_declares_a_plugin_has_its_tools_and_nobody_else(memory: Memory) -> None:
    memory.one.run()
    memory.declare(primary=True, kid=False)
    assert (memory.tools(), memory.tools(KID)) == (memory.all, [])
    tool = f"{memory.one.name}.retain"
    assert memory.project.fail(tool, KID, content="x")["code"] == "tool_not_found"
    memory.declare(primary=False, kid=True)
    assert (memory.tools(), memory.tools(KID)) == ([], memory.all)
    assert memory.project.call(tool, KID, content="x")["content"] == "x"
    for name in ("a.b", f"{memory.one.name}.a.b", f"{memory.one.name}.b"):
        assert memory.project.fail(name, KID)["code"] == "tool_not_found"
    assert memory.one.call("a.b", x=1)["x"] == 1


@whole("PH-TOOL-09", "PH-TOOL-10", "PH-AMB-20")
def test_single_tools_and_all_are_switched_off_without_the_plugins_help(memory: Memory) -> None:
    memory.one.run()
    name = memory.one.name
    memory.declare(kid=True, tools={f"{name}.recall": {"enabled": False}})
    assert memory.tools(KID) == [f"{name}.list_tags", f"{name}.retain"]
    assert memory.tools() == memory.all
    assert memory.project.fail(f"{name}.recall", KID)["code"] == "tool_not_found"
    assert memory.project.call(f"{name}.retain", KID, content="x")["content"] == "x"
    memory.declare(kid=True, tools={f"{name}.*": {"enabled": False}})
    assert (memory.tools(KID), memory.tools()) == ([], memory.all)
    assert memory.one.state()["state"] == "running"


def test_what_is_refused_never_reaches_the_plugin(memory: Memory) -> None:
    memory.one.run()
    memory.declare()
    name, project = memory.one.name, memory.project
    unknown = project.fail(f"{name}.forget")
    assert (unknown["code"], unknown["data"]["number"]) == ("tool_not_found", -32601)
    for wrong in ({"content": 7}, {}, {"content": "x", "_context": {"agent_path": "primary"}}):
        bad = project.fail(f"{name}.retain", **wrong)
        assert (bad["code"], bad["data"]["number"]) == ("invalid_params", -32602), wrong
    assert memory.ear.of(f"{name}.retain") == []
    assert memory.ear.of(f"{name}.forget") == []
    project.call(f"{name}.retain", content="x")
    (sent,) = memory.ear.params(f"{name}.retain")
    assert {key: value for key, value in sent.items() if key != "_context"} == {"content": "x"}


@whole("PH-AMB-18", "PH-AUD-36", "PH-AMB-15")
def test_a_tool_call_travels_under_its_full_name_with_its_arguments_flat(memory: Memory) -> None:
    memory.one.run()
    memory.declare()
    tool = f"{memory.one.name}.list_tags"
    memory.project.call(tool, a=1, b={"c": [2]})
    (sent,) = memory.ear.of(tool)
    context = sent["params"].pop("_context")
    assert sent["params"] == {"a": 1, "b": {"c": [2]}}
    assert isinstance(sent["id"], int)
    assert context["project_id"] == memory.project.id
    assert context["agent_path"] == "primary"
    pair = exactly(2, lambda: memory.one.audit("plugin.method_called", "plugin.method_returned"))
    assert [(row["event"], row["data"]["method"]) for row in pair] == [
        ("plugin.method_called", tool),
        ("plugin.method_returned", tool),
    ]
    system = [one for one in memory.ear.lines() if one["method"] in ("ping", "projects.activated")]
    assert all("_context" not in one.get("params", {}) for one in system)


@whole("PH-AMB-18")
def test_tools_named_among_the_methods_of_the_handshake_are_no_surprise(
    daemon: Daemon, plugin: Maker
) -> None:
    listed = plugin()
    name = listed.name
    listed.write({"answer": {"methods": [f"{name}.retain"]}}, name=name, methods=[], tools=[TOOL])
    assert listed.run()["state"] == "running"
    more = plugin({"answer": {"methods": ["a.b", "c.d", "e.f"]}})
    assert more.run()["state"] == "running"
    warned = [line for line in daemon.log().splitlines() if "warning" in line]
    assert [line for line in warned if more.name in line and "e.f" in line]
    assert [line for line in warned if f"{name}.retain" in line] == []


@whole("PH-TOOL-15", "PH-AUD-36")
def test_a_call_to_a_plugin_that_is_down_fails_at_once(memory: Memory) -> None:
    memory.one.run()
    memory.declare()
    name, project = memory.one.name, memory.project
    died = project.fail(f"{name}.recall")
    assert died["code"] == "plugin_unavailable"
    for _ in range(2):
        down = project.fail(f"{name}.retain", content="x")
        if memory.one.state()["state"] != "running":
            assert (down["code"], down["data"]["number"]) == ("plugin_unavailable", -32000)
    returned = [
        row["data"]["success"]
        for row in memory.one.audit("plugin.method_returned")
        if row["data"]["method"] == f"{name}.recall"
    ]
    assert returned == [False]
    wait_for(lambda: memory.one.state()["state"] == "running")
    assert project.call(f"{name}.retain", content="y")["content"] == "y"


@whole("PH-TOOL-01", "PH-TOOL-08")
def test_a_model_is_offered_the_tools_and_calls_one(
    memory: Memory, model: ModelServer, daemon: Daemon
) -> None:
    memory.one.run()
    memory.declare()
    name = memory.one.name
    word = f"osprey-{name}"
    model.play(word, call(f"{name}.retain", content="a fish"), say("Kept."))
    assert "Kept." in daemon.cli("run", word, cwd=memory.project.root).out
    first = model.asked(word)[0]
    offered = [one["function"] for one in first["tools"]]
    mine = {one["name"]: one for one in offered if one["name"].startswith(name.replace(".", "_"))}
    assert len(mine) == 3, sorted(mine)
    (sent,) = memory.ear.params(f"{name}.retain")
    assert sent["content"] == "a fish"
    assert sent["_context"]["session_id"].startswith("ses_")
    assert "a fish" in str(model.asked(word)[-1]["messages"][-1])


@whole("PH-TOOL-05", "PH-AUD-27", "AT-REG-22")
def test_the_second_plugin_of_a_name_is_refused_and_the_first_goes_on(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    echoes = {"on": {"memory.retain": [{"echo": True}]}}
    one = PluginFolder(daemon, tmp_path / "memory", echoes, name="memory", tools=[TOOL])
    one.run()
    daemon.stop()
    store = daemon.home / "plugins"
    twin = PluginFolder(daemon, store / "twin", name="memory", tools=[TOOL])
    daemon.start()
    wait_for(lambda: one.state()["state"] == "running")
    names = [each["name"] for each in daemon.get("/plugins")["items"]]
    assert names.count("memory") == 1
    states = {each["name"]: each["state"] for each in daemon.get("/plugins")["items"]}
    assert states["twin"] == "disabled (tool_name_collision)"
    (row,) = exactly(1, lambda: daemon.audit("plugin.tool_name_collision"))
    assert str(store / "memory") in row["data"]["first"]
    assert str(twin.root) in row["data"]["second"]
    assert row["data"]["tool"] == "memory.retain"
    assert daemon.audit("plugin.disabled") == []
    project = daemon.load(Project(tmp_path / "p", plugins={"memory": {"package": "memory"}}))
    assert project.call("memory.retain", content="kept")["content"] == "kept"
    names = [each["name"] for each in project.get("/tools")["tools"]]
    assert names.count("memory.retain") == 1
