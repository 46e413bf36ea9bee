"""Todo lists in a running daemon, as a model keeps them: what each action does to the list."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import calls, say
from whole.harness.project import Project
from whole.harness.talk import Talk

TODO = "kaged.todo"
ACTIONS: tuple[dict[str, Any], ...] = (
    {"action": "view"},
    {"action": "set", "items": ["a"]},
    {"action": "add", "items": ["a"]},
    {"action": "start", "content": "a"},
    {"action": "done", "content": "a"},
    {"action": "drop", "content": "a"},
    {"action": "note", "content": "a", "text": "t"},
)


@pytest.fixture
def bound(project: Project, talk: Talk) -> Callable[..., Talk]:
    """Return a maker of the session's list: its issue, with these steps and criteria on it."""

    def make(*steps: str, criteria: tuple[str, ...] = ()) -> Talk:
        number = project.post("/issues", {"title": "Work", "body": "To do."})["number"]
        talk.bind(number)
        path = f"/issues/{number}/todos"
        if steps:
            project.post(path, {"action": "set", "items": list(steps)})
        if criteria:
            body = {"action": "add", "items": list(criteria), "kind": "criterion"}
            project.post(path, body)
        return talk

    return make


def todo(talk: Talk, *wanted: dict[str, Any]) -> list[Any]:
    """Let the agent do these one after another; returns the list after each."""
    made = talk.use(*((TODO, one) for one in wanted))
    assert [one["status"] for one in made] == ["completed"] * len(made), made
    return [one["result"] for one in made]


def errors(talk: Talk, *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Let the agent try these one after another; returns the error of each."""
    made = talk.use(*((TODO, one) for one in wanted))
    assert all(one["error"] for one in made), made
    return [one["error"] for one in made]


def shown(found: Any, *names: str) -> list[Any]:
    return [tuple(one[name] for name in names) for one in found["todos"]]


def stored(daemon: Daemon, project: Project) -> dict[str, dict[str, Any]]:
    """Return the rows of the project's todos, by their text, as the database file has them."""
    with sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True) as base:
        base.row_factory = sqlite3.Row
        found = base.execute(
            "SELECT t.* FROM issue_todos t JOIN issues i ON i.id = t.issue_id"
            " WHERE i.project_id = ?",
            (project.id,),
        ).fetchall()
    base.close()
    return {row["content"]: dict(row) for row in found}


