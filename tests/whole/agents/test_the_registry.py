"""The tools that a daemon has by itself, read as an operator and a model see them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from requirements.marker import whole
from whole.harness.agents import OFF, Talk, agent, caged, names_of, path_of, rows_of, tools_of
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

BUILT_IN = {
    "file": ["file.create", "file.read", "file.write"],
    "edit": ["edit.ast", "edit.text"],
    "search": ["search.ast", "search.glob", "search.grep"],
    "code": ["code.lsp"],
    "debug": ["debug"],
    "shell": ["shell.bash", "shell.jobs"],
    "web": ["web.fetch"],
    "kaged": [
        "kaged.ask",
        "kaged.checkpoint",
        "kaged.form",
        "kaged.issue",
        "kaged.todo",
        "kaged.upload",
        "kaged.workflow.list",
        "kaged.workflow.status",
        "kaged.workflow.trigger",
    ],
}
BEYOND = ("kaged.upload", "shell.jobs", "web.fetch")
"""What the specification does not have."""

ALL = sorted(name for names in BUILT_IN.values() for name in names)
LSP = [
    "diagnostics",
    "definition",
    "references",
    "symbols",
    "rename",
    "rename_file",
    "code_actions",
    "hover",
    "type_definition",
    "implementation",
    "status",
    "reload",
    "capabilities",
    "request",
]
LSP_EXTRAS = ["call_hierarchy", "format", "semantic_tokens"]  # AT-BEY-21
DEBUG = [
    "launch",
    "attach",
    "set_breakpoint",
    "remove_breakpoint",
    "list_breakpoints",
    "set_instruction_breakpoint",
    "remove_instruction_breakpoint",
    "data_breakpoint_info",
    "set_data_breakpoint",
    "remove_data_breakpoint",
    "step_into",
    "step_over",
    "step_out",
    "continue",
    "pause",
    "stack_trace",
    "threads",
    "scopes",
    "variables",
    "evaluate",
    "disassemble",
    "read_memory",
    "write_memory",
    "modules",
    "loaded_sources",
    "custom_request",
    "disconnect",
]
FOR_ALL = {"kaged.checkpoint", "kaged.upload"}
ROOT_ONLY = [name for name in BUILT_IN["kaged"] if name not in FOR_ALL]


def actions(project: Project, tool: str) -> list[str]:
    """Return the actions that a tool's schema names."""
    [found] = [one for one in tools_of(project) if one["name"] == tool]
    return list(found["parameters"]["properties"]["action"]["enum"])


@whole("AT-REG-08", "AT-AMB-44", "AT-AMB-06")
def test_a_daemon_without_plugins_has_nineteen_tools_and_keeps_them(
    daemon: Daemon, project: Project
) -> None:
    assert len(ALL) - len(BEYOND) == 19
    assert names_of(project) == ALL
    project.describe(tools={"*": True})
    daemon.error("POST", f"/projects/{project.id}/reload")
    project.describe()
    project.reload()
    assert names_of(project) == ALL


@whole(
    "AT-REG-03",
    "AT-REG-09",
    "AT-REG-10",
    "AT-REG-11",
    "AT-REG-14",
)
@pytest.mark.parametrize("namespace", BUILT_IN)
def test_each_namespace_holds_its_tools_and_no_other(project: Project, namespace: str) -> None:
    told = tools_of(project)
    assert {one["namespace"] for one in told} == set(BUILT_IN)
    found = [one for one in told if one["namespace"] == namespace]
    assert [one["name"] for one in found] == BUILT_IN[namespace]
    assert {(one["source"], one["plugin_name"]) for one in found} == {("builtin", None)}


@whole("AT-REG-12", "AT-REG-13", "AT-AMB-15")
def test_the_code_and_debug_tools_name_exactly_their_actions(project: Project) -> None:
    assert sorted(actions(project, "code.lsp")) == sorted(LSP + LSP_EXTRAS)
    assert len(LSP) == 14
    assert sorted(actions(project, "debug")) == sorted(DEBUG)
    assert len(DEBUG) == 27


