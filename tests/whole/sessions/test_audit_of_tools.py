"""The audit trail of tool calls in a running daemon: which events, with what, never too much."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.disk import full_disk
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, fresh, play_large

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "audit-events.md"
READER: dict[str, Any] = {
    "model": "default",
    "system_prompt": "You read.",
    "cage": {"fs": [{"mode": "ro", "path": "./src"}]},
    "tools": {"file.*": {"enabled": True}, "edit.*": {"enabled": True}},
}
CHILD = "primary.subagents.reader"


def trail(project: Project, *events: str) -> list[dict[str, Any]]:
    """Return the audit rows of the project."""
    return project.daemon.audit(*events, project_id=project.id)


def data(project: Project, event: str) -> list[dict[str, Any]]:
    return [one["data"] for one in trail(project, event)]


def told_fields() -> dict[str, set[str]]:
    """Return the fields that the reference page says each event always has."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if row := re.match(r"\| `([a-z_.]+)`[^|]*\|[^|]*\| (.*) \|$", line):
            required = re.sub(r"\*`[^`]+`\*", "", row[2])
            found[row[1]] = set(re.findall(r"`([^`]+)`", required))
    return found


@pytest.fixture
def talk(project: Project, model: ModelServer) -> Talk:
    """Return a session whose root has no cage and one subagent that reads `./src`."""
    project.describe(cage="disabled", subagents={"reader": READER})
    project.reload()
    return Talk(project, model)


@whole("AT-AUD-02", "AT-AUD-04", "AT-AUD-05", "AT-AMB-52")
def test_a_call_is_called_and_then_completed_or_denied(project: Project, talk: Talk) -> None:
    project.write("src/a.txt", "a\n")
    word = fresh("reader")
    talk.model.play(
        word,
        call("file.read", path="src/a.txt"),
        call("file.write", path="src/a.txt", content="x"),
        call("kaged.issue", action="list"),
        call("file.read", path="src/nope.txt"),
        call("file.read", path=7),
        call("edit.text", path="src/a.txt", old_string="a", new_string="b"),
        say("ok"),
    )
    run = talk.hear(call("agent-reader", message=word), call("file.peel"), say("ok"))
    rows = trail(project, "tool.*")
    by_request: dict[str, list[str]] = {}
    for row in rows:
        by_request.setdefault(row["request_id"], []).append(row["event"])
    made = talk.calls()
    assert list(by_request) == [one["request_id"] for one in made]
    outcomes = [by_request[one["request_id"]] for one in made]
    completed, denied = ["tool.called", "tool.completed"], ["tool.called", "tool.denied"]
    assert outcomes == [
        completed, completed, denied, denied, completed, completed, denied, completed,
    ]  # fmt: skip
    for row in trail(project, "tool.called"):
        one = next(one for one in made if one["request_id"] == row["request_id"])
        wanted = {key: one[key] for key in ("tool_name", "caller", "session_id", "run_id")}
        assert wanted.items() <= row["data"].items()
        assert (row["data"]["run_id"], row["data"]["request_id"]) == (run["id"], row["request_id"])
        assert isinstance(row["data"]["params"], dict)
    ended = {one["request_id"]: one["data"] for one in trail(project, "tool.completed")}
    assert [ended[one["request_id"]]["success"] for one in made if one["request_id"] in ended] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert all(one["duration_ms"] >= 0 for one in ended.values())
    names = {one["request_id"]: one["tool_name"] for one in made}
    assert all(one["tool_name"] == names[request] for request, one in ended.items())
    write, issue, edit = data(project, "tool.denied")
    for one in (write, issue, edit):
        assert one["caller"] == CHILD
        assert one["denied_capability"]
        assert one["cage_summary"] is not None
    assert write["denied_capability"] == "rw:fs:src/a.txt"
    assert (write["tool_name"], issue["tool_name"]) == ("file.write", "kaged.issue")
    assert "src" in str(write["cage_summary"])