@whole("AT-TODO-01")
def test_the_tool_has_seven_actions_and_never_names_an_issue(
    project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("a")
    run = talk.hear(say("Hello."))
    (body,) = talk.model.asked(run["word"])
    (offered,) = [
        one["function"] for one in body["tools"] if one["function"]["name"] == "kaged_todo"
    ]
    properties = offered["parameters"]["properties"]
    assert set(properties["action"]["enum"]) == {one["action"] for one in ACTIONS}
    assert not {"number", "issue", "issue_id"} & set(properties)
    wrong = ({"action": "fly"}, {}, {"action": "view", "issue": 1}, {"action": "view", "number": 1})
    assert [one["code"] for one in errors(talk, *wrong)] == ["invalid_params"] * 4
    talk.bind(project.post("/issues", {"title": "Another", "body": "b"})["number"])
    assert todo(talk, {"action": "view"})[0]["todos"] == []


@whole("AT-TODO-02")
def test_each_action_needs_its_parameters_and_takes_no_others(bound: Callable[..., Talk]) -> None:
    talk = bound("a")
    wrong: list[dict[str, Any]] = [
        *({"action": action} for action in ("set", "add", "start", "done", "drop", "note")),
        {"action": "note", "content": "a"},
        {"action": "note", "text": "a"},
        {"action": "set", "items": []},
        {"action": "add", "items": []},
        {"action": "add", "items": ["ok", " "]},
        {"action": "set", "items": [""]},
        {"action": "add", "items": [1]},
        {"action": "add", "items": "a"},
        {"action": "add", "items": ["b"], "kind": "wish"},
        {"action": "add", "items": ["b"], "phase": 3},
        {"action": "start", "content": " "},
        {"action": "start", "content": "a", "items": ["b"]},
        {"action": "view", "content": "a"},
        {"action": "done", "content": "a", "kind": "criterion"},
    ]
    found = errors(talk, *wrong)
    assert [one["code"] for one in found] == ["invalid_params"] * len(wrong)
    assert shown(todo(talk, {"action": "view"})[0], "content", "status") == [("a", "pending")]


@whole("AT-TODO-03", "AT-TODO-05")
def test_every_action_gives_the_whole_list(project: Project, bound: Callable[..., Talk]) -> None:
    talk = bound("a", "b", "c")
    first, again = todo(talk, {"action": "view"}, {"action": "view"})
    assert first == again
    assert shown(first, "content", "status", "kind", "phase", "position") == [
        (name, "pending", "step", None, position) for position, name in enumerate("abc")
    ]
    assert first["markdown"] == "- [ ] a\n- [ ] b\n- [ ] c"
    keys = {"id", "content", "status", "kind", "phase", "position"}
    for action in ACTIONS:
        # What the operator sees is the list as it is now, whatever the agent was told.
        (found,) = todo(talk, action)
        assert found == project.get("/issues/1/todos"), action
        assert set(found) == {"todos", "markdown"}
        assert all(set(one) == keys for one in found["todos"])


@whole("AT-TODO-04", "AT-TODO-12")
def test_todos_are_rows_of_their_issue(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("a", "left")
    todo(
        talk,
        {"action": "note", "content": "a", "text": "seen"},
        {"action": "note", "content": "a", "text": "again"},
        {"action": "done", "content": "a"},
        {"action": "add", "items": ["b"], "phase": "later"},
    )
    rows = stored(daemon, project)
    assert set(rows["a"]) >= {
        "id", "issue_id", "content", "status", "kind", "phase", "position", "notes",
        "origin_agent", "created_at", "updated_at", "completed_at",
    }  # fmt: skip
    assert json.loads(rows["a"]["notes"]) == ["seen", "again"]
    assert (rows["a"]["status"], rows["a"]["kind"], rows["a"]["position"]) == (
        "completed", "step", 0,
    )  # fmt: skip
    assert rows["a"]["created_at"] <= rows["a"]["completed_at"] == rows["a"]["updated_at"]
    assert (rows["left"]["status"], rows["left"]["completed_at"]) == ("pending", None)
    assert (rows["b"]["phase"], rows["b"]["origin_agent"]) == ("later", "primary")
    assert rows["a"]["issue_id"] == project.get("/issues/1")["id"]
    todo(talk, {"action": "start", "content": "b"}, {"action": "drop", "content": "left"})
    rows = stored(daemon, project)
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "completed", "b": "in_progress", "left": "abandoned",
    }  # fmt: skip


@whole("AT-TODO-06", "AT-SESS-11")
def test_without_an_issue_there_is_no_list(project: Project, bound: Callable[..., Talk]) -> None:
    talk = bound("a")
    assert todo(talk, {"action": "view"})[0]["markdown"] == "- [ ] a"
    talk.bind(None)
    for found in errors(talk, *ACTIONS):
        assert found["code"] == "no_bound_issue"
        assert "ask the operator to bind an issue" in str(found)
    assert project.get("/issues/1/todos")["markdown"] == "- [ ] a"
    talk.bind(1)
    assert todo(talk, {"action": "view"})[0]["markdown"] == "- [ ] a"


@whole("AT-TODO-07", "AT-TODO-09", "AT-TODO-10")
def test_set_abandons_what_was_there_and_add_goes_to_the_end(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("a", "b", "c")
    *_, found = todo(
        talk,
        {"action": "done", "content": "a"},
        {"action": "start", "content": "b"},
        {"action": "set", "items": ["x", "y", "z"], "phase": "discovery"},
    )
    assert shown(found, "content", "status", "position", "phase") == [
        (name, "pending", position, "discovery") for position, name in enumerate("xyz")
    ]
    rows = stored(daemon, project)
    assert {name: rows[name]["status"] for name in "abc"} == dict.fromkeys("abc", "abandoned")
    (found,) = todo(talk, {"action": "add", "items": ["d", "e"], "kind": "criterion", "phase": "p"})
    assert shown(found, "content", "status", "position", "kind", "phase")[3:] == [
        ("d", "pending", 3, "criterion", "p"),
        ("e", "pending", 4, "criterion", "p"),
    ]
    (found,) = todo(talk, {"action": "add", "items": ["f"]})
    assert shown(found, "content", "position", "kind", "phase")[-1] == ("f", 5, "step", None)


@whole("AT-TODO-08", "AT-TODO-09", "AT-AMB-26")
def test_set_keeps_criteria_behind_the_new_items(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("step", criteria=("fast", "safe"))
    todo(
        talk,
        {"action": "note", "content": "fast", "text": "measured"},
        {"action": "done", "content": "fast"},
    )
    before = stored(daemon, project)["fast"]
    (found,) = todo(talk, {"action": "set", "items": ["x", "y"]})
    assert shown(found, "content", "status", "kind", "position") == [
        ("x", "pending", "step", 0),
        ("y", "pending", "step", 1),
        ("fast", "completed", "criterion", 2),
        ("safe", "pending", "criterion", 3),
    ]
    after = stored(daemon, project)["fast"]
    assert (after["notes"], after["completed_at"]) == (before["notes"], before["completed_at"])
    assert json.loads(after["notes"]) == ["measured"]
    (found,) = todo(talk, {"action": "set", "items": ["small"], "kind": "criterion"})
    assert shown(found, "content", "status", "kind", "position") == [
        ("small", "pending", "criterion", 0),
        ("fast", "completed", "criterion", 1),
        ("safe", "pending", "criterion", 2),
    ]


@whole("AT-TODO-11")
def test_one_task_is_in_progress_at_a_time_also_when_all_begin_at_once(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("A", "B")
    *_, found = todo(talk, {"action": "start", "content": "A"}, {"action": "start", "content": "B"})
    assert shown(found, "content", "status") == [("A", "pending"), ("B", "in_progress")]
    names = [f"task number {number:02}" for number in range(12)]
    todo(talk, {"action": "set", "items": names})
    talk.hear(calls(*((TODO, {"action": "start", "content": one}) for one in names)), say("Now."))
    assert [one["status"] for one in talk.calls()[-12:]] == ["completed"] * 12
    statuses = [row["status"] for row in stored(daemon, project).values()]
    assert statuses.count("in_progress") == 1


@whole("AT-TODO-12", "AT-TODO-13", "AT-TODO-31")
def test_done_closes_nothing_and_start_reopens(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("a", criteria=("all endpoints answer",))
    first, twice, claimed = todo(
        talk,
        {"action": "done", "content": "a"},
        {"action": "done", "content": "a"},
        {"action": "done", "content": "all endpoints answer"},
    )
    assert first == twice
    assert shown(claimed, "status") == [("completed",), ("completed",)]
    rows = stored(daemon, project)
    assert all(row["completed_at"] for row in rows.values())
    assert project.get("/issues/1")["status"] == "open"
    started, again = todo(
        talk, {"action": "start", "content": "a"}, {"action": "start", "content": "a"}
    )
    assert started == again
    assert shown(started, "status") == [("in_progress",), ("completed",)]
    rows = stored(daemon, project)
    assert rows["a"]["completed_at"] is None
    assert rows["all endpoints answer"]["completed_at"]
    # Repeating what is already so writes nothing down.
    for event, count in (("kaged.todo.completed", 2), ("kaged.todo.started", 1)):
        found = daemon.audit(event, project_id=project.id)
        assert len(found) == count, found


@whole("AT-TODO-14", "AT-TODO-22", "AT-AMB-29")
def test_a_dropped_step_is_kept_and_shown_nowhere_and_criteria_are_the_operators(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("keep", "drop me", criteria=("must hold",))
    dropped, view = todo(talk, {"action": "drop", "content": "drop me"}, {"action": "view"})
    assert dropped == view
    assert shown(view, "content") == [("keep",), ("must hold",)]
    assert "drop me" not in view["markdown"]
    (criterion, gone) = errors(
        talk, {"action": "drop", "content": "must hold"}, {"action": "start", "content": "drop me"}
    )
    assert (criterion["code"], gone["code"]) == ("invalid_transition", "todo_not_found")
    assert criterion["message"] == "Only the operator can drop acceptance criteria."
    rows = stored(daemon, project)
    assert (rows["drop me"]["status"], rows["must hold"]["status"]) == ("abandoned", "pending")
    daemon.cli("todo", "drop", "1", "must hold", "-p", project.id)
    assert stored(daemon, project)["must hold"]["status"] == "abandoned"
    run = talk.hear(say("Yes."))
    assert "must hold" not in str(talk.model.asked(run["word"])[0]["messages"][-2:])


@whole("AT-TODO-15")
def test_notes_are_added_one_by_one(
    daemon: Daemon, project: Project, bound: Callable[..., Talk]
) -> None:
    talk = bound("a")
    note = {"action": "note", "content": "a"}
    todo(talk, {**note, "text": "one"}, {**note, "text": "x" * 2000})
    found = errors(talk, *({**note, "text": text} for text in ("x" * 2001, "", " \n")))
    assert [one["code"] for one in found] == ["invalid_params"] * 3
    assert json.loads(stored(daemon, project)["a"]["notes"]) == ["one", "x" * 2000]


@whole("AT-TODO-16", "AT-TODO-17", "AT-AMB-27")
def test_tasks_are_found_by_their_text_or_by_a_part_that_only_one_has(
    bound: Callable[..., Talk],
) -> None:
    talk = bound("Implement auth module", "Write tests", "Write tests for auth")
    first, second = todo(
        talk,
        {"action": "start", "content": "WRITE tests "},
        {"action": "start", "content": "auth mod"},
    )
    assert shown(first, "status") == [("pending",), ("in_progress",), ("pending",)]
    assert shown(second, "status") == [("in_progress",), ("pending",), ("pending",)]
    _, *same = todo(
        talk,
        {"action": "set", "items": ["Same", "same", "SAME"]},
        {"action": "start", "content": "same"},
        {"action": "done", "content": "same"},
        {"action": "done", "content": "same"},
    )
    assert [[status for (status,) in shown(one, "status")] for one in same] == [
        ["in_progress", "pending", "pending"],
        ["completed", "pending", "pending"],
        ["completed", "completed", "pending"],
    ]
    todo(talk, {"action": "set", "items": ["unit test", "smoke test"]})
    (refused,) = errors(talk, {"action": "start", "content": "test"})
    assert refused["code"] == "todo_not_found"
    assert refused["detail"]["candidates"] == ["unit test", "smoke test"]


@whole("AT-TODO-18")
def test_what_is_not_there_is_answered_with_what_is(bound: Callable[..., Talk]) -> None:
    talk = bound()
    (empty,) = errors(talk, {"action": "start", "content": "zzz"})
    assert empty["code"] == "todo_not_found"
    assert empty["detail"]["content"] == "zzz"
    assert "the list is empty" in str(empty)
    todo(talk, {"action": "set", "items": ["one", "two"]})
    for params in (
        {"action": "start"},
        {"action": "done"},
        {"action": "drop"},
        {"action": "note", "text": "t"},
    ):
        (refused,) = errors(talk, {**params, "content": "zzz"})
        assert refused["code"] == "todo_not_found", params
        assert refused["detail"]["available"] == ["one", "two"]
        assert "'one'" in str(refused["detail"]["hint"])


@whole("AT-TODO-19")
@pytest.mark.parametrize("action", ["start", "done", "drop", "note"])
def test_made_up_ids_are_answered_with_advice(bound: Callable[..., Talk], action: str) -> None:
    more = {"text": "t"} if action == "note" else {}
    made_up = ("task-3", "STEP-12", "todo-1", "Item-0", "id-99", "Task-7")
    talk = bound(*made_up, "step one", "step-one", "task-3 of the plan")
    for found in errors(talk, *({"action": action, "content": one, **more} for one in made_up)):
        assert found["code"] == "content_addressing_hint"
        assert "full text" in str(found)
    # What only resembles an id is looked up.
    for content in ("step one", "step-one", "task-3 of"):
        todo(talk, {"action": action, "content": content, **more})


@whole("AT-TODO-20", "AT-TODO-21")
def test_the_markdown_is_a_checklist_with_criteria_marked_in_every_state(
    bound: Callable[..., Talk],
) -> None:
    talk = bound(
        "Implement auth module", "Write tests", criteria=("All endpoints return 200", "Small")
    )
    started, criterion, done, noted = todo(
        talk,
        {"action": "start", "content": "Implement auth module"},
        {"action": "start", "content": "All endpoints return 200"},
        {"action": "done", "content": "Small"},
        {"action": "note", "content": "All endpoints", "text": "mind the gap"},
    )
    assert started["markdown"] == (
        "- [>] Implement auth module\n- [ ] Write tests\n"
        "- [ ] All endpoints return 200 (criterion)\n- [ ] Small (criterion)"
    )
    assert criterion["markdown"] == (
        "- [ ] Implement auth module\n- [ ] Write tests\n"
        "- [>] All endpoints return 200 (criterion)\n- [ ] Small (criterion)"
    )
    assert done["markdown"].endswith("- [x] Small (criterion)")
    assert [line.strip() for line in noted["markdown"].splitlines()] == [
        "- [ ] Implement auth module",
        "- [ ] Write tests",
        "- [>] All endpoints return 200 (criterion)",
        "→ mind the gap",
        "- [x] Small (criterion)",
    ]
    aside, back = todo(
        talk,
        {"action": "start", "content": "Write tests"},
        {"action": "done", "content": "Write tests"},
    )
    assert "→" not in aside["markdown"]
    assert "\n- [x] Write tests\n" in back["markdown"]