@whole("AT-REG-15", "AT-REG-16", "AT-SCOPE-01", "AT-AMB-05")
def test_kaged_tools_need_nothing_of_a_cage_and_all_but_one_are_the_roots(project: Project) -> None:
    told = {one["name"]: one for one in tools_of(project)}
    assert {name: told[name]["requires"] for name in BUILT_IN["kaged"]} == {
        key: [] for key in BUILT_IN["kaged"]
    }
    scopes = {name: one["principal_scope"] for name, one in told.items()}
    assert scopes == {name: "root-only" if name in ROOT_ONLY else None for name in ALL}
    issue = ["list", "get", "create", "comment", "transition"]
    assert sorted(actions(project, "kaged.issue")) == sorted(issue)
    todo = ["view", "set", "add", "start", "done", "drop", "note"]
    assert sorted(actions(project, "kaged.todo")) == sorted(todo)


FS = {
    "ro": {"kind": "fs", "mode": "ro", "path": "caller"},
    "rw": {"kind": "fs", "mode": "rw", "path": "caller"},
}
EXEC = {"kind": "capability", "name": "exec"}
SHELL = {"kind": "capability", "name": "shell"}
NEEDS = {
    "file.read": [FS["ro"]],
    "search.ast": [FS["ro"]],
    "search.glob": [FS["ro"]],
    "search.grep": [FS["ro"]],
    "file.write": [FS["rw"]],
    "file.create": [FS["rw"]],
    "edit.text": [FS["rw"]],
    "debug": [FS["ro"], EXEC],
    "shell.bash": [FS["rw"], SHELL],
}


@whole("AT-REG-17", "AT-AMB-07")
def test_each_tool_says_what_it_needs_and_two_need_more_for_some_calls(project: Project) -> None:
    told = {one["name"]: one["requires"] for one in tools_of(project)}
    assert {name: told[name] for name in NEEDS} == NEEDS
    project.write("src/a.py", "print(1)\n")
    project.describe(
        subagents={"reader": agent("edit.*", "code.*", cage=caged("ro:./src"))},
    )
    project.reload()
    change = {"path": "./src", "rewrites": {"print($A)": "log($A)"}, "lang": "python"}
    rename = {"action": "rename_file", "path": "./src/a.py", "new_path": "./src/b.py"}

    def allowed(tool: str, **params: object) -> bool:
        body = {"agent": path_of("reader"), "tool": tool, "params": params}
        return bool(project.post("/tools/explain", body)["allowed"])

    assert allowed("edit.ast", **change)
    assert allowed("edit.ast", **change, dry_run=True)
    assert not allowed("edit.ast", **change, dry_run=False)
    assert project.call("edit.ast", path_of("reader"), **change)["total_replacements"] == 1
    refused = project.fail("edit.ast", path_of("reader"), **change, dry_run=False)
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:./src")
    assert allowed("code.lsp", action="symbols", path="./src/a.py")
    refused = project.fail("code.lsp", path_of("reader"), **rename)
    assert refused["code"] == "rename_scope_exceeds_cage"
    assert project.read("src/a.py") == "print(1)\n"


@whole("AT-REG-06", "AT-CTX-08")
@pytest.mark.parametrize("tool", ALL)
def test_no_built_in_tool_takes_a_parameter_that_it_does_not_know(
    project: Project, tool: str
) -> None:
    [told] = [one for one in tools_of(project) if one["name"] == tool]
    schema = told["parameters"]
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    refused = project.fail(tool, path="a.txt", foo=1, caller="primary", cage_policy=None)
    assert (refused["code"], refused["data"]["number"]) == ("invalid_params", -32602)
    named = {one["field"] for one in refused["data"]["detail"]["fields"]}
    assert {"foo", "caller", "cage_policy"} <= named


