"""Agents that ask the operator: runs pause, sessions wait, answers go on in a new run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, calls, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, listening, tool_answers

QUESTIONS: list[Any] = [
    {"id": "colour", "title": "Which colour?", "options": ["red", "blue"]},
    {"id": "sizes", "title": "Which sizes?", "options": ["s", "m", "l"], "multiple": True},
    {"id": "why", "title": "Why?", "options": [], "description": "In a sentence."},
]
ANSWERS: dict[str, Any] = {"colour": "red", "sizes": ["s", "l"], "why": "it is nice"}
FIELDS: list[dict[str, Any]] = [
    {"name": "title", "label": "Title", "type": "text", "required": True},
    {"name": "story", "label": "Story", "type": "multiline"},
    {"name": "count", "label": "Count", "type": "number"},
    {"name": "urgent", "label": "Urgent?", "type": "boolean"},
    {"name": "size", "label": "Size", "type": "select", "options": ["s", "m"]},
    {"name": "logo", "label": "Logo", "type": "file", "required": True},
]
CHILD: dict[str, Any] = {
    "model": "default",
    "system_prompt": "You code.",
    "cage": {"fs": [{"mode": "rw", "path": "."}]},
    "tools": {"file.*": {"enabled": True}, "kaged.checkpoint": {"enabled": True}},
}


def upload(name: str, content: bytes) -> dict[str, str]:
    return {"name": name, "content_base64": base64.b64encode(content).decode()}


def problems(talk: Talk, request_id: str, **given: Any) -> dict[str, str]:
    """Send an answer that does not fit; returns what is wrong, by field."""
    path = f"/projects/{talk.project.id}/interactions/{request_id}/answer"
    refused = talk.project.daemon.error("POST", path, given)
    assert refused["code"] == "interaction_answer_invalid"
    assert talk.get()["status"] == "checkpoint"
    return {one["field"]: one["problem"] for one in refused["data"]["problems"]}


@whole("AT-ASK-01", "AT-ASK-02", "AT-ASK-12", "AT-AMB-42")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (
            "kaged.ask",
            [
                {"questions": []},
                {},
                {"questions": [QUESTIONS[0], {**QUESTIONS[1], "id": "colour"}]},
                {"questions": [{"title": "t", "options": []}]},
                {"questions": [{"id": "a", "options": []}]},
                {"questions": [{"id": "a", "title": "t"}]},
                {"questions": [{"id": " ", "title": "t", "options": []}]},
                {"questions": [{"id": "a", "title": "t", "options": [1]}]},
                {"questions": [{"id": "a", "title": "t", "options": [], "multiple": 1}]},
                {"questions": [{"id": "a", "title": "t", "options": [], "x": 1}]},
            ],
        ),
        (
            "kaged.form",
            [
                {"fields": []},
                {},
                {"fields": [FIELDS[0], FIELDS[0]]},
                {"fields": [{"name": "a", "label": "A", "type": "colour"}]},
                {"fields": [{"name": "a", "label": "A", "type": "select"}]},
                {"fields": [{"name": "a", "label": "A", "type": "text", "options": ["x"]}]},
                {"fields": [{"name": "a", "type": "text"}]},
                {"fields": [{"label": "A", "type": "text"}]},
                {"fields": [{"name": "a", "label": "A", "type": "text", "required": "no"}]},
            ],
        ),
        (
            "kaged.checkpoint",
            [{}, {"message": ""}, {"message": " "}, {"message": "m", "detail": 3}],
        ),
    ],
)
def test_questions_that_make_no_sense_are_refused_and_pause_nothing(
    project: Project, talk: Talk, name: str, wrong: list[dict[str, Any]]
) -> None:
    made = talk.use(*((name, params) for params in wrong))
    assert [one["error"]["code"] for one in made] == ["invalid_params"] * len(wrong)
    assert talk.get()["status"] == "idle"
    assert project.get("/interactions")["items"] == []


@whole("AT-ASK-03", "AT-ASK-12", "AT-AUD-30")
@pytest.mark.parametrize(
    ("kind", "params", "payload"),
    [
        (
            "ask",
            {"questions": [QUESTIONS[0]]},
            {"questions": [{**QUESTIONS[0], "description": "", "multiple": False}]},
        ),
        (
            "form",
            {"fields": [FIELDS[1]]},
            {"fields": [{**FIELDS[1], "description": "", "required": False, "options": []}]},
        ),
    ],
)
def test_asking_ends_the_run_and_lets_the_session_wait(
    daemon: Daemon, project: Project, talk: Talk, kind: str, params: Any, payload: Any
) -> None:
    with listening(daemon, "attention", f"session:{talk.id}") as stream:
        run = talk.hear(call(f"kaged.{kind}", **params), say("never said"))
        heard = stream.until(lambda one: one["name"] == "run.ended")
        told = [one["data"] for one in heard if one["topic"] == "attention"]
    assert run["status"] == "paused"
    state = talk.get()
    assert state["status"] == "checkpoint"
    assert state["detail"].startswith("interaction:")
    mine = [one for one in told if one.get("project_id") == project.id]
    assert len(mine) == 1, told
    assert mine[0]["payload"] == payload
    (made,) = talk.calls()
    signal = made["result"]["interaction_requested"]
    assert set(signal) == {"kind", "request_id", "payload"}
    assert (signal["kind"], signal["payload"]) == (kind, payload)
    assert talk.waiting()["request_id"] == signal["request_id"]
    (row,) = daemon.audit("tool.called", project_id=project.id)
    assert (row["data"]["tool_name"], row["data"]["session_id"]) == (f"kaged.{kind}", talk.id)
    (row,) = daemon.audit("kaged.interaction.requested", project_id=project.id)
    wanted = {"request_id": signal["request_id"], "kind": kind, "session_id": talk.id}
    assert wanted.items() <= row["data"].items()
    # The model is not asked again while nobody has answered.
    exactly(1, lambda: asked(talk.model, run["word"]))


@whole("AT-ASK-04", "AT-SESS-10", "AT-AUD-30")
def test_the_answer_is_the_result_of_the_question_in_a_new_run(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    with listening(daemon, f"session:{talk.id}") as stream:
        run = talk.hear(call("kaged.ask", questions=QUESTIONS), say("Then red."))
        waiting = talk.waiting()
        after = talk.answer(waiting["request_id"], answers=ANSWERS)
        heard = stream.until(
            lambda one: (one["name"], one["data"].get("run_id")) == ("run.ended", after["id"])
        )
    assert after["status"] == "completed"
    assert after["id"] != run["id"]
    assert [one["status"] for one in talk.runs()] == ["paused", "completed"]
    first, second = asked(talk.model, run["word"])
    assert second["messages"][: len(first["messages"])] == first["messages"]
    (answer,) = tool_answers(second)
    assert json.loads(answer)["answers"] == ANSWERS
    assert talk.get()["status"] == "idle"
    kept = project.get(f"/interactions/{waiting['request_id']}")
    assert (kept["status"], kept["answer"]["answers"]) == ("answered", ANSWERS)
    assert kept["answered_by"] == "operator"
    moves = [one["name"] for one in heard if one["name"] in ("run.started", "run.ended")]
    assert moves == ["run.started", "run.ended"] * 2
    (row,) = daemon.audit("kaged.interaction.answered", project_id=project.id)
    wanted = {"request_id": waiting["request_id"], "kind": "ask", "session_id": talk.id}
    assert wanted.items() <= row["data"].items()
    # A second answer to the same question is none, and starts nothing.
    path = f"/projects/{project.id}/interactions/{waiting['request_id']}/answer"
    assert daemon.error("POST", path, {"answers": ANSWERS})["status"] >= 400
    exactly(2, talk.runs)


@whole("AT-ASK-05")
def test_an_answer_that_does_not_fit_changes_nothing(talk: Talk) -> None:
    talk.hear(call("kaged.ask", questions=QUESTIONS), say("Blue then."))
    request_id = talk.waiting()["request_id"]
    assert problems(talk, request_id, answers={**ANSWERS, "colour": ["red", "blue"]}) == {
        "colour": "takes one choice only"
    }
    wrong = {"colour": "green", "sizes": ["s", "s"], "other": 1}
    assert set(problems(talk, request_id, answers=wrong)) == {"colour", "sizes", "why", "other"}
    for value in (1, True, None, "", [], [1], {"a": 1}, [""]):
        assert "why" in problems(talk, request_id, answers={**ANSWERS, "why": value}), value
    assert "decision" in problems(talk, request_id, answers=ANSWERS, decision="approve")
    assert len(talk.runs()) == 1
    after = talk.answer(request_id, answers={**ANSWERS, "colour": ["blue"]})
    assert after["status"] == "completed"
    assert talk.project.get(f"/interactions/{request_id}")["answer"]["answers"]["colour"] == "blue"


@whole("AT-ASK-02", "AT-ASK-05", "AT-ASK-06")
def test_the_fields_of_a_form_are_checked_by_type_and_files_land_in_their_folder(
    project: Project, talk: Talk
) -> None:
    run = talk.hear(call("kaged.form", fields=FIELDS), say("Thanks."))
    request_id = talk.waiting()["request_id"]
    logo = {"logo": upload("../x", b"png")}
    assert set(problems(talk, request_id, answers={})) == {"title", "logo"}
    for field, wrong in (
        ("title", 1),
        ("title", "two\nlines"),
        ("story", ["x"]),
        ("count", "5"),
        ("count", True),
        ("urgent", "yes"),
        ("urgent", 1),
        ("size", "xl"),
        ("logo", "a path"),
        ("unknown", 1),
    ):
        found = problems(talk, request_id, answers={"title": "t", field: wrong}, files=logo)
        assert field in found, (field, wrong)
    place = project.root / ".kaged" / "tmp"
    assert not place.exists() or list(place.iterdir()) == []
    given = {"title": "t", "count": 2.5, "urgent": False, "size": "m", "story": "a\nb"}
    assert talk.answer(request_id, answers=given, files=logo)["status"] == "completed"
    path = f"config:/tmp/{request_id}/x"
    (answer,) = tool_answers(asked(talk.model, run["word"])[-1])
    # With text of several lines the result is no JSON for the model; the answers are a line of it.
    (line,) = [one for one in answer.split("\n") if one.startswith("answers: ")]
    assert json.loads(line.removeprefix("answers: ")) == {**given, "logo": path}
    assert (place / request_id / "x").read_bytes() == b"png"
    assert not (place / "x").exists()
    assert not (project.root / ".kaged" / "x").exists()


@whole("AT-ASK-06")
def test_names_of_uploads_are_made_harmless_and_told_apart(project: Project, talk: Talk) -> None:
    names = ["../x", "/etc/passwd", "..", "a\\b\0c.txt", "x", "é" * 300 + ".png"]
    fields = [{"name": f"f{n}", "label": "F", "type": "file"} for n in range(len(names))]
    run = talk.hear(call("kaged.form", fields=fields), say("Thanks."))
    request_id = talk.waiting()["request_id"]
    files = {f"f{n}": upload(name, str(n).encode()) for n, name in enumerate(names)}
    talk.answer(request_id, answers={}, files=files)
    (answer,) = tool_answers(asked(talk.model, run["word"])[-1])
    answers = json.loads(answer)["answers"]
    place = project.root / ".kaged" / "tmp" / request_id
    for number in range(len(names)):
        assert answers[f"f{number}"].startswith(f"config:/tmp/{request_id}/")
        file = project.root / ".kaged" / answers[f"f{number}"].removeprefix("config:/")
        assert file.resolve().parent == place.resolve()
        assert file.read_bytes() == str(number).encode()
    assert len(list(place.iterdir())) == len(names)
    # Of what another system calls a path the last part counts, as of our own.
    shown = [answers[f"f{number}"].rpartition("/")[2] for number in range(5)]
    assert shown == ["x", "passwd", "file", "b_c.txt", "x-2"]


@whole("AT-ASK-07")
def test_a_new_project_keeps_its_scratch_files_out_of_git(daemon: Daemon, tmp_path: Path) -> None:
    for name, before in (("new", None), ("old", "mine\n")):
        root = tmp_path / name
        root.mkdir()
        if before is not None:
            (root / ".kaged").mkdir()
            (root / ".kaged" / ".gitignore").write_text(before, encoding="utf-8")
        daemon.cli("project", "init", str(root))
        assert (root / ".kaged" / "tmp").is_dir()
        ignored = (root / ".kaged" / ".gitignore").read_text(encoding="utf-8")
        if before is None:
            assert {"tmp/", "*.local.*"} <= set(ignored.splitlines())
        else:
            assert ignored == before


@whole("AT-ASK-08", "AT-ASK-09", "AT-AMB-05", "AT-AUD-30")
@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"decision": "approve"}, "approve"),
        ({"decision": "reject", "text": "No, thanks."}, "No, thanks."),
        ({"decision": "reply", "text": "Rather the other one."}, "Rather the other one."),
    ],
)
def test_a_subagent_at_a_checkpoint_pauses_the_session_and_goes_on_with_the_decision(
    daemon: Daemon, project: Project, model: ModelServer, given: dict[str, str], word: str
) -> None:
    project.describe(subagents={"coder": CHILD})
    project.reload()
    talk = Talk(project, model)
    child = fresh("child")
    model.play(
        child,
        call("kaged.checkpoint", message="May I?", detail="all of it"),
        say("I did as told."),
    )
    run = talk.hear(call("agent-coder", message=f"{child} careful"), say("Good."))
    assert run["status"] == "paused"
    assert talk.get()["status"] == "checkpoint"
    waiting = talk.waiting()
    assert (waiting["kind"], waiting["caller"]) == ("checkpoint", "primary.subagents.coder")
    assert waiting["payload"] == {"message": "May I?", "detail": "all of it"}
    after = talk.answer(waiting["request_id"], **given)
    assert after["status"] == "completed"
    first, second = asked(model, child)
    assert second["messages"][: len(first["messages"])] == first["messages"]
    (decision,) = tool_answers(second)
    assert word in decision
    assert given["decision"] in decision
    assert tool_answers(asked(model, run["word"])[-1]) == ["I did as told."]
    kinds = daemon.audit("kaged.interaction.*", project_id=project.id)
    assert [one["data"]["kind"] for one in kinds] == ["checkpoint"] * 2


@whole("AT-ASK-08", "AT-ASK-09")
def test_the_root_at_a_checkpoint_waits_for_the_command_line(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    run = talk.hear(call("kaged.checkpoint", message="Shall I?"), say("Fine."))
    waiting = talk.waiting()
    assert waiting["payload"]["message"] == "Shall I?"
    assert "decision" in problems(talk, waiting["request_id"])
    assert "text" in problems(talk, waiting["request_id"], decision="reply", text=" ")
    daemon.cli("answer", waiting["request_id"], "--reject", "-p", project.id)
    wait_for(lambda: talk.get()["status"] == "idle")
    assert "reject" in tool_answers(asked(talk.model, run["word"])[-1])[0]


@whole("AT-ASK-10")
def test_one_question_at_a_time_and_nothing_else_meanwhile(
    daemon: Daemon, project: Project, talk: Talk
) -> None:
    run = talk.hear(
        calls(
            ("file.create", {"path": "before.txt", "content": "x"}),
            ("kaged.ask", {"questions": [QUESTIONS[2]]}),
            ("kaged.ask", {"questions": [QUESTIONS[0]]}),
            ("file.create", {"path": "after.txt", "content": "x"}),
        ),
        say("ok"),
    )
    assert run["status"] == "paused"
    exactly(1, lambda: project.get("/interactions")["items"])
    path = f"/projects/{project.id}/sessions/{talk.id}"
    for way in ("message", "resume"):
        refused = daemon.error("POST", f"{path}/{way}", {"text": "Hello?"})
        assert refused["code"] == "interaction_pending", way
    assert not (project.root / "after.txt").exists()
    exactly(1, lambda: asked(talk.model, run["word"]))
    talk.answer(talk.waiting()["request_id"], answers={"why": "so"})
    assert (project.root / "before.txt").exists()
    assert not (project.root / "after.txt").exists()
    first, second, third, fourth = tool_answers(asked(talk.model, run["word"])[-1])
    assert "created" in first
    assert json.loads(second)["answers"] == {"why": "so"}
    assert "interaction_pending" in third
    assert "session_paused" in fourth


@whole("AT-ASK-12", "AT-ASK-01", "AT-ASK-02")
@pytest.mark.parametrize(
    ("tool", "params"),
    [("kaged.ask", {"questions": QUESTIONS}), ("kaged.form", {"fields": FIELDS})],
)
def test_a_subagent_may_not_ask(
    daemon: Daemon, project: Project, model: ModelServer, tool: str, params: dict[str, Any]
) -> None:
    project.describe(subagents={"coder": CHILD})
    project.reload()
    talk = Talk(project, model)
    child = fresh("child")
    model.play(child, call(tool, **params), say("I may not."))
    run = talk.hear(call("agent-coder", message=child), say("ok"))
    assert run["status"] == "completed"
    assert "principal_scope_violation" in tool_answers(asked(model, child)[-1])[0]
    assert project.get("/interactions")["items"] == []
    (row,) = daemon.audit("tool.denied", project_id=project.id)
    assert (row["data"]["tool_name"], row["data"]["caller"]) == (tool, "primary.subagents.coder")


@whole("AT-ASK-11")
def test_a_question_outlives_the_daemon(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    stopped, killed = Talk(project, model), Talk(project, model)
    words = [
        talk.hear(call("kaged.ask", questions=QUESTIONS), say("Then red."))["word"]
        for talk in (stopped, killed)
    ]
    daemon.restart()
    daemon.load(project)
    first, second = stopped.waiting(), killed.waiting()
    assert first["payload"]["questions"][0]["title"] == "Which colour?"
    assert stopped.get()["status"] == "checkpoint"
    assert "colour" in problems(stopped, first["request_id"], answers={**ANSWERS, "colour": "x"})
    assert stopped.answer(first["request_id"], answers=ANSWERS)["status"] == "completed"
    daemon.kill()
    daemon.start()
    daemon.load(project)
    assert killed.waiting() == second
    assert killed.answer(second["request_id"], answers=ANSWERS)["status"] == "completed"
    for word in words:
        (answer,) = tool_answers(asked(model, word)[-1])
        assert json.loads(answer)["answers"] == ANSWERS
        assert len(asked(model, word)) == 2
