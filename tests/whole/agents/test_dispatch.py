"""What every call goes through, whoever makes it: the steps, their order, the one error shape."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import unix_connect

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, path_of, rows_of
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

CODER = path_of("coder")


@pytest.fixture
def caged_project(project: Project) -> Project:
    """Return a project whose coder may read `src`, and has file, edit and issue-free tools."""
    project.write("src/a.txt", "one\n")
    project.write("data/a.txt", "two\n")
    project.describe(
        cage="disabled",
        subagents={"coder": agent("file.*", "edit.*", "debug", cage=caged("ro:./src"))},
    )
    project.reload()
    return project


@contextmanager
def calling(project: Project, tool: str, **params: Any) -> Generator[list[httpx.Response]]:
    """Make a call in another thread; its answer is in the list once the block has been left."""
    answers: list[httpx.Response] = []
    body = {"agent": "primary", "tool": tool, "params": params}
    url = f"/api/v1/projects/{project.id}/tools/call"
    thread = threading.Thread(
        target=lambda: answers.append(project.daemon.client.post(url, json=body))
    )
    thread.start()
    try:
        yield answers
    finally:
        thread.join()


@whole("AT-DISP-01", "AT-AMB-34", "AT-SCOPE-03")
@pytest.mark.parametrize(
    ("who", "tool", "params", "code"),
    [
        (CODER, "no.such", {"path": 5}, "tool_not_found"),
        (CODER, "kaged.issue", {"action": 5}, "principal_scope_violation"),
        (CODER, "kaged.issue", {"action": "create", "title": 5}, "principal_scope_violation"),
        (CODER, "kaged.issue", {"action": "list"}, "principal_scope_violation"),
        (CODER, "search.grep", {"pattern": 5}, "tool_not_found"),
        (CODER, "shell.bash", {"command": "touch ran", "cwd": "./data"}, "tool_not_found"),
        (CODER, "file.create", {"path": "data/new.txt", "content": 5}, "invalid_params"),
        (CODER, "file.create", {"path": "data/new.txt", "content": "x"}, "capability_denied"),
        (CODER, "file.read", {"path": "data/nothing.txt"}, "capability_denied"),
        (CODER, "file.read", {"path": "src/nothing.txt"}, "file_not_found"),
    ],
)
def test_the_first_step_that_says_no_ends_the_call(
    caged_project: Project, who: str, tool: str, params: dict[str, object], code: str
) -> None:
    before = sorted(caged_project.root.rglob("*"))
    assert caged_project.fail(tool, who, **params)["code"] == code
    assert sorted(caged_project.root.rglob("*")) == before
    assert caged_project.get("/issues")["items"] == []


@whole("AT-DISP-02", "AT-DISP-03", "AT-DISP-04")
def test_each_refusal_has_its_number_and_says_what_was_wrong(caged_project: Project) -> None:
    refused = caged_project.fail("no.such")
    assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)
    assert "no.such" in refused["message"]
    refused = caged_project.fail("file.read", offset="x", limit=0)
    assert (refused["code"], refused["data"]["number"]) == ("invalid_params", -32602)
    fields = {one["field"]: one["problem"] for one in refused["data"]["detail"]["fields"]}
    assert set(fields) == {"path", "offset", "limit"}
    assert all(fields.values())
    write = {"path": "./data/x", "content": "x"}
    refused = caged_project.fail("file.write", CODER, **write)
    assert (refused["code"], refused["data"]["number"]) == ("capability_denied", -32001)
    assert refused["data"]["detail"] == "rw:fs:./data/x"
    assert "rw:fs:./data/x" in refused["message"]


@whole("AT-DISP-12", "AT-DAP-01", "AT-LSP-01")
@pytest.mark.parametrize(
    ("tool", "params", "field"),
    [
        ("code.lsp", {}, "action"),
        ("code.lsp", {"action": "fly", "path": "a.py"}, "action"),
        ("code.lsp", {"action": "definition", "path": "a.py"}, "line"),
        ("code.lsp", {"action": "rename", "path": "a.py", "line": 1, "character": 0}, "new_name"),
        ("code.lsp", {"action": "request", "language": "python"}, "method"),
        ("debug", {}, "action"),
        ("debug", {"action": "fly"}, "action"),
        ("debug", {"action": "launch", "runtime": "python"}, "script"),
        ("debug", {"action": "launch", "script": "a.py"}, "runtime"),
        ("kaged.issue", {}, "action"),
        ("kaged.issue", {"action": "fly"}, "action"),
        ("kaged.issue", {"action": "get"}, "number"),
        ("kaged.issue", {"action": "create", "title": "x"}, "body"),
        ("kaged.issue", {"action": "transition", "number": 1}, "to"),
        ("kaged.todo", {}, "action"),
        ("kaged.todo", {"action": "fly"}, "action"),
        ("kaged.todo", {"action": "start"}, "content"),
        ("kaged.todo", {"action": "add"}, "items"),
    ]
    + [
        ("code.lsp", {"action": action, "line": 1, "character": 0, "new_name": "b"}, "path")
        for action in [
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
        ]
    ],
)
def test_an_action_and_what_it_needs_have_to_be_there(
    project: Project, tool: str, params: dict[str, Any], field: str
) -> None:
    project.write("a.py", "x = 1\n")
    issue = project.post("/issues", {"title": "First", "body": "b"})
    assert issue["number"] == 1
    refused = project.fail(tool, **params)
    assert (refused["code"], refused["data"]["number"]) == ("invalid_params", -32602)
    assert field in json.dumps(refused["data"]["detail"]), refused


@whole("AT-DISP-13")
@pytest.mark.parametrize(
    "params",
    [
        {"limit": True},
        {"limit": "5"},
        {"limit": 1.5},
        {"limit": None},
        {"offset": False},
        {"offset": [1]},
        {"path": 5},
        {"path": None},
        {"path": ["a.txt"]},
    ],
)
def test_values_are_taken_as_they_are_or_not_at_all(
    project: Project, params: dict[str, object]
) -> None:
    project.write("a.txt", "one\n")
    project.write("5", "five\n")
    refused = project.fail("file.read", **{"path": "a.txt", **params})
    assert refused["code"] == "invalid_params"
    [field] = params
    assert [one["field"] for one in refused["data"]["detail"]["fields"]] == [field]
    assert project.call("file.read", path="a.txt", limit=5)["total_lines"] == 1


@whole("AT-DISP-14")
def test_what_is_left_out_is_checked_as_what_it_stands_for(project: Project) -> None:
    project.write("src/a.txt", "one\n")
    cage = caged("rw:./src", capabilities=["shell"])
    project.describe(subagents={"coder": agent("shell.bash", "search.*", cage=cage)})
    project.reload()
    refused = project.fail("shell.bash", CODER, command="touch ran")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:./")
    assert not (project.root / "ran").exists()
    project.call("shell.bash", CODER, command="touch ran", cwd="./src")
    assert (project.root / "src" / "ran").exists()


@whole("AT-DISP-06", "AT-CTX-01", "AT-CTX-07", "AT-DISP-07")
def test_every_outcome_is_kept_with_the_session_and_told_to_who_listens(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("src/a.txt", "one\n")
    project.describe(cage=caged("ro:./src"))
    project.reload()
    model.play(
        "ibis-works",
        call("file.read", path="src/a.txt"),
        call("file.read", path="src/none.txt"),
        call("file.read", path="data/none.txt"),
        call("file.read"),
        say("Done."),
    )
    talk = Talk(project)
    socket = daemon.get("/status")["socket"]
    heard: list[dict[str, Any]] = []
    with unix_connect(socket, f"ws://kaged/api/v1/events?topics=session:{talk.id}") as stream:
        run = talk.say("ibis-works")
        while not (heard and heard[-1].get("name") == "run.completed"):
            heard.append(json.loads(stream.recv(timeout=30)))
    rows = talk.calls()
    codes = [one["error"] and one["error"]["code"] for one in rows]
    assert codes == [None, "file_not_found", "capability_denied", "invalid_params"]
    for one in rows[1:]:
        assert set(one["error"]) == {"code", "number", "message", "detail"}
        assert one["result"] is None
    told = [one["data"] for one in heard if one.get("name") == "tool.finished"]
    assert [one["request_id"] for one in told] == [one["request_id"] for one in rows]
    assert [one["error"] and one["error"]["code"] for one in told] == codes
    assert "1: one" in json.dumps(told[0]["result"])
    assert len({one["request_id"] for one in rows}) == 4
    for row, code in zip(rows, codes, strict=True):
        found = [
            one
            for one in rows_of(project, "tool.called", "tool.completed", "tool.denied")
            if one["request_id"] == row["request_id"]
        ]
        last = "tool.denied" if code == "capability_denied" else "tool.completed"
        assert [one["event"] for one in found] == ["tool.called", last]
        data = found[0]["data"]
        assert (data["session_id"], data["run_id"], data["caller"]) == (
            talk.id,
            run["id"],
            "primary",
        )
        assert found[0]["project_id"] == project.id


@whole("AT-AMB-52")
@pytest.mark.parametrize(
    ("tool", "params", "last"),
    [
        ("file.read", {"path": "data/a.txt"}, "tool.denied"),
        ("kaged.issue", {"action": "list"}, "tool.denied"),
        ("file.read", {}, "tool.completed"),
        ("no.such", {}, "tool.completed"),
        ("file.read", {"path": "src/none"}, "tool.completed"),
    ],
)
def test_a_refused_call_is_denied_and_any_other_failed_one_is_completed(
    caged_project: Project, tool: str, params: dict[str, object], last: str
) -> None:
    refused = caged_project.fail(tool, CODER, **params)
    rows = exactly(
        2, lambda: rows_of(caged_project, "tool.called", "tool.completed", "tool.denied")
    )
    assert [one["event"] for one in rows] == ["tool.called", last]
    assert {one["request_id"] for one in rows} == {refused["request_id"]}
    if last == "tool.completed":
        assert rows[1]["data"]["success"] is False
        assert rows[1]["data"]["error_code"] == refused["code"]


@whole("AT-DISP-17")
def test_a_slow_call_keeps_nobody_waiting(caged_project: Project) -> None:
    project = caged_project
    wait = "touch waiting; while [ ! -e go ]; do sleep 0.05; done; echo went"
    with calling(project, "shell.bash", command=wait) as answers:
        wait_for((project.root / "waiting").exists)
        try:
            assert project.call("file.read", path="src/a.txt")["content"] == "1: one"
            assert project.call("file.read", CODER, path="src/a.txt")["content"] == "1: one"
            assert project.call("search.grep", pattern="^one$")["total_matches"] == 1
            assert project.call("shell.bash", command="echo two")["stdout"].strip() == "two"
            assert not answers
        finally:
            project.write("go", "")
    assert answers[0].json()["result"]["stdout"].strip() == "went"


@whole("AT-DISP-18", "AT-DISP-06")
def test_a_cancelled_run_leaves_no_process_behind_and_its_call_says_so(
    project: Project, model: ModelServer
) -> None:
    project.describe(cage="disabled")
    project.reload()
    sleep = "echo $$ > pid; sh -c 'echo $$ > inner; sleep 60' & sleep 60; echo over > over"
    model.play("kiwi-sleeps", call("shell.bash", command=sleep), say("Slept."))
    talk = Talk(project)
    run_id = talk.begin("kiwi-sleeps")

    def pids() -> list[int]:
        files = [project.root / "pid", project.root / "inner"]
        texts = [one.read_text().strip() for one in files if one.exists()]
        return [int(one) for one in texts if one]

    wait_for(lambda: len(pids()) == 2)
    project.post(f"/sessions/{talk.id}/cancel")
    assert talk.ended(run_id)["status"] == "cancelled"
    assert [pid for pid in pids() if alive(pid)] == []
    assert not (project.root / "over").exists()
    assert len(model.asked("kiwi-sleeps")) == 1
    [kept] = wait_for(lambda: [one for one in talk.calls() if one["status"] != "running"])
    assert (kept["status"], kept["error"]["code"], kept["result"]) == (
        "cancelled",
        "cancelled",
        None,
    )


def alive(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat.rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@whole("AT-DISP-19")
def test_results_are_plain_data_and_name_files_from_the_project_root(project: Project) -> None:
    project.describe(cage="disabled", tools={"*": {"enabled": True}})
    project.reload()
    project.write("src/a.py", "print(1)\n")
    project.write("blob", bytes(range(256)))
    results = [
        project.call("file.read", path="src/a.py"),
        project.call("file.read", path="blob"),
        project.call("file.read", path="src"),
        project.call("file.create", path="src/b.py", content="print(2)\n"),
        project.call("file.write", path="src/c.py", content="print(3)\n"),
        project.call("edit.text", path="src/a.py", old_string="1", new_string="9"),
        project.call("edit.ast", rewrites={"print($A)": "log($A)"}, lang="python"),
        project.call("search.grep", pattern="print", output_mode="content"),
        project.call("search.glob", pattern="*.py"),
        project.call("search.ast", pattern="print($A)", lang="python"),
        project.call("shell.bash", command="printf 'a\\377b'"),
        project.call("code.lsp", action="status"),
        project.call("kaged.issue", action="create", title="x", body="y"),
        project.call("kaged.workflow.list"),
    ]
    paths: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in ("path", "file") and isinstance(inner, str):
                    paths.append(inner)
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)

    for one in results:
        json.dumps(one, allow_nan=False)
        collect(one)
    assert len(paths) >= 10
    assert [one for one in paths if not one.startswith("./")] == []
    assert project.call("search.glob", pattern="*.py")["files"][0].startswith("./")
    assert str(project.root) not in json.dumps(results)


POLICY = """
from kaged.pipeline import Plugin, PluginResult, PluginViolation


