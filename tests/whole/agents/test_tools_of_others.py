"""Tools that plugins and outside MCP servers bring: their names, their life and their limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, names_of, path_of, rows_of, tools_of
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

SERVER = Path(__file__).parents[2] / "guests" / "named_tools_server.py"
RESERVED = [
    *("file", "edit", "search", "code", "debug", "shell", "compute", "project", "kaged"),
    *("web", "discover", "media", "job", "system"),
]
FREE = {"type": "object", "properties": {}}


def tool(name: str, **schema: Any) -> dict[str, Any]:
    """Return a tool as a manifest declares it."""
    return {"name": name, "description": "Does it.", "parameters_schema": {**FREE, **schema}}


def server(name: str, *tools: str) -> str:
    """Return the section of an MCP server with these tools."""
    command = ["/usr/bin/env", "python3", str(SERVER), *tools]
    cage = f'{{ fs = [{{ mode = "ro", path = "{SERVER}" }}] }}'
    return f"[mcp.servers.{name}]\ncommand = {json.dumps(command)}\ncage = {cage}\n"


CONFIG = (
    "[plugins]\nrequest_timeout_seconds = 2\n"
    + server("web-kit", "getUser", "a/b", "a.b")
    + server("taken", "recall")
    + "".join(server(name, "x") for name in RESERVED)
)


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with outside MCP servers and short patience for plugins."""
    made = Daemon(module_path / "h", config=CONFIG, local=model.local_toml())
    made.start()
    yield made
    made.close()


def declare(project: Project, made: PluginFolder, **more: Any) -> None:
    """Let the project's primary use a plugin."""
    project.describe(plugins={"it": {"package": f"@test/{made.name}"}}, **more)
    project.reload()


@whole("AT-REG-19")
def test_a_plugins_tools_come_with_its_greeting_and_go_with_it(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    on = {"NAME.die": [{"exit": 3}], "NAME.recall": [{"result": {"text": "kept"}}]}
    made = plugin(tools=[tool("recall"), tool("die")])
    made.write(
        {"on": {key.replace("NAME", made.name): value for key, value in on.items()}},
        **made.manifest,
    )
    recall = f"{made.name}.recall"
    declare(project, made)
    assert project.fail(recall)["code"] == "tool_not_found"
    made.install()
    assert project.fail(recall)["code"] == "tool_not_found"
    project.daemon.post(f"/plugins/{made.name}/enable")
    assert project.call(recall) == {"text": "kept"}
    [told] = [one for one in tools_of(project) if one["name"] == recall]
    assert (told["source"], told["plugin_name"], told["namespace"]) == (
        "plugin",
        made.name,
        made.name,
    )
    for _ in range(2):  # the more often it dies, the longer until it is started again
        wait_for(lambda: made.state()["state"] == "running")
        pid = made.state()["pid"]
        refused = project.fail(f"{made.name}.die")
        assert (refused["code"], refused["data"]["number"]) == ("plugin_unavailable", -32000)
        # Its pipe is closed first, and until its process has ended it counts as running.
        wait_for(lambda: made.state()["pid"] != pid, "the end of its process")  # noqa: B023 - called here
    assert project.fail(recall)["code"] == "plugin_unavailable"
    assert made.state()["state"] == "crashed"
    assert recall in names_of(project)
    wait_for(lambda: made.state()["state"] == "running")
    assert project.call(recall) == {"text": "kept"}
    project.daemon.post(f"/plugins/{made.name}/disable")
    refused = project.fail(recall)
    assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)
    assert recall not in names_of(project)
    project.daemon.post(f"/plugins/{made.name}/enable")
    assert project.call(recall) == {"text": "kept"}


