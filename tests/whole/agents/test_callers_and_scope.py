"""Who calls: the context that the host makes, and what is the root's alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, names_of, path_of, rows_of
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

LINTER = path_of("builder", "linter")


def dotted(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a turn of a model that calls a tool by a name that it was not told."""
    return {"toolCalls": [{"name": tool, "arguments": json.dumps(arguments)}]}


@whole("AT-CTX-02", "AT-CTX-07", "AT-DISP-10")
def test_a_nested_agents_calls_carry_its_place_in_the_tree(
    project: Project, model: ModelServer
) -> None:
    linter = agent("file.read", cage=caged("ro:./src"))
    project.describe(
        cage="disabled",
        tools={"file.read": {"enabled": True}},
        subagents={"builder": agent(subagents={"linter": linter})},
    )
    project.reload()
    project.write("src/a.txt", "one\n")
    read = dotted("file.read", path="src/a.txt")
    model.play("oryx-root", read, call("agent-builder", message="oryx-builds"), say("Done."))
    model.play("oryx-builds", read, call("agent-linter", message="oryx-lints"), say("Built."))
    model.play("oryx-lints", read, call("file.read", path="data/a.txt"), say("Linted."))
    talk = Talk(project)
    run = talk.say("oryx-root")
    assert run["status"] == "completed"
    called = [one["data"] for one in rows_of(project, "tool.called")]
    assert [(one["caller"], one["tool_name"]) for one in called] == [
        ("primary", "file.read"),
        ("primary", "agent-builder"),
        (path_of("builder"), "file.read"),
        (path_of("builder"), "agent-linter"),
        (LINTER, "file.read"),
        (LINTER, "file.read"),
    ]
    ids = [one["request_id"] for one in called]
    assert len(set(ids)) == 6
    ends = {
        one["request_id"]: one["event"] for one in rows_of(project, "tool.completed", "tool.denied")
    }
    assert [ends[one] for one in ids] == ["tool.completed"] * 2 + ["tool.completed"] * 3 + [
        "tool.denied"
    ]
    kept = {one["request_id"]: one for one in talk.calls()}
    assert set(ids) == set(kept)
    assert kept[ids[2]]["error"]["code"] == "tool_not_found"
    assert kept[ids[2]]["error"]["detail"]["reason"] == "not_enabled"
    assert kept[ids[4]]["error"] is None
    assert kept[ids[5]]["error"]["code"] == "capability_denied"


@whole("AT-CTX-03", "AT-SCOPE-06")
@pytest.mark.parametrize(
    "who",
    [
        path_of("primary"),
        path_of("primary", "primary"),
        path_of("coder"),
        "Primary",
        "primary ",
        "primary.",
        "",
        "root",
    ],
)
def test_only_the_exact_primary_is_the_root(project: Project, who: str) -> None:
    project.describe(
        cage="disabled",
        subagents={
            "primary": agent(cage="disabled", subagents={"primary": agent(cage="disabled")}),
            "coder": agent(cage="disabled"),
        },
    )
    project.reload()
    create = {"action": "create", "title": "Mine", "body": "b"}
    body = {"agent": who, "tool": "kaged.issue", "params": create}
    refused = project.daemon.error("POST", f"/projects/{project.id}/tools/call", body)
    if who.startswith("primary.subagents"):
        assert (refused["code"], refused["data"]["number"]) == (
            "principal_scope_violation",
            -32001,
        )
        [row] = rows_of(project, "tool.denied")
        assert row["data"]["tool_name"] == "kaged.issue"
        assert "principal_scope" in json.dumps(row["data"])
        assert row["request_id"] == refused["request_id"]
    assert project.get("/issues")["items"] == []
    assert project.call("kaged.issue", **create)["number"] == 1


@whole("AT-CTX-04")
def test_a_project_behind_a_link_is_the_project_itself(daemon: Daemon, project: Project) -> None:
    project.write("src/a.txt", "one\n")
    link = project.root.with_name(project.root.name + "-link")
    link.symlink_to(project.root)
    loaded = daemon.post("/projects", {"root": str(link), "trust": True})
    assert loaded["id"] == project.id
    assert loaded["root"] == str(project.root)
    for path in ("src/a.txt", "./src/a.txt", str(project.root / "src/a.txt")):
        assert project.call("file.read", path=path)["path"] == "./src/a.txt"
    assert project.fail("file.read", path="../x")["code"] == "invalid_params"


