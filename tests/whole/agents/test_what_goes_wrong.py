"""The failures that tools know: each with its code and what helps, and none ends a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, path_of
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

WORKFLOWS = {
    "report": {
        "description": "Writes a report.",
        "inputs": {
            "title": {"type": "string", "required": True},
            "pages": {"type": "integer"},
        },
    },
    "scan": {
        "description": "Scans a file.",
        "inputs": {"sheet": {"type": "file", "required": True}},
    },
}


@pytest.fixture
def stocked(project: Project) -> Project:
    """Return a project with files, workflows and two issues, one of them resolved."""
    project.write("a.py", "one = 1\none = 1\n")
    project.write("b.py", "two = 2\n")
    project.describe(cage="disabled", top={"workflows": WORKFLOWS})
    project.reload()
    for title in ("First", "Second"):
        project.post("/issues", {"title": title, "body": "b"})
    done = {"to": "resolved", "comment": "Done."}
    project.post("/issues/2/transition", done)
    return project


FAILURES: dict[str, tuple[str, dict[str, Any], str, int, list[str]]] = {
    "unknown tool": ("no.such", {}, "tool_not_found", -32601, []),
    "missing file": ("file.read", {"path": "none"}, "file_not_found", -32000, ["none"]),
    "file is there": ("file.create", {"path": "a.py", "content": ""}, "file_exists", -32000, []),
    "not read": ("file.write", {"path": "b.py", "content": ""}, "file_not_read", -32000, []),
    "bad regex": ("search.grep", {"pattern": "(("}, "invalid_pattern", -32000, []),
    "bad ast": (
        "search.ast",
        {"pattern": "console.log(", "lang": "typescript"},
        "invalid_pattern",
        -32000,
        ["$NAME"],
    ),
    "no issue": ("kaged.issue", {"action": "get", "number": 9999}, "issue_not_found", -32000, []),
    "bad move": (
        "kaged.issue",
        {"action": "transition", "number": 2, "to": "triaged"},
        "invalid_transition",
        -32000,
        ["reopened"],
    ),
    "no bound issue": ("kaged.todo", {"action": "view"}, "no_bound_issue", -32000, ["issue"]),
    "no workflow": (
        "kaged.workflow.trigger",
        {"name": "nope", "inputs": {}},
        "workflow_not_found",
        -32000,
        ["nope"],
    ),
    "workflow input": (
        "kaged.workflow.trigger",
        {"name": "report", "inputs": {"pages": "many"}},
        "invalid_params",
        -32602,
        ["title", "pages"],
    ),
    "workflow file": (
        "kaged.workflow.trigger",
        {"name": "scan", "inputs": {"sheet": "x"}},
        "file_input_not_supported",
        -32000,
        ["sheet"],
    ),
    "no run": ("kaged.workflow.status", {"run_id": "nope"}, "run_not_found", -32000, ["nope"]),
    "empty command": ("shell.bash", {"command": ""}, "invalid_params", -32602, ["command"]),
    "missing cwd": (
        "shell.bash",
        {"command": "ls", "cwd": "none"},
        "shell_spawn_failed",
        -32000,
        ["No such file"],
    ),
    "no adapter": (
        "debug",
        {"action": "launch", "runtime": "cobol", "script": "a.py"},
        "dap_adapter_not_found",
        -32000,
        ["cobol"],
    ),
    "no session": ("debug", {"action": "threads"}, "dap_session_ended", -32000, []),
    "no server": (
        "code.lsp",
        {"action": "diagnostics", "path": "notes.xyz"},
        "lsp_server_not_found",
        -32000,
        [],
    ),
}


@whole(
    "AT-FAIL-11",
    "AT-FAIL-16",
    "AT-FAIL-17",
    "AT-FAIL-18",
    "AT-FAIL-22",
    "AT-FAIL-23",
    "AT-FAIL-24",
    "AT-FAIL-25",
    "AT-FAIL-26",
    "AT-FAIL-30",
    "AT-DISP-08",
    "AT-AMB-35",
    "AT-DISP-20",
)
@pytest.mark.parametrize("case", FAILURES)
def test_each_failure_has_its_code_its_number_and_what_helps(stocked: Project, case: str) -> None:
    tool, params, code, number, words = FAILURES[case]
    stocked.write("notes.xyz", "x\n")
    refused = stocked.fail(tool, **params)
    assert (refused["code"], refused["data"]["number"]) == (code, number), refused
    assert set(refused["data"]) >= {"number", "detail"}
    assert refused["message"]
    told = json.dumps(refused)
    assert [word for word in words if word not in told] == []
    if code == "issue_not_found":
        assert "9999" in told
    assert stocked.get("/runs")["items"] == []
    assert [one["status"] for one in stocked.get("/issues?status=resolved")["items"]] == [
        "resolved"
    ]


@whole("AT-FAIL-31", "AT-DISP-07")
def test_no_failure_ends_a_run_and_the_model_is_told_each(
    stocked: Project, model: ModelServer
) -> None:
    stocked.write("notes.xyz", "x\n")
    cases = [one for one in FAILURES.values() if one[0] != "no.such"]
    turns = [call(tool, **params) for tool, params, *_ in cases]
    fine = call("file.read", path="a.py")
    model.play("numbat-fails", *turns, fine, say("All tried."))
    talk = Talk(stocked)
    run = talk.say("numbat-fails")
    assert (run["status"], run["steps"]) == ("completed", len(turns) + 2)
    rows = talk.calls()
    assert [one["error"] and one["error"]["code"] for one in rows] == [
        *(one[2] for one in cases),
        None,
    ]
    for row in rows[:-1]:
        assert set(row["error"]) == {"code", "number", "message", "detail"}
        assert row["result"] is None
    answers = [one for one in model.asked("numbat-fails")[-1]["messages"] if one["role"] == "tool"]
    assert len(answers) == len(cases) + 1
    for one, case in zip(answers, cases, strict=False):
        assert case[2] in one["content"]
    assert "1: one = 1" in answers[-1]["content"]


@whole("AT-FAIL-07")
def test_a_file_that_somebody_else_changed_is_not_overwritten(stocked: Project) -> None:
    stocked.call("file.read", path="b.py")
    stocked.write("b.py", "two = 3\n")
    edit = {"path": "b.py", "old_string": "two", "new_string": "ten"}
    for tool, params in (("edit.text", edit), ("file.write", {"path": "b.py", "content": "x"})):
        refused = stocked.fail(tool, **params)
        assert refused["code"] == "file_changed_since_read"
        assert refused["data"]["number"] == -32000
    assert stocked.read("b.py") == "two = 3\n"
    stocked.call("file.read", path="b.py")
    stocked.call("edit.text", **edit)
    assert stocked.read("b.py") == "ten = 3\n"


@whole("AT-DISP-08")
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"old_string": "none", "new_string": "x"}, "old_string_not_found"),
        ({"old_string": "one", "new_string": "x"}, "multiple_matches"),
        ({"old_string": "one", "new_string": "one"}, "no_change"),
    ],
)
def test_edits_that_cannot_be_made_have_codes_of_their_own(
    stocked: Project, params: dict[str, str], code: str
) -> None:
    stocked.call("file.read", path="a.py")
    refused = stocked.fail("edit.text", path="a.py", **params)
    assert (refused["code"], refused["data"]["number"]) == (code, -32000)
    assert stocked.read("a.py") == "one = 1\none = 1\n"


@whole("AT-FAIL-19", "AT-FAIL-20", "AT-FAIL-21")
def test_todos_that_cannot_be_found_or_dropped_say_why(
    stocked: Project, model: ModelServer
) -> None:
    criterion = {"action": "add", "items": ["Tests pass"], "kind": "criterion"}
    stocked.post("/issues/1/todos", criterion)
    stocked.post("/issues/1/todos", {"action": "add", "items": ["Write code"]})
    talk = Talk(stocked)
    stocked.daemon.ask("PUT", f"/projects/{stocked.id}/sessions/{talk.id}/issue", {"number": 1})
    model.play(
        "puffin-todos",
        call("kaged.todo", action="view"),
        call("kaged.todo", action="start", content="zzz"),
        call("kaged.todo", action="drop", content="Tests pass"),
        call("kaged.todo", action="done", content="todo-1"),
        say("Tried."),
    )
    assert talk.say("puffin-todos")["status"] == "completed"
    view, unknown, dropped, by_id = talk.calls()
    assert view["error"] is None
    assert unknown["error"]["code"] == "todo_not_found"
    assert "zzz" in json.dumps(unknown["error"]["detail"]) + unknown["error"]["message"]
    assert dropped["error"]["code"] == "invalid_transition"
    assert by_id["error"]["code"] == "content_addressing_hint"
    shown = json.dumps(stocked.get("/issues/1/todos"))
    assert "Tests pass" in shown
    assert "Write code" in shown


@whole("AT-FAIL-28", "AT-FAIL-29", "AT-AMB-20")
def test_a_command_that_takes_or_says_too_much_is_cut(stocked: Project) -> None:
    sleep = "trap 'exit 3' TERM; echo $$ > pid; sleep 60 & echo $! > inner; wait; sleep 60"
    got = stocked.call("shell.bash", command=sleep, timeout=1000)
    assert (got["timed_out"], got["exit_code"]) == (True, 137)
    for name in ("pid", "inner"):
        pid = int(stocked.read(name))
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    loud = "i=0; while [ $i -lt 3 ]; do head -c 1048576 /dev/zero | tr '\\0' x; i=$((i+1)); done"
    got = stocked.call("shell.bash", command=loud)
    assert "truncated" in got["stdout"][-200:]
    assert len(got["stdout"]) < 1_100_000
    assert (got["exit_code"], got["timed_out"]) == (0, False)


@whole("AT-FAIL-14", "AT-AMB-51")
def test_readers_do_not_wait_for_each_other(stocked: Project) -> None:
    stocked.write("big.txt", "line\n" * 50_000)
    got: list[Any] = []

    def read() -> None:
        got.append(stocked.call("file.read", path="big.txt", limit=5)["total_lines"])

    threads = [threading.Thread(target=read) for _ in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert got == [50_000] * 10


@whole("AT-FAIL-02", "AT-LSP-14", "AT-LSP-15")
def test_without_a_language_server_the_answer_says_how_to_get_it_and_the_rest_works(
    own: Callable[..., Daemon],
) -> None:
    daemon = own()
    daemon.env["PATH"] = "/usr/bin/nothing-here"
    daemon.start()
    project = daemon.load(Project(daemon.home.parent / "p", cage="disabled"))
    for name in ("a.py", "a.ts", "a.go", "a.rs", "a.js"):
        project.write(name, "\n")
    for name, language, command in (
        ("a.py", "python", "pyright-langserver"),
        ("a.ts", "typescript", "typescript-language-server"),
        ("a.js", "javascript", "typescript-language-server"),
        ("a.go", "go", "gopls"),
        ("a.rs", "rust", "rust-analyzer"),
    ):
        refused = project.fail("code.lsp", action="diagnostics", path=name)
        assert (refused["code"], refused["data"]["number"]) == ("lsp_server_not_found", -32000)
        detail = refused["data"]["detail"]
        assert detail["language"] == language
        assert command in json.dumps(detail["command"])
        assert detail["install"]
        assert project.call("file.read", path=name)["content"] == "1: "
    project.write("notes.xyz", "x\n")
    refused = project.fail("code.lsp", action="diagnostics", path="notes.xyz")
    assert refused["code"] == "lsp_server_not_found"
    assert ".xyz" in refused["message"]
    assert project.call("search.grep", pattern="^x$")["total_matches"] == 1


@whole("AT-FAIL-08", "AT-RES-12")
def test_a_denied_write_says_what_is_needed(stocked: Project) -> None:
    stocked.describe(subagents={"coder": agent("file.*", cage=caged("ro:."))})
    stocked.reload()
    refused = stocked.fail("file.write", path_of("coder"), path="./b.py", content="x")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:./b.py")
    assert "rw:fs:./b.py" in refused["message"]
    assert stocked.read("b.py") == "two = 2\n"
