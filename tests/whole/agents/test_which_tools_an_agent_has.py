"""Which tools an agent has: defaults of its role, its own map, and what no map can give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import OFF, ON, Talk, agent, caged, names_of, path_of
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

DEFAULTS = [
    "kaged.ask",
    "kaged.checkpoint",
    "kaged.form",
    "kaged.issue",
    "kaged.todo",
    "kaged.workflow.list",
    "kaged.workflow.status",
    "kaged.workflow.trigger",
]
WORKFLOWS = DEFAULTS[5:]
FILES = ["file.create", "file.read", "file.write"]
SEARCH = ["search.ast", "search.glob", "search.grep"]
OPT_IN = ["edit.text", "edit.ast", *FILES, *SEARCH, "code.lsp", "debug", "shell.bash", "shell.jobs"]
TOOL = {
    "description": "Remembers.",
    "parameters_schema": {"type": "object", "properties": {}, "additionalProperties": False},
}


def described(project: Project, **primary: Any) -> Project:
    """Write the project file with these keys of the primary and let the daemon read it."""
    project.describe(**primary)
    project.reload()
    return project


def problems(daemon: Daemon, project: Project, **primary: Any) -> list[dict[str, Any]]:
    """Write a project file that has to be refused; returns what is wrong with it."""
    before = names_of(project)
    project.describe(**primary)
    refused = daemon.error("POST", f"/projects/{project.id}/reload")
    assert refused["code"] == "config_invalid", refused
    assert names_of(project) == before
    return list(refused["data"]["problems"])


@whole("AT-RES-01")
def test_there_are_no_tools_of_a_whole_project(daemon: Daemon, project: Project) -> None:
    [found] = problems(daemon, project, top={"tools": {"file.*": ON}})
    assert found["key_path"] == "tools"


@whole("AT-RES-04", "AT-RES-18", "AT-RES-19", "AT-AMB-30")
def test_the_root_has_its_own_tools_by_default_and_no_others(project: Project) -> None:
    described(project, tools={})
    assert names_of(project) == DEFAULTS
    project.write("a.txt", "1\n")
    for name in OPT_IN:
        refused = project.fail(name, path="a.txt", action="status")
        assert (refused["code"], refused["data"]["detail"]["reason"]) == (
            "tool_not_found",
            "not_enabled",
        ), name
    described(project, tools={"edit.*": ON})
    assert names_of(project) == ["edit.ast", "edit.text", *DEFAULTS]
    for name in OPT_IN:
        assert name in names_of(described(project, tools={name: ON}))
    for name in ("kaged.todo", "kaged.ask", "kaged.form", "kaged.checkpoint"):
        described(project, tools={name: OFF})
        assert names_of(project) == [one for one in DEFAULTS if one != name]
        assert project.fail(name, action="view")["code"] == "tool_not_found"


@whole("AT-RES-05", "AT-RES-13", "AT-REG-23", "AT-AMB-43")
def test_other_agents_start_with_nothing_and_inherit_nothing_at_any_depth(
    project: Project,
) -> None:
    project.write("a.txt", "1\n")
    deep = agent("search.*", subagents={"grand": agent()}, cage=caged("ro:."))
    described(project, subagents={"child": agent(), "parent": deep})
    assert names_of(project, path_of("child")) == []
    assert names_of(project, path_of("parent")) == ["agent-grand", *SEARCH]
    assert names_of(project, path_of("parent", "grand")) == []
    assert project.call("search.grep", path_of("parent"), pattern="^1$")["total_matches"] == 1
    for who in (path_of("child"), path_of("parent", "grand")):
        for name in ("file.read", "search.grep"):
            refused = project.fail(name, who, path="a.txt", pattern="1")
            assert refused["code"] == "tool_not_found"
            assert refused["data"]["detail"]["reason"] == "not_enabled"
    described(project, subagents={"child": agent("file.read")})
    refused = project.fail("file.read", path_of("child"), path="a.txt")
    assert refused["code"] == "capability_denied"


@whole("AT-RES-06")
@pytest.mark.parametrize(
    "value",
    [True, False, None, "on", {"enabled": "yes"}, {"enabled": 1}, {}, {**ON, "why": "x"}, [True]],
)
def test_a_key_of_the_map_is_on_or_off_and_nothing_else(
    daemon: Daemon, project: Project, value: object
) -> None:
    [found, *_] = problems(daemon, project, tools={"file.*": value})
    assert found["key_path"].startswith('primary.tools."file.*"'), found
    assert found["line"]


@whole("AT-RES-07")
def test_a_star_stands_for_dots_too_and_for_nothing_of_another_namespace(
    project: Project,
) -> None:
    wanted = {
        "file.*": FILES,
        "kaged.c*": ["kaged.checkpoint"],
        "*.glob": ["search.glob"],
        "s*": [*SEARCH, "shell.bash", "shell.jobs"],
        "file": [],
        "d*": ["debug"],
    }
    described(
        project,
        tools={"kaged.workflow.*": OFF, "*.form": OFF},
        subagents={f"a{n}": agent(glob) for n, glob in enumerate(wanted)},
    )
    got = {glob: names_of(project, path_of(f"a{n}")) for n, glob in enumerate(wanted)}
    assert got == wanted
    assert [one for one in names_of(project) if not one.startswith("agent-")] == [
        "kaged.ask",
        "kaged.checkpoint",
        "kaged.issue",
        "kaged.todo",
    ]


@whole("AT-RES-08", "AT-RES-10", "AT-AMB-31")
def test_a_default_can_be_taken_away_by_the_names_of_its_former_children(project: Project) -> None:
    described(
        project,
        tools={"kaged.issue.*": OFF},
        subagents={"coder": agent("lsp.*", cage=caged("ro:."))},
    )
    left = [one for one in DEFAULTS if one != "kaged.issue"]
    assert names_of(project) == ["agent-coder", *left]
    for name in ("kaged.issue", "kaged.issue.list"):
        refused = project.fail(name, action="list")
        assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)
    assert project.call("kaged.workflow.list")["workflows"] == []
    assert names_of(project, path_of("coder")) == ["code.lsp"]
    assert project.call("code.lsp", path_of("coder"), action="status")["servers"] is not None


@whole("AT-RES-09", "AT-AMB-32")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([("file.*", ON), ("file.write", OFF)], ["file.create", "file.read"]),
        ([("file.write", OFF), ("file.*", ON)], ["file.create", "file.read"]),
        ([("*", OFF), ("file.read", ON)], ["file.read"]),
        ([("file.read", ON), ("*", OFF)], ["file.read"]),
        ([("file.*", ON), ("f*", OFF)], FILES),
        ([("f*", OFF), ("file.*", ON)], FILES),
        ([("file.*e", OFF), ("file.*d", ON)], ["file.read"]),
        ([("file.*e", ON), ("file.*te", OFF)], []),
        ([("file.*te", OFF), ("file.*e", ON)], ["file.create", "file.write"]),
    ],
)
def test_the_most_specific_key_wins_and_then_the_later_one(
    project: Project, keys: list[tuple[str, dict[str, bool]]], expected: list[str]
) -> None:
    described(project, subagents={"coder": agent(tools=dict(keys))})
    assert names_of(project, path_of("coder")) == expected


@whole("AT-RES-11", "AT-SCOPE-02", "AT-AMB-33")
@pytest.mark.parametrize(
    "key",
    [
        *(one for one in DEFAULTS if one != "kaged.checkpoint"),
        "kaged.issue.create",
        "kaged.*",
        "*",
        "kaged.issue.*",
        "kaged.workflow.*",
        "kaged.i*",
    ],
)
def test_a_project_that_gives_the_roots_tools_to_another_agent_is_not_loaded(
    daemon: Daemon, project: Project, key: str
) -> None:
    [found, *_] = problems(
        daemon, project, subagents={"a": agent(subagents={"scribe": agent(key)})}
    )
    said = found["key_path"] + " " + found["message"]
    assert "primary.subagents.a.subagents.scribe" in said, found
    assert key in said, found
    off = agent(tools={key: OFF})
    described(project, subagents={"scribe": off})
    assert names_of(project, path_of("scribe")) == []


@whole("AT-RES-12")
def test_an_enabled_tool_is_still_held_to_the_cage(project: Project) -> None:
    described(project, subagents={"coder": agent("file.*", cage=caged("rw:./src"))})
    coder = path_of("coder")
    assert project.call("file.write", coder, path="src/a", content="x")
    refused = project.fail("file.write", coder, path="./data/a", content="x")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:./data/a")
    assert project.read("src/a") == "x"
    assert not (project.root / "data").exists()


@whole("AT-RES-14", "AT-RES-15")
def test_every_parent_can_call_its_own_children_and_no_map_changes_that(
    daemon: Daemon, project: Project
) -> None:
    coder = agent("file.read", subagents={"linter": agent()})
    subagents = {"coder": coder, "scraper": agent()}
    described(project, tools={"*": OFF}, subagents=subagents)
    assert names_of(project) == ["agent-coder", "agent-scraper"]
    assert names_of(project, path_of("coder")) == ["agent-linter", "file.read"]
    assert names_of(project, path_of("scraper")) == []
    for who in (path_of("coder"), path_of("scraper"), path_of("coder", "linter")):
        assert project.fail("agent-coder", who, message="hi")["code"] == "tool_not_found"
    assert project.fail("agent-linter", message="hi")["code"] == "tool_not_found"
    for key in ("agent-coder", "agent-nobody"):
        for value in (ON, OFF):
            [found] = problems(daemon, project, tools={key: value}, subagents=subagents)
            assert key in found["key_path"]
            assert "subagents" in found["message"] + found["fix"], found


@whole("AT-RES-16", "AT-REG-24")
def test_a_plugins_tools_are_on_where_it_is_declared_and_can_be_switched_off_singly(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    made = plugin(tools=[{"name": "recall", **TOOL}, {"name": "retain", **TOOL}])
    made.run()
    recall, retain = f"{made.name}.recall", f"{made.name}.retain"
    declared = {"memory": {"package": f"@test/{made.name}"}}
    described(
        project,
        tools={"*": OFF},
        plugins=declared,
        subagents={
            "one": agent(plugins=declared),
            "two": agent(plugins=declared, tools={recall: OFF}),
            "none": agent(),
        },
    )
    assert names_of(project, path_of("one")) == [recall, retain]
    assert names_of(project, path_of("two")) == [retain]
    assert names_of(project, path_of("none")) == []
    refused = project.fail(recall, path_of("two"))
    assert refused["data"]["detail"]["reason"] == "not_enabled"


@whole("AT-RES-17")
def test_the_documented_sample_gives_each_agent_what_it_says(project: Project) -> None:
    coder = agent("file.*", "search.*", "lsp.*", cage=caged("rw:./src"))
    described(project, tools={}, cage="disabled", subagents={"coder": coder})
    assert names_of(project) == ["agent-coder", *DEFAULTS]
    assert names_of(project, path_of("coder")) == ["code.lsp", *FILES, *SEARCH]


@whole("AT-RES-22")
def test_a_key_that_fits_no_tool_is_a_warning_and_the_project_loads(
    daemon: Daemon, project: Project
) -> None:
    described(project, tools={"flie.*": ON})
    [warning] = project.get("/tools")["warnings"]
    assert warning["pattern"] == "flie.*"
    assert "flie.*" in warning["message"]
    assert names_of(project) == DEFAULTS
    shown = daemon.cli("tool", "list", cwd=project.root)
    assert "flie.*" in shown.out + shown.err
    assert [line for line in daemon.log().splitlines() if "flie.*" in line and "warning" in line]


@whole("AT-RES-02", "AT-DISP-10")
def test_a_session_keeps_the_tools_that_it_began_with(project: Project, model: ModelServer) -> None:
    described(project, tools={"file.read": ON})
    project.write("a.txt", "one\n")
    model.play("tapir-first", call("file.read", path="a.txt"), say("Read."))
    model.play("tapir-second", call("file.read", path="a.txt"), say("Read."))
    model.play("tapir-third", call("file.read", path="a.txt"), say("Read."))
    talk = Talk(project)
    talk.say("tapir-first")
    described(project, tools={"search.grep": ON})
    talk.say("tapir-second")
    assert [one["tool_name"] for one in talk.calls()] == ["file.read", "file.read"]
    assert [one["error"] for one in talk.calls()] == [None, None]
    offered = [one["function"]["name"] for one in model.asked("tapir-second")[-1]["tools"]]
    assert "file_read" in offered
    assert "search_grep" not in offered
    later = Talk(project)
    later.say("tapir-third")
    offered = [one["function"]["name"] for one in model.asked("tapir-third")[-1]["tools"]]
    assert "file_read" not in offered
    assert "search_grep" in offered
    [row] = later.calls()
    assert row["error"]["code"] == "tool_not_found"