@whole("AT-CTX-08")
@pytest.mark.parametrize(
    "key", ["caller", "cage_policy", "session_id", "run_id", "project_id", "project_root"]
)
def test_nothing_in_the_parameters_changes_who_calls(project: Project, key: str) -> None:
    project.write("data/a.txt", "one\n")
    project.describe(subagents={"coder": agent("file.read", cage=caged("ro:./src"))})
    project.reload()
    forged = {"caller": "primary", "cage_policy": None, "project_root": "/"}
    refused = project.fail(
        "file.read", path_of("coder"), path="data/a.txt", **{key: forged.get(key, "x")}
    )
    assert refused["code"] == "invalid_params"
    assert [one["field"] for one in refused["data"]["detail"]["fields"]] == [key]
    refused = project.fail("kaged.issue", path_of("coder"), action="list", **{key: "primary"})
    assert refused["code"] == "principal_scope_violation"


@whole("AT-CTX-09")
def test_a_cage_holds_what_its_block_says_and_defaults_for_the_rest(project: Project) -> None:
    full: dict[str, Any] = {
        "fs": [{"mode": "ro", "path": "./src"}, {"mode": "rw", "path": "./out"}],
        "net": {"allow": ["example.org:443", "intern:*"]},
        "seccomp": "relaxed",
        "capabilities": ["shell", "exec"],
        "state": "persistent",
        "env": {"A": "1", "B": "2"},
        "limits": {"memory_mb": 300, "cpu_shares": 7, "pids": 40, "walltime_sec": 90},
    }
    project.describe(subagents={"full": agent(cage=full), "bare": agent(cage={"fs": []})})
    project.reload()
    cages = {one["path"]: one["cage"]["value"] for one in project.get("")["tree"]["agents"]}
    told = cages[path_of("full")]
    root = str(project.root)
    assert [one for one in told["fs"] if ".kaged" not in one["path"]] == [
        {"mode": "ro", "path": f"{root}/src"},
        {"mode": "rw", "path": f"{root}/out"},
    ]
    assert told["net"] == full["net"]["allow"]
    assert sorted(told["capabilities"]) == ["exec", "shell"]
    for key in ("seccomp", "state", "limits"):
        assert told[key] == full[key], key
    assert sorted(told["env"]) == ["A", "B"]
    bare = cages[path_of("bare")]
    assert (bare["seccomp"], bare["state"], bare["net"], bare["capabilities"]) == (
        "default",
        "ephemeral",
        [],
        [],
    )
    for wrong in (
        {"seccomp": "off"},
        {"state": "kept"},
        {"fs": [{"mode": "x", "path": "."}]},
        {"capabilities": "shell"},
        {"cpu": 1},
    ):
        project.describe(subagents={"full": agent(cage=wrong)})
        refused = project.daemon.error("POST", f"/projects/{project.id}/reload")
        assert refused["code"] == "config_invalid", wrong


@whole("AT-CTX-10")
def test_no_tool_but_a_shell_tells_a_caged_agent_where_its_project_lies(
    project: Project, model: ModelServer
) -> None:
    project.write("src/a.py", "import nothing_there\none = 1\n")
    cage = caged("rw:./src", capabilities=["shell", "exec"])
    project.describe(cage=cage, system_prompt="You help.")
    project.reload()
    script = {"action": "launch", "runtime": "python", "script": "src/a.py"}
    turns = [
        call("file.read", path="src/a.py"),
        call("file.read", path="src"),
        call("file.read", path="data/x"),
        call("file.read", path="../x"),
        call("file.read", path="src/none"),
        call("file.create", path="src/b.py", content="two = 2\n"),
        call("file.create", path="src/b.py", content="two = 2\n"),
        call("edit.text", path="src/b.py", old_string="x", new_string="y"),
        call("edit.ast", path="src", rewrites={"one": "two"}, lang="python"),
        call("search.grep", pattern="one", output_mode="content"),
        call("search.grep", pattern="("),
        call("search.grep", pattern="one", path="/etc"),
        call("search.glob", pattern="*.py"),
        call("search.ast", pattern="$A = $B", lang="python"),
        call("shell.bash", command="ls; cat none", cwd="src"),
        call("shell.bash", command="ls", cwd="../../"),
        call("code.lsp", action="status"),
        call("code.lsp", action="diagnostics", path="src/a.py"),
        call("debug", **script),
        call("debug", action="disconnect"),
        say("Done."),
    ]
    model.play("quagga-looks", *turns)
    talk = Talk(project)
    assert talk.say("quagga-looks")["status"] == "completed"
    assert len(talk.calls()) == len(turns) - 1
    told = json.dumps(model.asked("quagga-looks"))
    assert "./src/a.py" in told
    assert str(project.root) not in told
    assert str(project.root.parent) not in told