@whole("AT-AUD-02")
def test_there_are_as_many_events_as_calls_by_whatever_way(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    talk.use(("file.read", {"path": "."}), ("file.read", {"path": "."}))
    project.call("file.read", path=".")
    project.fail("file.read", path="nope")
    project.fail("nope.nope")
    daemon.cli("tool", "call", "file.read", "path=.", cwd=project.root)
    exactly(6, lambda: trail(project, "tool.called"))
    assert len({one["request_id"] for one in trail(project, "tool.called")}) == 6
    exactly(6, lambda: trail(project, "tool.completed"))


@whole("AT-AUD-03")
def test_large_and_secret_values_are_not_in_the_trail(project: Project, talk: Talk) -> None:
    content = "".join(f"{number:08}" for number in range(125_000))
    assert len(content) == 1_000_000
    secret = "hunter-too-many"
    word = fresh("large")
    play_large(talk.model, word, call("file.create", path="big.txt", content=content), say("ok"))
    other = Talk(project, talk.model)
    assert other.end(other.tell(word))["status"] == "completed"
    talk.use(
        ("file.create", {"path": "small.txt", "content": "old " * 300}),
        ("file.read", {"path": "small.txt"}),
        (
            "edit.text",
            {"path": "small.txt", "old_string": "old " * 300, "new_string": "new " * 300},
        ),
        ("kaged.issue", {"action": "create", "title": "t", "body": "body " * 300}),
        ("shell.bash", {"command": "echo $TOKEN_OF_MINE", "env": {"TOKEN_OF_MINE": secret}}),
    )
    assert [one["status"] for one in talk.calls()] == ["completed"] * 5
    assert project.read("big.txt") == content
    text = project.daemon.client.get(
        f"/api/v1/audit/export?project_id={project.id}"
    ).text  # fmt: skip
    for hidden in ("0000123400001235", "old old", "new new", "body body", secret):
        assert hidden not in text, hidden
    big, *_ = (one for one in data(project, "tool.called") if one["params"].get("content"))
    note = str(big["params"]["content"])
    assert "1000000" in note
    assert hashlib.sha256(content.encode()).hexdigest()[:12] in note
    (shell,) = (one for one in data(project, "tool.called") if one["tool_name"] == "shell.bash")
    assert "TOKEN_OF_MINE" in str(shell["params"]["env"])


@whole("AT-AUD-12", "AT-AUD-13")
def test_writing_and_editing_files_is_on_record_with_path_and_amount(
    project: Project, talk: Talk
) -> None:
    project.write("a.py", "print(1)\nprint(2)\n")
    project.write("b.py", "print(3)\n")
    talk.use(
        ("file.create", {"path": "new.txt", "content": "café"}),
        ("file.read", {"path": "new.txt"}),
        ("file.write", {"path": "./new.txt", "content": "changed"}),
        ("edit.text", {"path": "new.txt", "old_string": "changed", "new_string": "x x"}),
        (
            "edit.text",
            {"path": "new.txt", "old_string": "x", "new_string": "y", "replace_all": True},
        ),
        ("edit.ast", {"rewrites": {"print($A)": "log($A)"}, "lang": "python", "dry_run": False}),
    )
    assert [one["status"] for one in talk.calls()] == ["completed"] * 6
    written = data(project, "file.written")
    assert [(one["path"], one["bytes"], one["caller"]) for one in written] == [
        ("./new.txt", 5, "primary"), ("./new.txt", 7, "primary"),
    ]  # fmt: skip
    edited = data(project, "file.edited")
    assert sorted((one["path"], one["replacements"], one["caller"]) for one in edited) == [
        ("./a.py", 2, "primary"),
        ("./b.py", 1, "primary"),
        ("./new.txt", 1, "primary"),
        ("./new.txt", 2, "primary"),
    ]
    requests = {one["request_id"] for one in talk.calls()}
    assert {one["request_id"] for one in trail(project, "file.*")} <= requests
    assert project.read("a.py") == "log(1)\nlog(2)\n"


@whole("AT-AUD-14", "AT-AUD-16", "AT-AUD-17")
def test_what_agents_do_with_issues_is_on_record(project: Project, talk: Talk) -> None:
    made, commented, _, _ = talk.use(
        ("kaged.issue", {"action": "create", "title": "A title", "body": "b"}),
        (
            "kaged.issue",
            {"action": "comment", "number": 1, "body": "c", "visibility": "operator_only"},
        ),
        ("kaged.issue", {"action": "transition", "number": 1, "to": "triaged"}),
        ("kaged.issue", {"action": "transition", "number": 1, "to": "resolved", "comment": "ok"}),
    )
    issue_id = made["result"]["id"]
    assert data(project, "kaged.issue.created") == [
        {
            "issue_id": issue_id, "project_id": project.id, "number": 1, "title": "A title",
            "caller": "primary",
        }
    ]  # fmt: skip
    first, *_ = data(project, "kaged.issue.commented")
    assert first == {
        "issue_id": issue_id, "update_id": commented["result"]["update_id"],
        "visibility": "operator_only", "caller": "primary",
    }  # fmt: skip
    assert data(project, "kaged.issue.transitioned") == [
        {"issue_id": issue_id, "from_status": old, "to_status": new, "caller": "primary"}
        for old, new in (("open", "triaged"), ("triaged", "resolved"))
    ]


@whole("AT-AUD-18", "AT-AUD-19", "AT-AUD-20", "AT-AUD-21", "AT-AUD-22", "AT-AUD-23")
def test_what_agents_do_with_todos_is_on_record(project: Project, talk: Talk) -> None:
    issue_id = project.post("/issues", {"title": "t", "body": "b"})["id"]
    talk.bind(1)
    todo = "kaged.todo"
    made = talk.use(
        (todo, {"action": "set", "items": ["a", "b", "c"]}),
        (todo, {"action": "add", "items": ["must hold"], "kind": "criterion"}),
        (todo, {"action": "start", "content": "b"}),
        (todo, {"action": "done", "content": "must hold"}),
        (todo, {"action": "drop", "content": "c"}),
        (todo, {"action": "note", "content": "a", "text": "seen"}),
        (todo, {"action": "view"}),
        (todo, {"action": "start", "content": "nope"}),
        (todo, {"action": "drop", "content": "must hold"}),
    )
    ids = {one["content"]: one["id"] for one in made[1]["result"]["todos"]}
    base = {"issue_id": issue_id, "caller": "primary"}
    rows = trail(project, "kaged.todo.*")
    assert [(one["event"].removeprefix("kaged.todo."), one["data"]) for one in rows] == [
        ("set", {**base, "count": 3, "kind": "step"}),
        ("added", {**base, "count": 1, "kind": "criterion"}),
        ("started", {**base, "todo_id": ids["b"], "content": "b"}),
        (
            "completed",
            {**base, "todo_id": ids["must hold"], "content": "must hold", "kind": "criterion"},
        ),
        ("dropped", {**base, "todo_id": ids["c"], "content": "c"}),
        ("noted", {**base, "todo_id": ids["a"]}),
    ]
    assert [one["request_id"] for one in rows] == [one["request_id"] for one in made[:6]]


@whole("AT-AUD-26")
def test_a_command_is_on_record_with_its_first_two_hundred_characters(
    project: Project, talk: Talk
) -> None:
    (project.root / "sub").mkdir()
    long = "exit 3 #" + "x" * 292
    assert len(long) == 300
    talk.use(
        ("shell.bash", {"command": long, "cwd": "sub"}),
        ("shell.bash", {"command": "sleep 60", "timeout": 1000}),
    )
    cut, late = data(project, "shell.executed")
    assert cut["command"] == long[:200]
    assert (cut["cwd"], cut["exit_code"], cut["timed_out"]) == ("./sub", 3, False)
    assert (late["exit_code"], late["timed_out"]) == (137, True)
    assert late["duration_ms"] >= 900  # clocks of processors differ
    assert (cut["caller"], late["caller"]) == ("primary", "primary")


@whole("AT-AUD-27")
def test_a_call_by_a_former_name_is_recorded_under_the_tools_own(project: Project) -> None:
    project.call("kaged.issue.create", title="t", body="b")
    project.call("kaged.issue.get", number=1)
    project.call("kaged.issue", action="get", number=1)
    for event in ("tool.called", "tool.completed"):
        assert [(one["tool_name"], one.get("alias")) for one in data(project, event)] == [
            ("kaged.issue", "kaged.issue.create"),
            ("kaged.issue", "kaged.issue.get"),
            ("kaged.issue", None),
        ], event


@whole("AT-AUD-28")
def test_what_did_not_happen_is_not_on_record(project: Project, talk: Talk) -> None:
    project.write("src/a.py", "print(1)\n")
    project.write("unread.txt", "x\n")
    word = fresh("reader")
    talk.model.play(word, call("file.create", path="src/b.py", content="x"), say("no"))
    talk.use(
        ("file.write", {"path": "unread.txt", "content": "y"}),
        ("file.create", {"path": "unread.txt", "content": "y"}),
        ("edit.text", {"path": "src/a.py", "old_string": "nope", "new_string": "y"}),
        ("edit.ast", {"rewrites": {"print($A)": "log($A)"}, "lang": "python"}),
        ("kaged.issue", {"action": "create", "title": "", "body": "b"}),
        ("kaged.issue", {"action": "comment", "number": 9, "body": "b"}),
        ("kaged.todo", {"action": "set", "items": ["a"]}),
        ("kaged.workflow.trigger", {"name": "nope", "inputs": {}}),
        ("shell.bash", {"command": "true", "cwd": "nowhere"}),
    )
    talk.hear(call("agent-reader", message=word), say("ok"))
    events = {one["event"] for one in trail(project)}
    assert events <= {
        "project.loaded", "project.trusted", "kaged.session.created",
        "tool.called", "tool.completed", "tool.denied",
    }  # fmt: skip
    assert not (project.root / "src" / "b.py").exists()


@whole("AT-AUD-01", "AT-AUD-02")
def test_every_row_has_what_its_event_promises(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    project.post("/issues", {"title": "t", "body": "b"})
    talk.bind(1)
    talk.use(
        ("file.create", {"path": "a.txt", "content": "x"}),
        ("kaged.todo", {"action": "set", "items": ["a"]}),
        ("kaged.issue", {"action": "comment", "number": 1, "body": "b"}),
        ("shell.bash", {"command": "true"}),
        ("file.read", {"path": "nope"}),
    )
    fields = told_fields()
    rows = daemon.audit()
    assert len(rows) > 10
    caused = {"file.", "kaged.issue.commented", "kaged.todo.", "shell.", "tool."}
    for row in rows:
        assert set(row) >= {"seq", "id", "timestamp", "event", "project_id", "request_id", "data"}
        assert datetime.fromisoformat(row["timestamp"]).tzinfo is not None
        assert fields[row["event"]] <= set(row["data"]), row
        if any(row["event"].startswith(one) for one in caused):
            assert row["request_id"].startswith("req_"), row
            assert row["project_id"], row
    numbers = [row["seq"] for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(rows)))
    # Append-only: what was there before is there again, to the byte, behind more calls.
    project.call("file.read", path=".")
    later = {row["seq"]: row for row in daemon.audit()}
    assert [later[row["seq"]] for row in rows[2:]] == rows[2:]
    assert daemon.post("/audit/verify")["ok"] is True


@whole("AT-AUD-29")
def test_while_the_trail_cannot_be_written_reading_goes_on_and_changing_does_not(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p", cage="disabled"))
    project.describe(cage="disabled", top={"workflows": {"w": {"description": "x"}}})
    project.reload()
    for name in ("a.txt", "b.py"):
        project.write(name, "print(1)\n")
        project.call("file.read", path=name)
    changing: list[tuple[str, dict[str, Any]]] = [
        ("file.write", {"path": "a.txt", "content": "y"}),
        ("file.create", {"path": "new.txt", "content": "y"}),
        ("edit.text", {"path": "a.txt", "old_string": "1", "new_string": "2"}),
        (
            "edit.ast",
            {"rewrites": {"print($A)": "log($A)"}, "lang": "python", "dry_run": False},
        ),
        ("shell.bash", {"command": "touch made"}),
        ("kaged.issue", {"action": "create", "title": "t", "body": "b"}),
        ("kaged.todo", {"action": "set", "items": ["a"]}),
        ("kaged.workflow.trigger", {"name": "w", "inputs": {}}),
    ]
    waits = "touch begun; while [ ! -e go ]; do sleep 0.02; done; echo over"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(project.call, "shell.bash", command=waits)
        wait_for((project.root / "begun").exists)
        with full_disk(daemon):
            assert project.call("file.read", path="a.txt")["content"] == "1: print(1)"
            for tool, params in changing:
                refused = project.fail(tool, **params)
                assert refused["code"] == "audit_unavailable", tool
            assert project.call("search.grep", pattern="print")["total_matches"] == 2
            # A call that had begun before keeps its result, though its end cannot be written.
            project.write("go", "")
            assert running.result(60)["stdout"] == "over\n"
            state = daemon.get("/status")
            assert state["audit"]["ok"] is False
            assert any("audit" in one for one in state["warnings"])
            assert daemon.client.get("/healthz").status_code == 503
    assert "audit.write_failed" in daemon.log()
    assert sorted(one.name for one in project.root.iterdir()) == [
        ".kaged", "a.txt", "b.py", "begun", "go",
    ]  # fmt: skip
    assert project.read("a.txt") == project.read("b.py") == "print(1)\n"
    wait_for(lambda: daemon.get("/status")["audit"]["ok"])
    assert project.get("/issues")["items"] == []
    assert project.get("/runs")["items"] == []
    project.call("file.create", path="new.txt", content="y")
    assert project.read("new.txt") == "y"
    assert [one["event"] for one in daemon.audit("audit.*")] == [
        "audit.degraded", "audit.recovered",
    ]  # fmt: skip
    assert daemon.post("/audit/verify")["ok"] is True