@whole("AT-REG-19")
def test_a_plugin_that_never_greets_brings_no_tool(
    daemon: Daemon, project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    made = plugin({"greet": "silent"}, tools=[tool("recall")])
    made.install()
    declare(project, made)
    starting = threading.Thread(
        target=lambda: daemon.client.post(f"/api/v1/plugins/{made.name}/enable")
    )
    starting.start()
    try:
        wait_for(lambda: made.state()["pid"])
        assert project.fail(f"{made.name}.recall")["code"] == "tool_not_found"
        assert f"{made.name}.recall" not in names_of(project)
    finally:
        daemon.post(f"/plugins/{made.name}/disable")
        starting.join()
    assert project.fail(f"{made.name}.recall")["code"] == "tool_not_found"


@whole("AT-REG-20", "AT-REG-18")
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "other.recall"},
        {"name": "memory-md.a.b"},
        {"name": "Recall"},
        {"name": "re-call"},
        {"name": "1st"},
        {"name": ""},
        {"requires": [{"kind": "seccomp", "profile": "relaxed"}]},
        {"requires": [{"kind": "magic"}]},
        {"principal_scope": "root-only"},
        {"parameters_schema": {"type": "string"}},
        {"description": None},
    ],
)
def test_a_plugin_with_a_wrong_tool_is_refused_and_others_are_not(
    project: Project, plugin: Callable[..., PluginFolder], wrong: dict[str, Any]
) -> None:
    said = {key: value for key, value in {**tool("recall"), **wrong}.items() if value is not None}
    made = plugin(tools=[tool("good"), said])
    refused = project.daemon.error("POST", "/plugins/preview", {"path": str(made.root)})
    assert refused["code"] == "config_invalid"
    [where, *_] = [one["key_path"] for one in refused["data"]["problems"]]
    assert where.startswith("tools[1]")
    declare(project, made)
    assert [one for one in names_of(project) if made.name in one] == []
    assert project.daemon.error("GET", f"/plugins/{made.name}")["status"] == 404


