"""The reminder of open todos in what the model is sent, and todos that subagents propose."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, calls, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, tool_answers

CHILD: dict[str, Any] = {
    "model": "default",
    "system_prompt": "You code.",
    "cage": {"fs": [{"mode": "rw", "path": "."}]},
    "tools": {"file.*": {"enabled": True}},
}


def reminders(body: dict[str, Any]) -> list[str]:
    """Return the system messages of a request behind the prompt."""
    return [one["content"] for one in body["messages"][1:] if one["role"] == "system"]


def listed(reminder: str) -> list[str]:
    return [line for line in reminder.splitlines() if line.startswith("- [")]


@pytest.fixture
def plan(project: Project, talk: Talk) -> Any:
    """Return a writer of the operator's plan for the session's issue."""
    talk.bind(project.post("/issues", {"title": "Work", "body": "To do."})["number"])

    def write(*items: str, **more: Any) -> None:
        project.post("/issues/1/todos", {"action": "set", "items": list(items), **more})

    return write


def origins(daemon: Daemon, project: Project) -> dict[str, tuple[str, str, str | None]]:
    """Return who proposed each todo of the project, its kind and its phase."""
    base = sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True)
    found = base.execute(
        "SELECT t.content, t.origin_agent, t.kind, t.phase FROM issue_todos t"
        " JOIN issues i ON i.id = t.issue_id WHERE i.project_id = ?",
        (project.id,),
    ).fetchall()
    base.close()
    return {row[0]: (row[1], row[2], row[3]) for row in found}


@whole("AT-TODO-23", "AT-SESS-15", "AT-TODO-25")
def test_open_todos_are_shown_near_the_end_and_stored_nowhere(
    project: Project, talk: Talk, plan: Any
) -> None:
    plan("write it", "test it", "done with it")
    project.post("/issues/1/todos", {"action": "done", "content": "done with it"})
    run = talk.hear(call("file.read", path="."), say("ok"))
    first, second = asked(talk.model, run["word"])
    for body in (first, second):
        (reminder,) = reminders(body)
        assert listed(reminder) == ["- [ ] write it", "- [ ] test it"]
        assert "system" in [one["role"] for one in body["messages"][-2:]]
    assert first["messages"][0] == {"role": "system", "content": "You help."}
    assert "write it" not in json.dumps(talk.entries())
    assert (
        "write it"
        not in project.daemon.client.get(
            f"/api/v1/projects/{project.id}/sessions/{talk.id}/export"
        ).text
    )
    # What was shown once is not sent again as if it had been said.
    again = talk.hear(say("ok"))
    (body,) = asked(talk.model, again["word"])
    assert len(reminders(body)) == 1


@whole("AT-TODO-24")
@pytest.mark.parametrize("current", ["item 7", "item 1", None])
def test_at_most_five_are_shown_with_the_one_in_progress(
    project: Project, talk: Talk, plan: Any, current: str | None
) -> None:
    plan(*(f"item {number}" for number in range(1, 9)))
    if current:
        project.post("/issues/1/todos", {"action": "start", "content": current})
    run = talk.hear(say("ok"))
    (reminder,) = reminders(asked(talk.model, run["word"])[0])
    lines = listed(reminder)
    assert len(lines) == 5
    assert [one for one in lines if ">" in one] == ([f"- [>] {current}"] if current else [])


@whole("AT-TODO-25", "AT-TODO-26")
def test_it_is_built_anew_for_each_step_and_left_out_where_it_says_nothing_new(
    project: Project, talk: Talk, plan: Any
) -> None:
    plan("one", "two")
    peek = call("file.read", path=".")
    run = talk.hear(
        peek,
        call("kaged.todo", action="done", content="one"),
        peek,
        calls(
            ("kaged.todo", {"action": "done", "content": "two"}),
            ("file.read", {"path": "."}),
        ),
        peek,
        say("ok"),
    )
    seen = [[listed(one) for one in reminders(body)] for body in asked(talk.model, run["word"])]
    both = [["- [ ] one", "- [ ] two"]]
    assert seen == [both, both, [], [["- [ ] two"]], [], []]
    plan("three")
    talk.bind(None)
    run = talk.hear(say("ok"))
    assert reminders(asked(talk.model, run["word"])[0]) == []
    talk.bind(1)
    run = talk.hear(say("ok"))
    assert [listed(one) for one in reminders(asked(talk.model, run["word"])[0])] == [
        ["- [ ] three"]
    ]


@whole("AT-TODO-27", "AT-TODO-30")
def test_a_subagent_has_no_list_and_is_told_nothing_of_it(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer, plan: Any
) -> None:
    project.describe(subagents={"coder": CHILD})
    project.reload()
    plan("secret plan")
    child = Talk(project, model)
    child.bind(1)
    word = fresh("child")
    model.play(
        word,
        call("kaged.todo", action="set", items=["mine"]),
        call("file.read", path="."),
        say("- [ ] a checklist of my own"),
    )
    run = child.hear(call("agent-coder", message=f"{word} do it"), say("ok"))
    bodies = asked(model, word)
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "You code."},
        {"role": "user", "content": f"{word} do it"},
    ]
    assert "kaged_todo" not in [one["function"]["name"] for one in bodies[0]["tools"]]
    assert "principal_scope_violation" in tool_answers(bodies[1])[0]
    assert all(reminders(body) == [] for body in bodies)
    assert "secret plan" not in json.dumps(bodies)
    assert "01M" not in json.dumps([body["messages"][:2] for body in bodies]), "an id of the issue"
    assert tool_answers(asked(model, run["word"])[-1]) == ["- [ ] a checklist of my own"]
    assert project.get("/issues/1/todos")["markdown"] == "- [ ] secret plan"
    assert list(origins(daemon, project)) == ["secret plan"]
    refused = project.fail("kaged.todo", "primary.subagents.coder", action="view")
    assert refused["code"] == "principal_scope_violation"


@whole("AT-TODO-28", "AT-AMB-28")
def test_what_the_root_takes_over_is_marked_as_the_subagents_own(
    daemon: Daemon, project: Project, talk: Talk, plan: Any
) -> None:
    deep = "primary.subagents.a.subagents.b"
    project.describe(
        subagents={"coder": CHILD, "a": {**CHILD, "subagents": {"b": CHILD}}},
    )
    project.reload()
    talk = Talk(project, talk.model)
    talk.bind(1)
    talk.use(
        ("kaged.todo", {"action": "set", "items": ["set"], "origin_agent": deep}),
        ("kaged.todo", {"action": "add", "items": ["mine"]}),
        (
            "kaged.todo",
            {"action": "add", "items": ["theirs"], "origin_agent": "primary.subagents.coder"},
        ),
    )
    assert {name: row[0] for name, row in origins(daemon, project).items()} == {
        "set": deep, "mine": "primary", "theirs": "primary.subagents.coder",
    }  # fmt: skip
    for wrong in ("coder", "", "primary.", "operator"):
        params = {"action": "add", "items": ["x"], "origin_agent": wrong}
        assert talk.refusal("kaged.todo", **params)["code"] == "invalid_params", wrong


@whole("AT-TODO-29", "AT-TODO-32", "AT-DSL-17")
@pytest.mark.parametrize(
    ("review", "said", "taken"),
    [
        ("auto", {"proposed_todos": {"items": ["x", "y"], "phase": "p"}}, True),
        ("auto", {"proposed_todos": {"items": ["x", "y"]}, "more": 1}, True),
        ("review", {"proposed_todos": {"items": ["x", "y"]}}, False),
        (None, {"proposed_todos": {"items": ["x", "y"]}}, False),
        ("auto", "- [ ] x\n- [ ] y", False),
        ("auto", {"items": ["x", "y"]}, False),
        ("auto", {"proposed_todos": ["x", "y"]}, False),
        ("auto", {"proposed_todos": {"items": ["x", 1]}}, False),
    ],
)
def test_a_proposal_is_known_by_its_form_and_taken_over_where_the_project_says_so(
    daemon: Daemon,
    project: Project,
    model: ModelServer,
    plan: Any,
    review: str | None,
    said: Any,
    taken: bool,
) -> None:
    own = {} if review is None else {"todo_review": review}
    project.describe(subagents={"coder": {**CHILD, **own}})
    project.reload()
    plan("mine")
    talk = Talk(project, model)
    talk.bind(1)
    word = fresh("child")
    text = said if isinstance(said, str) else json.dumps(said)
    model.play(word, say(text))
    run = talk.hear(call("agent-coder", message=word), say("ok"))
    rows = origins(daemon, project)
    assert rows.pop("mine")[1] == "step"
    phase = said["proposed_todos"].get("phase") if taken and isinstance(said, dict) else None
    assert rows == (
        dict.fromkeys(("x", "y"), ("primary.subagents.coder", "step", phase)) if taken else {}
    )
    # Taken over or not, the root reads what the child said.
    (answer,) = tool_answers(asked(model, run["word"])[-1])
    assert answer == text or json.loads(answer) == said
    events = daemon.audit("kaged.todo.added", project_id=project.id)
    assert len(events) == int(taken)