@whole("AT-REG-25", "AT-AMB-01", "AT-RES-21")
def test_former_names_still_work_and_are_told_to_nobody(
    project: Project, model: ModelServer
) -> None:
    project.post("/issues", {"title": "First", "body": "b"})
    new = project.call("kaged.issue", action="get", number=1)
    assert project.call("kaged.issue.get", number=1) == new
    assert project.call("kaged.issue.list") == project.call("kaged.issue", action="list")
    assert project.call("kaged.issue.create", title="Second", body="b")["number"] == 2
    assert project.call("kaged.issue", action="get", number=2)["title"] == "Second"
    project.call("kaged.issue.comment", number=2, body="said")
    done = {"number": 2, "to": "resolved", "comment": "done"}
    project.call("kaged.issue.transition", **done)
    second = project.get("/issues/2")
    assert (second["status"], "said" in json.dumps(second)) == ("resolved", True)
    project.write("a.py", "print(1)\n")
    search = {"pattern": "print($A)", "lang": "python"}
    assert project.call("search.ast_grep", **search) == project.call("search.ast", **search)
    model.play("walrus-names", say("Nothing to do."))
    Talk(project).say("walrus-names")
    offered = [one["function"]["name"] for one in model.asked("walrus-names")[0]["tools"]]
    assert sorted(offered) == [name.replace(".", "_") for name in ALL]
    project.describe(tools={"kaged.issue.create": OFF})
    project.reload()
    [told] = [one for one in tools_of(project) if one["name"] == "kaged.issue"]
    assert "create" in told["off_actions"]
    refused = project.fail("kaged.issue", action="create", title="Third", body="b")
    assert (refused["code"], refused["data"]["detail"]["reason"]) == (
        "tool_not_found",
        "not_enabled",
    )
    assert project.fail("kaged.issue.create", title="T", body="b")["code"] == "tool_not_found"
    assert len(project.get("/issues")["items"]) == 1
    assert project.call("kaged.issue", action="list")["issues"]
    model.play("walrus-later", say("Nothing to do."))
    Talk(project).say("walrus-later")
    [shown] = [
        one["function"]["parameters"]["properties"]["action"]["enum"]
        for one in model.asked("walrus-later")[0]["tools"]
        if one["function"]["name"] == "kaged_issue"
    ]
    assert sorted(shown) == ["comment", "get", "list", "transition"]


@whole("AT-REG-26", "AT-AMB-02")
@pytest.mark.parametrize(
    "name", ["eval", "exec", "python.eval", "kaged.eval", "kaged.issue.update", "kaged.issues"]
)
def test_there_is_no_tool_that_runs_code_in_the_daemon_or_edits_issues(
    project: Project, name: str
) -> None:
    project.post("/issues", {"title": "First", "body": "b"})
    refused = project.fail(name, number=1, title="Changed", code="1")
    assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)
    refused = project.fail("kaged.issue", action="update", number=1, title="Changed")
    assert refused["code"] == "invalid_params"
    assert project.get("/issues/1")["title"] == "First"


@whole("AT-REG-23", "AT-REG-24", "AT-RES-23")
def test_a_model_is_told_of_its_own_agents_tools_and_of_no_others(
    project: Project, model: ModelServer
) -> None:
    linter = agent("search.*")
    project.describe(
        subagents={
            "coder": agent(
                "file.read", "code.lsp", "edit.*", cage=caged("ro:."), subagents={"linter": linter}
            ),
            "idler": agent(),
        },
        tools={},
    )
    project.reload()
    model.play("gannet-works", call("agent-coder", message="gannet-codes"), say("Done."))
    model.play("gannet-codes", say("Coded."))
    Talk(project).say("gannet-works")
    own = ["agent-linter", "code.lsp", "edit.ast", "edit.text", "file.read"]
    assert names_of(project, path_of("coder")) == own
    assert names_of(project, path_of("idler")) == []
    assert project.fail("file.read", path_of("idler"), path="a")["code"] == "tool_not_found"
    by_primary = [one for one in model.asked("gannet-codes") if "gannet-works" in json.dumps(one)]
    assert by_primary, "the primary's own requests show its call"
    coder = [one for one in model.asked("gannet-codes") if one not in by_primary]
    told = [one["function"] for one in coder[0]["tools"]]
    assert sorted(one["name"] for one in told) == [one.replace(".", "_") for one in own]
    known = {one["name"].replace(".", "_"): one for one in tools_of(project, path_of("coder"))}
    for one in told:
        assert one["description"] == known[one["name"]]["description"]
        assert set(one["parameters"]["properties"]) == set(
            known[one["name"]]["parameters"]["properties"]
        )