class Rewrites(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions=None):
        args = dict(payload.args or {})
        with open(self.config.config["log"], "a", encoding="utf-8") as log:
            log.write(str(args.get("path")) + "\\n")
        if args.get("path") == "src/secret":
            why = PluginViolation(reason="no", description="not this one", code="house_rule")
            return PluginResult(continue_processing=False, violation=why)
        if args.get("path") == "src/moved":
            return PluginResult(modified_payload=payload.model_copy(
                update={"args": {**args, "path": "data/a.txt"}}))
        if args.get("path") == "src/typed":
            return PluginResult(modified_payload=payload.model_copy(
                update={"args": {**args, "path": 5}}))
        if args.get("path") == "src/other":
            return PluginResult(modified_payload=payload.model_copy(
                update={"args": {**args, "path": "src/a.txt"}}))
        return None

    async def tool_post_invoke(self, payload, context, extensions=None):
        if "TOP" in str(payload.result):
            return PluginResult(modified_payload=payload.model_copy(
                update={"result": {"text": "taken out"}}))
        return None
"""
PIPELINE = """
plugin_dirs: [rules]
plugins:
  - name: rewrites
    kind: house_rules.Rewrites
    hooks: [tool_pre_invoke, tool_post_invoke]
    config: {log: LOG}
