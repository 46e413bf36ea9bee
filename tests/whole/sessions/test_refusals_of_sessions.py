"""What a session refuses, by its code; and what a person does to sessions, on record."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, play_late, tool_answers

MOVES = ("bound", "created", "deleted", "exported", "forked", "imported", "switched")
DEEPEST = 8
NOBODY = "primary.subagents.nobody"


def refusal(project: Project, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Send a request below the project that has to fail; returns status and code."""
    error = project.daemon.error(method, f"/projects/{project.id}{path}", body)
    return error["status"], error["code"]


@pytest.fixture
def spoken(project: Project, model: ModelServer) -> Talk:
    """Return a session in which something was said."""
    talk = Talk(project, model)
    talk.hear(say("Yes."))
    return talk


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/entries?after=7ZZ", None, (404, "entry_not_found")),
        ("POST", "/fork", {"at": "7ZZ"}, (404, "entry_not_found")),
        ("POST", "/fork", {"at": "0"}, (409, "entry_ambiguous")),
        ("POST", "/resume", None, (409, "nothing_to_resume")),
        ("POST", "/message", {"text": "x", "agent": NOBODY}, (404, "agent_not_found")),
        ("POST", "/message", {"text": "x", "model": "nope"}, (422, "model_unknown")),
    ],
)  # fmt: skip
def test_what_a_session_cannot_do_has_a_code_and_changes_nothing(
    project: Project,
    spoken: Talk,
    method: str,
    path: str,
    body: Any,
    expected: tuple[int, str],
) -> None:
    before = (spoken.entries(), len(project.get("/sessions")["items"]))
    assert refusal(project, method, f"/sessions/{spoken.id}{path}", body) == expected
    assert (spoken.entries(), len(project.get("/sessions")["items"])) == before


def test_a_session_without_a_word_has_nothing_to_fork(project: Project) -> None:
    empty = project.post("/sessions", {})["id"]
    assert refusal(project, "POST", f"/sessions/{empty}/fork", {}) == (409, "nothing_to_fork")


def test_a_beginning_that_two_sessions_share_names_neither(project: Project) -> None:
    first = project.post("/sessions", {})["id"]
    assert project.get("/sessions/ses_0")["id"] == first
    project.post("/sessions", {})
    assert refusal(project, "GET", "/sessions/ses_0") == (409, "session_ambiguous")


def test_only_a_whole_export_is_taken_in(project: Project, spoken: Talk) -> None:
    base = f"/api/v1/projects/{project.id}/sessions"
    copy = project.daemon.client.get(f"{base}/{spoken.id}/export").content
    for wrong in (b"", b"nonsense\n", copy[:-20]):
        answer = project.daemon.client.post(f"{base}/import", content=wrong)
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "session_import_invalid"
    assert len(project.get("/sessions")["items"]) == 1
    assert project.daemon.client.post(f"{base}/import", content=copy).status_code == 201


def test_what_a_person_does_to_sessions_is_on_record_once_each(
    daemon: Daemon, project: Project, spoken: Talk
) -> None:
    project.post("/issues", {"title": "t", "body": "b"})
    spoken.bind(1)
    fork = spoken.post("/fork", {})["session"]["id"]
    project.post(f"/sessions/{fork}/switch")
    base = f"/api/v1/projects/{project.id}/sessions"
    copy = daemon.client.get(f"{base}/{spoken.id}/export").content
    imported = daemon.client.post(f"{base}/import", content=copy).json()["session"]["id"]
    daemon.ask("DELETE", f"/projects/{project.id}/sessions/{imported}")

    def rows() -> list[dict[str, Any]]:
        return daemon.audit("kaged.session.*", project_id=project.id)

    found = exactly(len(MOVES), rows, "one row each")
    by_event = {one["event"].rpartition(".")[2]: one["data"] for one in found}
    assert sorted(by_event) == sorted(MOVES)
    assert (by_event["bound"]["session_id"], by_event["bound"]["number"]) == (spoken.id, 1)
    assert (by_event["forked"]["session_id"], by_event["forked"]["parent"]) == (fork, spoken.id)
    assert by_event["switched"]["session_id"] == fork
    assert by_event["deleted"]["session_id"] == by_event["imported"]["session_id"] == imported
    assert by_event["exported"]["session_id"] == spoken.id
    # The names, as an auditor looks for them one by one.
    for name in (
        "kaged.session.bound", "kaged.session.deleted", "kaged.session.exported",
        "kaged.session.forked", "kaged.session.imported", "kaged.session.switched",
    ):  # fmt: skip
        assert len(daemon.audit(name, project_id=project.id)) == 1, name