@whole("AT-SCOPE-03", "AT-SCOPE-04", "AT-SCOPE-07", "AT-FAIL-15", "AT-AUD-27")
@pytest.mark.parametrize(
    ("tool", "params"),
    [
        ("kaged.issue", {"action": "list"}),
        ("kaged.issue.create", {"title": "Mine", "body": "b"}),
        ("kaged.issue.list", {}),
        ("kaged.issue.get", {"number": 1}),
        ("kaged.issue.comment", {"number": 1, "body": "b"}),
        ("kaged.issue.transition", {"number": 1, "to": "triaged"}),
        ("kaged.todo", {"action": "view"}),
        ("kaged.ask", {"questions": []}),
        ("kaged.form", {"fields": []}),
        ("kaged.workflow.trigger", {"name": "nightly", "inputs": {}}),
        ("kaged.workflow.list", {}),
        ("kaged.workflow.status", {"run_id": "x"}),
    ],
)
def test_what_is_the_roots_is_refused_to_others_by_every_name(
    project: Project, tool: str, params: dict[str, Any]
) -> None:
    project.post("/issues", {"title": "First", "body": "b"})
    project.describe(
        subagents={"coder": agent("file.read", cage="disabled")},
        top={"workflows": {"nightly": {"description": "Nothing."}}},
    )
    project.reload()
    before = project.get("/issues/1")
    refused = project.fail(tool, path_of("coder"), **params)
    assert (refused["code"], refused["data"]["number"]) == ("principal_scope_violation", -32001)
    assert project.get("/issues/1") == before
    assert len(project.get("/issues")["items"]) == 1
    assert project.get("/runs")["items"] == []
    assert project.get("/interactions")["items"] == []
    rows = rows_of(project, "tool.called", "tool.denied")
    assert [one["event"] for one in rows] == ["tool.called", "tool.denied"]
    names = ("kaged.issue", tool) if tool.startswith("kaged.issue.") else (tool, None)
    for row in rows:
        assert (row["data"]["tool_name"], row["data"].get("alias")) == names, row["event"]
    assert len(project.call("kaged.issue", action="list")["issues"]) == 1


@whole("AT-SCOPE-08", "AT-RES-20", "AT-AMB-05")
def test_a_subagent_changes_the_roots_records_only_by_what_it_returns(
    project: Project, model: ModelServer
) -> None:
    project.describe(
        cage="disabled",
        subagents={"coder": agent("kaged.checkpoint", cage="disabled")},
        top={"workflows": {"nightly": {"description": "lemur-nightly"}}},
    )
    project.reload()
    assert names_of(project, path_of("coder")) == ["kaged.checkpoint"]
    model.play("lemur-root", call("agent-coder", message="lemur-codes"), say("Done."))
    model.play(
        "lemur-codes",
        dotted("kaged.issue", action="create", title="Mine", body="b"),
        dotted("kaged.todo", action="add", items=["mine"]),
        dotted("kaged.workflow.trigger", name="nightly", inputs={}),
        say("I would file an issue."),
    )
    talk = Talk(project)
    assert talk.say("lemur-root")["status"] == "completed"
    codes = [one["error"]["code"] for one in talk.calls() if one["error"]]
    assert codes == ["principal_scope_violation"] * 3
    assert project.get("/issues")["items"] == []
    assert project.get("/runs")["items"] == []
    heard = json.dumps(model.asked("lemur-root")[-1]["messages"])
    assert "I would file an issue." in heard
    model.play("lemur-again", call("agent-coder", message="lemur-pauses"), say("Done."))
    model.play("lemur-pauses", call("kaged.checkpoint", message="Look here"), say("Looked."))
    talk.begin("lemur-again")
    [asked] = wait_for(lambda: project.get("/interactions?status=pending")["items"])
    assert "Look here" in json.dumps(asked)
    answer = {"decision": "approve", "text": ""}
    project.post(f"/interactions/{asked['request_id']}/answer", answer)
    wait_for(lambda: [one for one in model.asked("lemur-again") if "Looked." in str(one)])
    kept = [one for one in talk.calls() if one["tool_name"] == "kaged.checkpoint"]
    assert [one["error"] for one in kept] == [None]
