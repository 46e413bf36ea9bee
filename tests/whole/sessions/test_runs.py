"""Runs of an agent in a running daemon: how they go, end, are cancelled, and what is kept."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, listening, names, play_late, tool_answers

SESSION_ID = re.compile(r"(ses_)?[0-9A-HJKMNP-TV-Z]{26}")
NEVER_MS = 60_000
PEEK = call("file.read", path=".")


def until(file: str) -> str:
    """Return a command that waits for a file of the project."""
    return f"while [ ! -e {file} ]; do sleep 0.02; done"


def processes(mark: str) -> list[str]:
    """Return the processes whose command line has this mark in it."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(entry.name)
    return found


@whole("AT-SESS-01")
def test_a_session_belongs_to_a_project_and_says_how_it_fares(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer, tmp_path: Path
) -> None:
    made = talk.get()
    assert SESSION_ID.fullmatch(made["id"])
    assert (made["project_id"], made["kind"], made["status"]) == (project.id, "primary", "idle")
    assert made["issue_bound"] is False
    assert datetime.fromisoformat(made["created_at"]) <= datetime.fromisoformat(made["updated_at"])
    word = fresh()
    play_late(model, word, NEVER_MS, say("Never."))
    run_id = talk.tell(word)
    assert talk.get()["status"] == "running"
    talk.post("/cancel")
    talk.end(run_id)
    assert talk.get()["status"] == "idle"
    talk.hear(call("kaged.checkpoint", message="Shall I?"))
    assert talk.get()["status"] == "checkpoint"
    project.post("/issues", {"title": "t", "body": "b"})
    other = Talk(project, model)
    other.bind(1)
    assert other.get()["issue_bound"] is True
    assert talk.get()["issue_bound"] is False
    ids = {one["id"] for one in project.get("/sessions")["items"]}
    assert {talk.id, other.id} <= ids
    stranger = daemon.load(Project(tmp_path / "other"))
    assert stranger.get("/sessions")["items"] == []
    refused = daemon.error("GET", f"/projects/{stranger.id}/sessions/{talk.id}")
    assert refused["code"] == "session_not_found"