def test_what_a_person_does_to_todos_is_on_record(daemon: Daemon, project: Project) -> None:
    project.post("/issues", {"title": "t", "body": "b"})
    todos = "/issues/1/todos"
    project.post(todos, {"action": "set", "items": ["dig", "fill"]})
    project.post(todos, {"action": "note", "content": "dig", "text": "deep"})
    project.post(todos, {"action": "drop", "content": "fill"})
    found = exactly(3, lambda: daemon.audit("kaged.todo.*", project_id=project.id))
    assert [one["event"] for one in found] == [
        "kaged.todo.set",
        "kaged.todo.noted",
        "kaged.todo.dropped",
    ]
    assert [one["data"]["caller"] for one in found] == ["operator"] * 3
    assert found[2]["data"]["content"] == "fill"


def test_agents_call_agents_only_so_deep(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    """Eight levels do their work; the ninth is refused, and the one who asked goes on."""
    tree: dict[str, Any] = {}
    for level in range(DEEPEST + 1, 0, -1):
        agent = {"model": "default", "system_prompt": "You help.", "cage": "disabled"}
        tree = {f"a{level}": {**agent, **({"subagents": tree} if tree else {})}}
    project.describe(cage="disabled", subagents=tree)
    project.reload()
    words = [fresh("deep") for _ in range(DEEPEST + 2)]
    for level in range(DEEPEST + 1):
        asks = call(f"agent-a{level + 1}", message=words[level + 1])
        model.play(words[level], asks, say(f"level {level} went on"))
    run = Talk(project, model)
    ended = run.end(run.tell(words[0]))
    assert ended["status"] == "completed", ended
    (answer,) = tool_answers(asked(model, words[DEEPEST])[-1])
    assert "delegation_too_deep" in answer
    assert asked(model, words[DEEPEST + 1]) == []
    (answer,) = tool_answers(asked(model, words[0])[-1])
    assert "level 1 went on" in answer


# -- workflows --------------------------------------------------------------------------------


@pytest.fixture
def working(project: Project) -> Project:
    """Return a project with a workflow that a message starts."""
    project.describe(
        cage="disabled",
        top={"workflows": {"sweep": {"description": "Sweep the yard-{}.".format(fresh("x"))}}},
    )
    project.reload()
    return project


def test_a_workflow_whose_step_fails_says_so(working: Project, model: ModelServer) -> None:
    (workflow,) = working.get("/workflows")["workflows"]
    word = workflow["description"]
    model.play(word)  # no answer at all
    run = working.post("/workflows/sweep/runs", {})["run_id"]

    def over() -> Any:
        found = working.get(f"/runs/{run}")
        return found if found["status"] != "running" else None

    ended = wait_for(over, "the end of the workflow")
    assert ended["status"] == "failed"
    assert "ended as failed" in str(ended["error"])


def test_a_cancelled_workflow_is_on_record_once(
    daemon: Daemon, working: Project, model: ModelServer
) -> None:
    (workflow,) = working.get("/workflows")["workflows"]
    play_late(model, workflow["description"], 60_000, say("Too late."))
    run = working.post("/workflows/sweep/runs", {})["run_id"]
    assert working.post(f"/runs/{run}/cancel")["status"] == "cancelled"
    assert working.post(f"/runs/{run}/cancel")["status"] == "cancelled"
    rows = exactly(2, lambda: daemon.audit("kaged.workflow.cancelled", project_id=working.id))
    assert {one["data"]["run_id"] for one in rows} == {run}


# -- questions --------------------------------------------------------------------------------


def test_a_question_in_the_inbox_takes_one_answer(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    talk = Talk(project, model)
    question = {"id": "c", "title": "Which?", "options": ["a", "b"]}
    talk.hear(call("kaged.ask", questions=[question]), say("Thanks."))
    asked_id = talk.waiting()["request_id"]
    shown = daemon.get(f"/inbox/{asked_id}")
    body = {"digest": shown["digest"], "answer": {"answers": {"c": "a"}}}
    daemon.post(f"/inbox/{asked_id}/answer", body)
    again = daemon.error("POST", f"/inbox/{asked_id}/answer", body)
    assert (again["status"], again["code"]) == (409, "inbox_request_closed")


def test_a_file_that_cannot_be_put_down_leaves_the_question_open(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    talk = Talk(project, model)
    field = {"name": "logo", "label": "Logo", "type": "file", "required": True}
    talk.hear(call("kaged.form", fields=[field]), say("Thanks."))
    asked_id = talk.waiting()["request_id"]
    in_the_way = project.write(".kaged/tmp", "a file")
    logo = {"name": "l.png", "content_base64": base64.b64encode(b"png").decode()}
    path = f"/projects/{project.id}/interactions/{asked_id}/answer"
    refused = daemon.error("POST", path, {"answers": {}, "files": {"logo": logo}})
    assert (refused["status"], refused["code"]) == (409, "upload_refused")
    in_the_way.unlink()
    talk.answer(asked_id, answers={}, files={"logo": logo})