@whole("AT-REG-32")
def test_a_vendor_without_dots_in_names_gets_others_and_calls_the_same_tools(
    project: Project, model: ModelServer
) -> None:
    project.write("kept.txt", "one\n")
    model.play("heron-calls", call("file.read", path="kept.txt"), say("Read."))
    talk = Talk(project)
    talk.say("heron-calls")
    asked = model.asked("heron-calls")
    names = [one["function"]["name"] for one in asked[0]["tools"]]
    assert len(set(names)) == len(names) == 19 + len(BEYOND)
    assert not [name for name in names if "." in name]
    assert "1: one" in str(asked[1]["messages"][-1]["content"])
    [row] = talk.calls()
    assert row["tool_name"] == "file.read"
    for event in ("tool.called", "tool.completed"):
        [row] = rows_of(project, event)
        assert row["data"]["tool_name"] == "file.read"


@whole("AT-REG-29")
def test_tools_need_neither_a_home_nor_a_login_shell(own: Callable[..., Daemon]) -> None:
    daemon = own()
    for name in ("HOME", "SHELL", "USER", "LOGNAME"):
        daemon.env.pop(name, None)
    daemon.start()
    project = daemon.load(Project(daemon.home.parent / "p", cage="disabled"))
    assert project.call("file.create", path="src/a.py", content="print(1)\n")
    assert project.call("file.read", path="src/a.py")["content"] == "1: print(1)"
    assert project.call("file.write", path="src/a.py", content="print(2)\n")
    edit = {"path": "src/a.py", "old_string": "2", "new_string": "3"}
    assert project.call("edit.text", **edit)["replacements"] == 1
    assert project.call("search.grep", pattern="print")["total_matches"] == 1
    assert project.call("search.glob", pattern="*.py")["files"] == ["./src/a.py"]
    found = project.call("search.ast", pattern="print($A)", lang="python")
    assert [one["file"] for one in found["matches"]] == ["./src/a.py"]
    said = project.call("shell.bash", command='echo "home:$HOME:"; cat src/a.py')
    assert said["stdout"].splitlines()[-1] == "print(3)"
    assert project.read("src/a.py") == "print(3)\n"


@whole("AT-PERM-25", "AT-SCOPE-05")
@pytest.mark.parametrize("cage", ["disabled", caged("rw:."), caged()])
def test_the_roots_tools_are_refused_to_others_whatever_their_cage(
    project: Project, cage: object
) -> None:
    project.describe(cage=cage, subagents={"coder": agent("kaged.checkpoint", cage=cage)})
    project.reload()
    assert names_of(project, path_of("coder")) == ["kaged.checkpoint"]
    for name in ROOT_ONLY:
        refused = project.fail(name, path_of("coder"), action="list")
        assert (refused["code"], refused["data"]["number"]) == (
            "principal_scope_violation",
            -32001,
        ), name
    assert {one["data"]["tool_name"] for one in rows_of(project, "tool.denied")} == set(ROOT_ONLY)
    assert project.call("kaged.issue", action="list")["issues"] == []
    assert project.call("kaged.workflow.list")["workflows"] == []