@whole("AT-REG-02", "AT-AMB-50")
def test_the_second_owner_of_a_name_does_not_get_it_and_the_first_keeps_it(
    daemon: Daemon, project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    ready(daemon, "taken")
    made = plugin(name="taken")
    made.write(
        {"on": {"taken.recall": [{"result": {}}], "taken.keep": [{"result": {"kept": 1}}]}},
        name="taken",
        tools=[tool("recall"), tool("keep")],
    )
    project.describe(
        tools={"taken.*": {"enabled": True}}, plugins={"it": {"package": "@test/taken"}}
    )
    project.reload()
    first = project.call("taken.recall")
    assert "called as recall" in json.dumps(first)
    [before] = [one for one in tools_of(project) if one["name"] == "taken.recall"]
    made.run()
    assert project.call("taken.keep") == {"kept": 1}
    assert [one for one in tools_of(project) if one["name"] == "taken.recall"] == [before]
    assert project.call("taken.recall") == first
    lines = [json.loads(one) for one in daemon.log().splitlines() if "taken.recall" in one]
    assert [one["event"] for one in lines if one["level"] == "warning"] == [
        "plugin.tool_not_registered"
    ]
    twice = plugin(tools=[tool("recall"), tool("recall")])
    refused = daemon.error("POST", "/plugins/preview", {"path": str(twice.root)})
    assert "recall" in json.dumps(refused)


@whole("AT-REG-21", "AT-AMB-25")
@pytest.mark.parametrize("name", RESERVED)
def test_nobody_else_owns_the_names_of_built_in_tools(
    daemon: Daemon, plugin: Callable[..., PluginFolder], name: str
) -> None:
    made = plugin(name=name)
    refused = daemon.error("POST", "/plugins/preview", {"path": str(made.root)})
    assert refused["code"] == "reserved_plugin_name"
    refused = daemon.error("POST", "/plugins", {"path": str(made.root), "digest": "0" * 64})
    assert refused["code"] == "reserved_plugin_name"
    warned = [line for line in daemon.log().splitlines() if "plugin.name_reserved" in line]
    assert [line for line in warned if f"'{name}'" in line and '"warning"' in line]
    [told] = [one for one in daemon.get("/mcp/servers")["servers"] if one["name"] == name]
    assert (told["state"], told["tools"], told["pid"]) == ("disabled", [], None)
    assert f"mcp.servers.{name}" in told["note"]


@whole("AT-DISP-15", "AT-CTX-01")
def test_a_plugin_learns_from_the_host_for_whom_it_works(
    daemon: Daemon, project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    made = plugin(tools=[tool("recall"), tool("strict", additionalProperties=False)])
    on = {f"{made.name}.recall": [{"echo": True}]}
    made.write({"on": on}, **made.manifest)
    made.run()
    declared = {"it": {"package": f"@test/{made.name}"}}
    declare(project, made, subagents={"coder": agent(plugins=declared)})
    forged = {"operator_id": "mallory", "agent_path": "primary", "project_id": "x"}
    for who in ("primary", path_of("coder")):
        body: dict[str, Any] = {"agent": who, "tool": f"{made.name}.recall", "params": {"q": 1}}
        answer = project.post("/tools/call", body)
        context = answer["result"]["_context"]
        assert set(context) >= {"operator_id", "project_id", "agent_path", "session_id"}
        assert context["agent_path"] == who
        assert context["project_id"] == project.id
        assert context["request_id"] == answer["request_id"]
        called = rows_of(project, "tool.called")[-1]["data"]
        assert called["session_id"] == context["session_id"]
        assert context["operator_id"] == daemon.get("/auth/whoami")["operator_id"]
        body["params"] = {"q": 1, "_context": forged}
        got = daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
        if got.is_success:
            assert got.json()["result"]["_context"]["agent_path"] == who
        assert "mallory" not in got.text
    refused = project.fail(f"{made.name}.strict", _context=forged)
    assert refused["code"] == "invalid_params"


@whole("AT-DISP-16", "AT-DISP-08")
def test_a_plugin_that_does_not_answer_or_answers_with_an_error_is_reported_so(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    made = plugin(tools=[tool("slow"), tool("busy"), tool("odd")])
    on = {
        f"{made.name}.slow": [{"hang": True}],
        f"{made.name}.busy": [{"error": [-32005, "come back later"]}],
        f"{made.name}.odd": [{"error": [-31999, "a rule of mine"]}],
    }
    made.write({"on": on}, **made.manifest)
    made.run()
    declare(project, made)
    for name, number, words in (
        ("busy", -32005, "come back later"),
        ("odd", -31999, "a rule of mine"),
    ):
        refused = project.fail(f"{made.name}.{name}")
        assert refused["data"]["number"] == number
        assert words in refused["message"]
    refused = project.fail(f"{made.name}.slow")
    assert refused["data"]["number"] == -32603
    assert refused["code"] == "plugin_timed_out"


@whole("AT-AMB-49")
def test_a_plugins_methods_are_no_tools(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    made = plugin({"on": {"a.b": [{"result": {"text": "a method"}}]}}, tools=[tool("recall")])
    made.run()
    declare(project, made)
    assert made.call("a.b") == {"text": "a method"}
    assert [one for one in names_of(project) if one.startswith(made.name)] == [
        f"{made.name}.recall"
    ]
    for name in ("a.b", f"{made.name}.a.b", f"{made.name}.b"):
        assert project.fail(name)["code"] == "tool_not_found"


def ready(daemon: Daemon, name: str) -> dict[str, Any]:
    """Wait until an outside server runs; returns what is told about it."""

    def look() -> dict[str, Any] | None:
        told = daemon.get(f"/mcp/servers/{name}")
        return told if told["state"] == "running" else None

    return wait_for(look, f"{name} runs") or {}


@whole("AT-AMB-50")
def test_an_outside_servers_tools_are_named_after_it_and_reached_by_their_own_names(
    daemon: Daemon, project: Project
) -> None:
    project.describe(tools={"web-kit.*": {"enabled": True}})
    project.reload()
    told = ready(daemon, "web-kit")
    found = {one["name"]: one for one in tools_of(project) if one["namespace"] == "web-kit"}
    assert sorted(found) == ["web-kit.a_b", "web-kit.getUser"]
    assert {(one["source"], one["plugin_name"]) for one in found.values()} == {
        ("plugin", "web-kit")
    }
    assert "called as getUser" in json.dumps(project.call("web-kit.getUser"))
    assert "called as a/b" in json.dumps(project.call("web-kit.a_b"))
    [late] = [one for one in told["tools"] if "a.b" in json.dumps(one)]
    assert "tool_name_collision" in json.dumps(late), told["tools"]
