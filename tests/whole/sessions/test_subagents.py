"""Subagents in a running daemon: what they see, what they return, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, calls, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, listening, play_late, tool_answers

CHILD: dict[str, Any] = {
    "model": "default",
    "system_prompt": "You code.",
    "description": "Writes code under src.",
    "cage": "disabled",
    "tools": {
        "file.*": {"enabled": True},
        "shell.*": {"enabled": True},
        "kaged.checkpoint": {"enabled": True},
    },
}


def until(file: str) -> str:
    return f"while [ ! -e {file} ]; do sleep 0.02; done"


def family(project: Project, model: ModelServer, **subagents: Any) -> Talk:
    """Return a session of a project with these subagents."""
    project.describe(cage="disabled", subagents=subagents)
    project.reload()
    return Talk(project, model)


def open_calls(talk: Talk) -> list[str]:
    """Return the calls of which the record does not say how they ended."""
    return [
        one["tool_name"]
        for one in talk.calls()
        if one["finished_at"] is None or one["status"] == "running"
    ]


def unanswered(talk: Talk) -> list[str]:
    """Return the calls that stand in what the session shows without a result, of any agent."""
    asked_for: dict[str, str] = {}
    for entry in talk.entries():
        for block in entry["content"].get("content", []) if entry["kind"] == "message" else []:
            if block["type"] == "tool_call":
                asked_for[block["request_id"]] = block["name"]
            elif block["type"] == "tool_result_block":
                asked_for.pop(block["request_id"], None)
    return list(asked_for.values())


@whole("AT-SESS-07", "AT-SESS-09", "AT-DSL-03")
def test_a_child_works_with_its_own_prompt_tools_and_cage_and_sees_only_the_message(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("src/a.py", "1\n")
    project.write("other/b.py", "2\n")
    inner = {**CHILD, "system_prompt": "You check.", "description": "Checks."}
    cage = {"fs": [{"mode": "ro", "path": "./src"}]}
    coder = {**CHILD, "cage": cage, "subagents": {"checker": inner}}
    talk = family(project, model, coder=coder)
    word, deep = fresh("coder"), fresh("checker")
    model.play(
        word,
        call("file.read", path="src/a.py"),
        call("file.read", path="other/b.py"),
        call("agent-checker", message=f"{deep} check it"),
        say("Coded."),
    )
    model.play(deep, call("file.read", path="other/b.py"), say("Checked."))
    run = talk.hear(
        call("agent-coder", message=f"{word} do it", context={"ticket": 7}), say("All.")
    )
    (first, *_, last), (top, *_, after) = asked(model, word), asked(model, run["word"])
    said = first["messages"][1]["content"]
    assert [one["role"] for one in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "You code."
    assert said.startswith(f"{word} do it")
    assert "7" in said
    assert run["word"] not in str(first["messages"])
    offered = {one["function"]["name"]: one["function"] for one in top["tools"]}
    assert offered["agent-coder"]["description"].startswith("Writes code under src.")
    assert "agent-checker" not in offered
    own = {one["function"]["name"] for one in first["tools"]}
    assert "agent-checker" in own
    assert "edit_text" not in own
    read, denied, checked = tool_answers(last)
    assert "1: 1" in read
    assert "capability_denied" in denied
    assert checked == "Checked."
    assert asked(model, deep)[0]["messages"][0]["content"] == "You check."
    assert tool_answers(after) == ["Coded."]
    assert [(one["caller"], one["tool_name"]) for one in talk.calls()] == [
        ("primary", "agent-coder"),
        ("primary.subagents.coder", "file.read"),
        ("primary.subagents.coder", "file.read"),
        ("primary.subagents.coder", "agent-checker"),
        ("primary.subagents.coder.subagents.checker", "file.read"),
    ]
    # Root-owned: one session with one run, whoever works in it.
    assert {one["run_id"] for one in talk.calls()} == {run["id"]}
    assert len(talk.runs()) == 1
    assert [one["id"] for one in project.get("/sessions")["items"]] == [talk.id]


@whole("AT-SESS-08")
def test_what_goes_wrong_with_a_child_is_an_error_of_the_call(
    project: Project, model: ModelServer
) -> None:
    talk = family(
        project,
        model,
        limited={**CHILD, "max_steps": 1},
        broken=CHILD,
        nobody={**CHILD, "model": "nobody"},
    )
    limited, broken = fresh("limited"), fresh("broken")
    model.play(limited, call("file.read", path="."), say("Never."))
    model.play(broken, {"error": {"message": "the key is wrong"}, "status": 401})
    run = talk.hear(
        call("agent-limited", message=limited),
        call("agent-broken", message=broken),
        call("agent-nobody", message="hello"),
        call("agent-broken"),
        call("agent-broken", message="x", context="not an object"),
        call("agent-broken", message=7),
        say("I go on."),
    )
    assert run["status"] == "completed"
    steps, key, alias, *params = tool_answers(asked(model, run["word"])[-1])
    assert "step_limit_reached" in steps
    assert "error" in key
    assert "nobody" in alias
    assert all("invalid_params" in one for one in params)
    made = [one for one in talk.calls() if one["tool_name"].startswith("agent-")]
    assert [one["status"] for one in made] == ["failed"] * 6
    exactly(1, lambda: asked(model, limited))


@whole("AT-SESS-07")
def test_a_structured_answer_of_a_child_is_a_structured_result(
    project: Project, model: ModelServer
) -> None:
    talk = family(project, model, coder=CHILD)
    word = fresh("coder")
    model.play(word, say('{"files": ["a", "b"], "ok": true}'))
    (made,) = talk.use(("agent-coder", {"message": word}))[:1]
    assert made["result"] == {"files": ["a", "b"], "ok": True}


@whole("AT-SESS-06", "AT-SESS-04")
def test_calls_of_one_step_run_together_and_answer_in_order(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    talk = family(project, model, a=CHILD, b=CHILD)
    first, second = fresh("a"), fresh("b")
    # Each waits until the other has started, and the one that was asked for first ends last.
    waits = f"touch one; {until('two')}; {until('over')}"
    model.play(first, call("shell.bash", command=waits), say("First."))
    model.play(second, call("shell.bash", command=f"touch two; {until('one')}"), say("Second."))
    word = fresh()
    both = calls(("agent-a", {"message": first}), ("agent-b", {"message": second}))
    model.play(word, both, say("Both."))
    with listening(daemon, f"session:{talk.id}") as stream:
        run_id = talk.tell(word)
        wait_for(lambda: [one for one in talk.calls() if one["result"] == "Second."])
        project.write("over", "")
        assert talk.end(run_id)["status"] == "completed"
        heard = stream.until(lambda one: one["name"] == "run.ended")
    assert tool_answers(asked(model, word)[-1]) == ["First.", "Second."]
    told = [
        (one["name"], one["data"]["tool_name"])
        for one in heard
        if one["name"] in ("tool.started", "tool.finished")
        and one["data"]["tool_name"].startswith("agent-")
    ]
    assert told == [
        ("tool.started", "agent-a"),
        ("tool.started", "agent-b"),
        ("tool.finished", "agent-b"),
        ("tool.finished", "agent-a"),
    ]


@whole("AT-SESS-18", "AT-SESS-13", "AT-SESS-03")
def test_cancelling_ends_children_and_leaves_no_call_open(
    project: Project, model: ModelServer
) -> None:
    talk = family(project, model, a=CHILD, b=CHILD)
    first, second = fresh("a"), fresh("b")
    model.play(first, call("shell.bash", command=f"touch begun; {until('never')}; touch late"))
    play_late(model, second, 60_000, say("Never."))
    word = fresh()
    model.play(
        word, calls(("agent-a", {"message": first}), ("agent-b", {"message": second})), say("No.")
    )
    run_id = talk.tell(word)
    wait_for(lambda: (project.root / "begun").exists() and asked(model, second))
    talk.post("/cancel")
    assert talk.end(run_id)["status"] == "cancelled"
    assert open_calls(talk) == []
    assert unanswered(talk) == []
    assert [(one["tool_name"], one["status"]) for one in talk.calls()] == [
        ("agent-a", "cancelled"), ("agent-b", "cancelled"), ("shell.bash", "cancelled"),
    ]  # fmt: skip
    project.write("never", "")
    # The model is asked again only when a person says something, and learns how both calls ended.
    exactly(1, lambda: asked(model, word))
    after = talk.hear(say("So be it."))
    answers = tool_answers(asked(model, after["word"])[0])
    assert len(answers) == 2
    assert all("cancelled" in one for one in answers)
    assert not (project.root / "late").exists()


@whole("AT-ASK-10", "AT-SESS-10", "AT-SESS-03")
@pytest.mark.parametrize("sibling", ["in a command", "in a model call"])
def test_a_sibling_stops_when_the_session_begins_to_wait_and_no_call_stays_open(
    project: Project, model: ModelServer, sibling: str
) -> None:
    talk = family(project, model, a=CHILD, b=CHILD)
    first, second = fresh("a"), fresh("b")
    create = call("file.create", path="late.txt", content="x")
    model.play(
        first,
        call("shell.bash", command=until("begun")),
        call("kaged.checkpoint", message="May I?"),
        say("A done."),
    )
    if sibling == "in a command":
        command = f"touch begun; {until('go')}"
        model.play(second, call("shell.bash", command=command), create, say("B done."))
    else:
        play_late(model, second, 1_500, create, say("B done."))
    word = fresh()
    both = calls(("agent-a", {"message": first}), ("agent-b", {"message": second}))
    model.play(word, both, say("Both."))
    run_id = talk.tell(word)
    if sibling == "in a model call":
        wait_for(lambda: asked(model, second))
        project.write("begun", "")
    question = talk.waiting()
    project.write("go", "")
    assert talk.end(run_id)["status"] == "paused"
    assert open_calls(talk) == []
    # What waits is the question, and who set the two children to work; nothing else.
    assert sorted(unanswered(talk)) == ["agent-a", "agent-b", "kaged.checkpoint"]
    # While the session waits nothing of it is done, by whichever agent.
    count = len(asked(model, second))
    exactly(count, lambda: asked(model, second))
    assert not (project.root / "late.txt").exists()
    after = talk.answer(question["request_id"], decision="approve")
    assert after["status"] == "completed"
    assert open_calls(talk) == []
    assert unanswered(talk) == []
    assert tool_answers(asked(model, word)[-1]) == ["A done.", "B done."]
    if sibling == "in a command":
        assert (project.root / "late.txt").exists()
    else:
        assert "not made" in tool_answers(asked(model, second)[-1])[-1]


@whole("AT-SESS-10")
def test_a_waiting_session_whose_question_is_withdrawn_goes_on_without_an_answer(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    talk = family(project, model, a=CHILD)
    word = fresh("a")
    model.play(word, call("kaged.checkpoint", message="May I?"), say("Not then."))
    run = talk.hear(call("agent-a", message=word), say("Fine."))
    question = talk.waiting()
    daemon.ask("DELETE", f"/projects/{project.id}/interactions/{question['request_id']}")
    wait_for(lambda: talk.get()["status"] == "idle")
    assert [one["status"] for one in talk.runs()] == ["paused", "completed"]
    assert "error" in tool_answers(asked(model, word)[-1])[0]
    assert tool_answers(asked(model, run["word"])[-1]) == ["Not then."]
    assert open_calls(talk) == []
    assert unanswered(talk) == []


@whole("AT-DSL-07", "AT-AMB-43", "AT-AMB-21")
def test_without_a_cage_the_root_reaches_everything_and_a_child_nothing(
    project: Project, model: ModelServer, tmp_path: Path
) -> None:
    reader = {
        "model": "default",
        "system_prompt": "Read.",
        "tools": {"file.*": {"enabled": True}, "shell.*": {"enabled": True}},
    }
    text = project.root / ".kaged" / "project.yaml"
    project.write("a.txt", "hello\n")
    talk = family(project, model, reader=reader)
    text.write_text(
        text.read_text(encoding="utf-8").replace("  cage: disabled\n", "", 1), encoding="utf-8"
    )
    project.reload()
    talk = Talk(project, model)
    word = fresh("reader")
    model.play(
        word,
        call("file.read", path="a.txt"),
        call("shell.bash", command="cat a.txt"),
        call("file.create", path="b.txt", content="x"),
        say("Nothing."),
    )
    run = talk.hear(call("file.read", path="a.txt"), call("agent-reader", message=word), say("ok"))
    assert all("capability_denied" in one for one in tool_answers(asked(model, word)[-1]))
    assert len(tool_answers(asked(model, word)[-1])) == 3
    assert not (project.root / "b.txt").exists()
    assert "hello" in tool_answers(asked(model, run["word"])[-1])[0]
    # A root with a cage is held to it like anybody.
    project.describe(cage={"fs": [{"mode": "ro", "path": "./src"}]})
    project.reload()
    assert project.fail("file.read", path="a.txt")["code"] == "capability_denied"