"""


@whole("AT-DISP-21")
def test_what_a_policy_makes_of_a_call_is_checked_like_any_other(
    own: Callable[..., Daemon], model: ModelServer
) -> None:
    daemon = own(config='[pipeline]\nfile = "pipeline.yaml"\n')
    log = daemon.home / "seen"
    daemon.write("pipeline.yaml", PIPELINE.replace("LOG", str(log)))
    daemon.write("rules/house_rules.py", POLICY)
    daemon.start()
    coder = agent("file.*", cage=caged("rw:./src"))
    project = daemon.load(Project(daemon.home.parent / "p", subagents={"coder": coder}))
    project.write("src/a.txt", "one\n")
    project.write("src/top", "TOP\n")
    project.write("data/a.txt", "two\n")
    assert project.call("file.read", CODER, path="src/other")["content"] == "1: one"
    for path, code in (
        ("src/moved", "capability_denied"),
        ("src/typed", "invalid_params"),
        ("src/secret", "pipeline_refused"),
    ):
        refused = project.fail("file.write", CODER, path=path, content="changed")
        assert refused["code"] == code, refused
        assert not (project.root / path).exists()
    assert project.read("data/a.txt") == "two\n"
    rows = rows_of(project, "tool.called", "tool.denied", "tool.completed")
    assert [one["event"] for one in rows[2:]] == [
        *("tool.called", "tool.denied"),
        *("tool.called", "tool.completed"),
        *("tool.called", "tool.denied"),
    ]
    refused = project.fail("file.read", CODER, path="data/a.txt")
    assert refused["code"] == "capability_denied"
    assert log.read_text().splitlines() == ["src/other", "src/moved", "src/typed", "src/secret"]
    model.play("macaw-reads", call("file.read", path="src/top"), say("Read."))
    talk = Talk(project)
    talk.say("macaw-reads")
    [row] = talk.calls()
    assert row["result"] == {"text": "taken out"}
    assert "taken out" in json.dumps(model.asked("macaw-reads")[1])
    assert "TOP" not in json.dumps(model.asked("macaw-reads"))