@whole("AT-SESS-02", "AT-SESS-05")
def test_a_session_has_one_run_at_a_time(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    word = fresh()
    play_late(model, word, NEVER_MS, say("Never."))
    first = talk.tell(word)
    path = f"/projects/{project.id}/sessions/{talk.id}/message"
    refused = daemon.error("POST", path, {"text": "unheard"})
    assert (refused["status"], refused["code"]) == (409, "session_busy")
    (run,) = talk.runs()
    assert (run["id"], run["session_id"], run["status"]) == (first, talk.id, "running")
    assert run["ended_at"] is None
    # Another session is not held up.
    assert Talk(project, model).hear(say("Here."))["status"] == "completed"
    talk.post("/cancel")
    assert talk.end(first)["status"] == "cancelled"
    assert "unheard" not in json.dumps(talk.entries())
    done = talk.hear(say("Yes."))
    assert done["status"] == "completed"
    assert datetime.fromisoformat(done["started_at"]) <= datetime.fromisoformat(done["ended_at"])
    exactly(2, talk.runs)


@whole("AT-SESS-05", "AT-DSL-11")
def test_a_run_ends_when_the_model_stops_fails_or_has_had_its_steps(
    project: Project, model: ModelServer
) -> None:
    project.describe(cage="disabled", max_steps=2)
    project.reload()
    talk = Talk(project, model)
    stopped = talk.hear(PEEK, say("Seen."))
    assert (stopped["status"], stopped["steps"]) == ("completed", 2)
    first, second = asked(model, stopped["word"])
    assert tool_answers(first) == []
    assert ".kaged" in tool_answers(second)[0]
    limited = talk.hear(PEEK, PEEK, PEEK, say("Never."))
    assert (limited["status"], limited["steps"]) == ("failed", 2)
    assert "max_steps" in str(limited["error"])
    exactly(2, lambda: asked(model, limited["word"]))
    one = talk.hear(PEEK, say("Never."), max_steps=1)
    assert (one["status"], one["steps"]) == ("failed", 1)
    failed = talk.hear({"error": {"message": "the key is wrong"}, "status": 401})
    assert failed["status"] == "failed"
    assert failed["error"]
    paused = talk.hear(call("kaged.checkpoint", message="Look."), say("Never."))
    assert paused["status"] == "paused"
    exactly(1, lambda: asked(model, paused["word"]))


@whole("AT-SESS-03", "AT-SESS-04", "AT-AUD-02")
def test_each_call_is_kept_and_told_as_it_happens(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    with listening(daemon, f"session:{talk.id}") as stream:
        run = talk.hear(
            call("file.create", path="a.txt", content="x"),
            call("file.read", path="nope.txt"),
            call("file.peel", path="nope.txt"),
            say("ok"),
        )
        heard = stream.until(lambda one: one["name"] == "run.ended")
    made = talk.calls()
    assert [(one["tool_name"], one["status"]) for one in made] == [
        ("file.create", "completed"), ("file.read", "failed"), ("file_peel", "failed"),
    ]  # fmt: skip
    for one in made:
        assert (one["session_id"], one["run_id"], one["caller"]) == (talk.id, run["id"], "primary")
        assert datetime.fromisoformat(one["started_at"]) <= datetime.fromisoformat(
            one["finished_at"]
        )
    assert made[0]["params"] == {"path": "a.txt", "content": "x"}
    assert made[0]["result"]["bytes_written"] == 1
    assert [one["error"] and one["error"]["code"] for one in made] == [
        None, "file_not_found", "tool_not_found",
    ]  # fmt: skip
    told = [one for one in heard if one["name"].startswith("tool.")]
    assert names(told) == ["tool.started", "tool.finished"] * 3
    requests = [one["request_id"] for one in made]
    assert [one["data"]["request_id"] for one in told] == [
        request for request in requests for _ in range(2)
    ]
    assert len(set(requests)) == 3
    rows = daemon.audit("tool.called", project_id=project.id)
    assert [one["request_id"] for one in rows] == requests


@whole("AT-SESS-13", "AT-SESS-18")
def test_a_run_cancelled_during_a_command_leaves_no_process_and_no_lock(
    project: Project, talk: Talk, model: ModelServer
) -> None:
    project.write("kept.txt", "one\n")
    mark = fresh("sleeper")
    command = f"sh -c '{until('never')}' {mark} & sh -c '{until('never')}' {mark}; touch done"
    word = fresh()
    model.play(word, call("file.read", path="kept.txt"), call("shell.bash", command=command))
    run_id = talk.tell(word)
    wait_for(lambda: len(processes(mark)) >= 2)
    talk.post("/cancel")
    assert talk.end(run_id)["status"] == "cancelled"
    wait_for(lambda: not processes(mark), "the end of the command", 10)
    assert [one["status"] for one in talk.calls()] == ["completed", "cancelled"]
    assert all(one["finished_at"] for one in talk.calls())
    project.write("never", "")
    after = talk.hear(call("file.write", path="kept.txt", content="two\n"), say("Written."))
    assert project.read("kept.txt") == "two\n"
    assert not (project.root / "done").exists()
    told = tool_answers(asked(model, after["word"])[0])
    assert "cancelled" in told[-1]


@whole("AT-SESS-18")
def test_a_run_cancelled_during_a_model_call_ends_and_the_session_goes_on(
    talk: Talk, model: ModelServer
) -> None:
    word = fresh()
    play_late(model, word, NEVER_MS, say("Never."))
    run_id = talk.tell(word)
    wait_for(lambda: asked(model, word))
    assert talk.post("/cancel")["cancelled"] is True
    assert talk.end(run_id)["status"] == "cancelled"
    assert talk.get()["status"] == "idle"
    # When nothing runs there is nothing to cancel, and the session goes on as before.
    assert talk.post("/cancel")["cancelled"] is False
    assert talk.hear(say("Here."))["status"] == "completed"


@whole("AT-SESS-14", "AT-SESS-02", "AT-SESS-01")
def test_a_killed_daemon_forgets_nothing_that_it_had_acknowledged(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    talk, other = Talk(project, model), Talk(project, model)
    project.post("/issues", {"title": "Kept", "body": "b"})
    talk.bind(1)
    other.bind(1)
    done = talk.hear(
        call("kaged.todo", action="set", items=["a"]), call("file.read", path="."), say("Said.")
    )
    entries, runs, made = talk.entries(), talk.runs(), talk.calls()
    rows = daemon.audit("tool.called", project_id=project.id)
    word = fresh()
    play_late(model, word, NEVER_MS, say("Never."))
    cut_off = other.tell(f"{word} acknowledged")
    with sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    base.close()
    daemon.kill()
    daemon.start()
    daemon.load(project)
    assert (talk.entries(), talk.runs(), talk.calls()) == (entries, runs, made)
    assert done["status"] == "completed"
    assert project.get("/issues/1/todos")["markdown"] == "- [ ] a"
    assert talk.get()["issue_bound"] is True
    assert daemon.audit("tool.called", project_id=project.id) == rows
    (run,) = other.runs()
    assert (run["id"], run["status"]) == (cut_off, "interrupted")
    assert run["ended_at"]
    assert other.get()["status"] == "idle"
    assert f"{word} acknowledged" in json.dumps(other.entries())
    assert daemon.post("/audit/verify")["ok"] is True


@whole("AT-SESS-16")
def test_a_changed_project_changes_later_sessions_only(
    project: Project, model: ModelServer
) -> None:
    project.write("secret/a.txt", "hidden\n")
    talk = Talk(project, model)
    before = talk.hear(call("file.read", path="secret/a.txt"), say("ok"))
    assert "hidden" in tool_answers(asked(model, before["word"])[-1])[0]
    project.describe(
        system_prompt="You hinder.",
        cage={"fs": [{"mode": "ro", "path": "./open"}]},
        tools={"file.read": {"enabled": True}},
    )
    project.reload()
    again = talk.hear(call("file.read", path="secret/a.txt"), say("ok"))
    later = Talk(project, model).hear(call("file.read", path="secret/a.txt"), say("ok"))

    def seen(run: dict[str, Any]) -> tuple[str, set[str], str]:
        body = asked(model, run["word"])[-1]
        offered = {one["function"]["name"] for one in body["tools"]}
        return body["messages"][0]["content"], offered, tool_answers(body)[-1]

    prompt, offered, answer = seen(again)
    assert (prompt, offered) == seen(before)[:2]
    assert "hidden" in answer
    prompt, offered, answer = seen(later)
    assert prompt == "You hinder."
    assert "file_write" not in offered
    assert "capability_denied" in answer
    assert "hidden" not in answer


@whole("AT-DSL-20")
def test_a_model_that_nobody_knows_is_reported_when_the_session_is_used(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own(local=model.local_toml("smart-fast"))
    daemon.start()
    project = daemon.load(Project(tmp_path / "p", model="smart-fast"))
    assert Talk(project, model).hear(say("Fast."))["status"] == "completed"
    project.describe(model="nobody")
    project.reload()
    session = project.post("/sessions", {})["id"]
    path = f"/projects/{project.id}/sessions/{session}/message"
    refused = daemon.error("POST", path, {"text": "Hello?"})
    assert "nobody" in refused["message"]
    assert refused["code"] == "model_unknown"
    assert project.get(f"/sessions/{session}/runs")["items"] == []


@whole("AT-SESS-10")
@pytest.mark.parametrize("kind", ["ask", "form", "checkpoint"])
def test_a_pause_lets_go_of_the_run_and_the_answer_starts_another(
    project: Project, talk: Talk, kind: str
) -> None:
    params: dict[str, Any] = {"message": "May I?"}
    given: dict[str, Any] = {"decision": "approve"}
    if kind == "ask":
        params = {"questions": [{"id": "q", "title": "Which?", "options": []}]}
        given = {"answers": {"q": "this"}}
    elif kind == "form":
        params = {"fields": [{"name": "q", "label": "Which?", "type": "text"}]}
        given = {"answers": {"q": "this"}}
    mark = fresh("background")
    run = talk.hear(
        call("shell.bash", command=f"sh -c '{until('never')}' {mark} & echo begun"),
        call(f"kaged.{kind}", **params),
        say("On."),
    )
    assert run["status"] == "paused"
    assert talk.get()["active_run"] is None
    place = "" if kind == "checkpoint" else "interaction:"
    asked_id = talk.waiting()["request_id"]
    assert (talk.get()["status"], talk.get()["detail"]) == (
        "checkpoint",
        f"{place}{kind}:{asked_id}",
    )
    wait_for(lambda: not processes(mark), "the end of what the run had started", 10)
    after = talk.answer(talk.waiting()["request_id"], **given)
    assert (after["status"], after["cause"]) == ("completed", "answer")
    first, *_, last = asked(talk.model, run["word"])
    assert last["messages"][: len(first["messages"])] == first["messages"]
    assert (given.get("decision") or "this") in tool_answers(last)[-1]
    assert (talk.get()["status"], talk.get()["detail"]) == ("idle", None)
    assert [one["id"] for one in talk.runs()] == [run["id"], after["id"]]
    assert [one["status"] for one in talk.runs()] == ["paused", "completed"]
