"""`kaged.todo` as the root agent uses it, on a real store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select

from fakes.work_lab import PROJECT, SESSION, WorkLab
from kaged.base import ManualClock
from kaged.store import StoreConflict
from kaged.store.schema import issue_todos
from kaged.toolbox.project import project_tools
from requirements import requirement

ACTIONS: tuple[dict[str, Any], ...] = (
    {"action": "view"}, {"action": "set", "items": ["a"]}, {"action": "add", "items": ["a"]},
    {"action": "start", "content": "a"}, {"action": "done", "content": "a"},
    {"action": "drop", "content": "a"}, {"action": "note", "content": "a", "text": "t"},
)  # fmt: skip


async def stored(lab: WorkLab, issue_id: str) -> dict[str, Any]:
    return {todo.content: todo for todo in await lab.store.todos.of(issue_id)}


def shown(found: Any, *names: str) -> list[Any]:
    return [tuple(one[name] for name in names) for one in found["todos"]]


async def criterion(lab: WorkLab, *items: str) -> None:
    await lab.call("kaged.todo", action="add", items=list(items), kind="criterion")


@requirement("AT-TODO-01")
async def test_the_tool_has_seven_actions_and_never_names_an_issue(lab: WorkLab) -> None:
    tools = {tool.definition.name: tool for tool in project_tools(lab.work)}
    definition = tools["kaged.todo"].definition
    assert definition.principal_scope == "root-only"
    properties: Any = definition.parameters["properties"]
    assert set(properties["action"]["enum"]) == {
        "view", "set", "add", "start", "done", "drop", "note",
    }  # fmt: skip
    assert not {"number", "issue", "issue_id"} & set(properties)
    await lab.bound("a")
    for params in ({"action": "fly"}, {}, {"action": "view", "issue": 1}):
        assert (await lab.refusal_with("kaged.todo", params)).code == "invalid_params"
    # A list belongs to the issue that the session works on, not to one that the agent picks.
    other = await lab.file("Another")
    await lab.store.sessions.bind(PROJECT, SESSION, other)
    assert (await lab.call("kaged.todo", action="view"))["todos"] == []


@requirement("AT-TODO-02")
@pytest.mark.parametrize(
    "params",
    [
        *({"action": action} for action in ("set", "add", "start", "done", "drop", "note")),
        {"action": "note", "content": "a"},
        {"action": "note", "text": "a"},
        {"action": "set", "items": []},
        {"action": "add", "items": ["ok", " "]},
        {"action": "add", "items": [""]},
        {"action": "add", "items": [1]},
        {"action": "add", "items": "a"},
        {"action": "add", "items": ["b"], "kind": "wish"},
        {"action": "add", "items": ["b"], "phase": 3},
        {"action": "start", "content": " "},
        {"action": "start", "content": "a", "items": ["b"]},
        {"action": "view", "content": "a"},
        {"action": "done", "content": "a", "kind": "criterion"},
    ],
)
async def test_each_action_needs_its_parameters(lab: WorkLab, params: dict[str, Any]) -> None:
    await lab.bound("a")
    refused = await lab.refusal_with("kaged.todo", params)
    assert refused.code == "invalid_params"
    assert shown(await lab.call("kaged.todo", action="view"), "content", "status") == [
        ("a", "pending")
    ]


@requirement("AT-TODO-03", "AT-TODO-05")
async def test_every_action_gives_the_whole_list(lab: WorkLab) -> None:
    await lab.bound("a", "b", "c")
    before = await lab.call("kaged.todo", action="view")
    assert set(before) == {"todos", "markdown"}
    assert [set(one) for one in before["todos"]] == [
        {"id", "content", "status", "kind", "phase", "position"}
    ] * 3
    assert await lab.call("kaged.todo", action="view") == before
    for params in ACTIONS:
        found = await lab.call_with("kaged.todo", params)
        assert found == await lab.call("kaged.todo", action="view"), params


@requirement("AT-TODO-04")
async def test_todos_are_rows_of_their_issue(lab: WorkLab, clock: ManualClock) -> None:
    issue_id = await lab.bound("a")
    clock.advance(5)
    await lab.call("kaged.todo", action="note", content="a", text="seen")
    await lab.call("kaged.todo", action="done", content="a")
    row = await lab.store.read(
        lambda conn: conn.execute(
            select(issue_todos).where(issue_todos.c.issue_id == issue_id)
        ).one()._asdict()
    )  # fmt: skip
    assert issue_todos.name == "issue_todos"
    assert row.pop("id")
    assert json.loads(row.pop("notes")) == ["seen"]
    assert row == {
        "issue_id": issue_id, "content": "a", "status": "completed", "kind": "step",
        "phase": None, "position": 0, "origin_agent": "primary", "created_at": 1_767_225_600,
        "updated_at": 1_767_225_605, "completed_at": 1_767_225_605,
    }  # fmt: skip
    await lab.call("kaged.todo", action="set", items=["b"])
    statuses = {todo.content: todo.status for todo in await lab.store.todos.of(issue_id)}
    assert statuses == {"a": "abandoned", "b": "pending"}
    await lab.call("kaged.todo", action="start", content="b")
    assert (await stored(lab, issue_id))["b"].status == "in_progress"


@requirement("AT-TODO-06", "AT-FAIL-18")
@pytest.mark.parametrize("params", ACTIONS)
async def test_without_an_issue_there_is_no_list(lab: WorkLab, params: dict[str, Any]) -> None:
    unknown = await lab.refusal_with("kaged.todo", params)
    assert (unknown.code, unknown.number) == ("session_not_found", -32000)
    await lab.store.sessions.ensure(SESSION, PROJECT)
    refused = await lab.refusal_with("kaged.todo", params)
    assert (refused.code, refused.number) == ("no_bound_issue", -32000)
    assert "ask the operator to bind an issue" in str(refused)
    foreign = await lab.refusal_with("kaged.todo", params, project_id="prj_2")
    assert foreign.code == "session_not_found"


@requirement("AT-TODO-07")
async def test_set_abandons_what_was_there(lab: WorkLab) -> None:
    issue_id = await lab.bound("a", "b", "c")
    await lab.call("kaged.todo", action="done", content="a")
    await lab.call("kaged.todo", action="start", content="b")
    found = await lab.call("kaged.todo", action="set", items=["x", "y", "z"])
    assert shown(found, "content", "status", "position") == [
        ("x", "pending", 0), ("y", "pending", 1), ("z", "pending", 2),
    ]  # fmt: skip
    rows = await stored(lab, issue_id)
    assert len(rows) == 6
    assert {rows[name].status for name in "abc"} == {"abandoned"}


@requirement("AT-TODO-08", "AT-AMB-26")
async def test_set_keeps_criteria_behind_the_new_items(lab: WorkLab, clock: ManualClock) -> None:
    issue_id = await lab.bound("step")
    await criterion(lab, "fast", "safe")
    await lab.call("kaged.todo", action="note", content="fast", text="measured")
    await lab.call("kaged.todo", action="done", content="fast")
    clock.advance(9)
    found = await lab.call("kaged.todo", action="set", items=["x", "y"])
    assert shown(found, "content", "status", "kind", "position") == [
        ("x", "pending", "step", 0), ("y", "pending", "step", 1),
        ("fast", "completed", "criterion", 2), ("safe", "pending", "criterion", 3),
    ]  # fmt: skip
    rows = await stored(lab, issue_id)
    assert (rows["fast"].notes, rows["fast"].completed_at) == (("measured",), 1_767_225_600)
    found = await lab.call("kaged.todo", action="set", items=["small"], kind="criterion")
    assert shown(found, "content", "status", "position") == [
        ("small", "pending", 0), ("fast", "completed", 1), ("safe", "pending", 2),
    ]  # fmt: skip


@requirement("AT-TODO-09")
async def test_kind_and_phase_are_kept_on_every_item(lab: WorkLab) -> None:
    await lab.bound()
    for action in ("set", "add"):
        found = await lab.call(
            "kaged.todo", action=action, items=["a", "b"], kind="criterion", phase="discovery"
        )
        assert shown(found, "kind", "phase")[:2] == [("criterion", "discovery")] * 2
    found = await lab.call("kaged.todo", action="add", items=["plain"])
    assert shown(found, "kind", "phase")[-1] == ("step", None)


@requirement("AT-TODO-10")
async def test_add_goes_to_the_end(lab: WorkLab) -> None:
    await lab.bound("a", "b", "c")
    found = await lab.call("kaged.todo", action="add", items=["d", "e"])
    assert shown(found, "content", "status", "position")[3:] == [
        ("d", "pending", 3), ("e", "pending", 4),
    ]  # fmt: skip


@requirement("AT-TODO-11")
async def test_one_task_is_in_progress_at_a_time(lab: WorkLab) -> None:
    issue_id = await lab.bound("A", "B")
    await lab.call("kaged.todo", action="start", content="A")
    found = await lab.call("kaged.todo", action="start", content="B")
    assert shown(found, "content", "status") == [("A", "pending"), ("B", "in_progress")]
    names = [f"task number {number:02}" for number in range(20)]
    await lab.call("kaged.todo", action="set", items=names)
    await asyncio.gather(*(lab.call("kaged.todo", action="start", content=one) for one in names))
    rows = await stored(lab, issue_id)
    assert [rows[name].status for name in names].count("in_progress") == 1
    # The database itself refuses a second one, whoever writes it.
    values: dict[str, Any] = {
        "id": "01ZZZZZZZZZZZZZZZZZZZZZZZZ", "issue_id": issue_id, "content": "x",
        "status": "in_progress", "kind": "step", "position": 99, "notes": "[]",
        "origin_agent": "primary", "created_at": 1, "updated_at": 1,
    }  # fmt: skip
    with pytest.raises(StoreConflict):
        await lab.store.write(lambda conn: conn.execute(insert(issue_todos).values(values)))


@requirement("AT-TODO-12", "AT-TODO-13")
async def test_done_is_noted_and_closes_nothing(lab: WorkLab, clock: ManualClock) -> None:
    issue_id = await lab.bound("a")
    await criterion(lab, "all endpoints answer")
    before = await lab.status_of(1)
    clock.advance(4)
    await lab.call("kaged.todo", action="done", content="a")
    await lab.call("kaged.todo", action="done", content="all endpoints answer")
    rows = await stored(lab, issue_id)
    assert {row.status for row in rows.values()} == {"completed"}
    assert {row.completed_at for row in rows.values()} == {1_767_225_604}
    assert await lab.status_of(1) == before == "open"


@requirement("AT-TODO-14", "AT-FAIL-20")
async def test_only_the_operator_drops_a_criterion(lab: WorkLab) -> None:
    issue_id = await lab.bound("a")
    await criterion(lab, "must hold")
    found = await lab.call("kaged.todo", action="drop", content="a")
    assert shown(found, "content") == [("must hold",)]
    refused = await lab.refusal("kaged.todo", action="drop", content="must hold")
    assert refused.code == "invalid_transition"
    assert refused.as_json()["message"] == "Only the operator can drop acceptance criteria."
    rows = await stored(lab, issue_id)
    assert (rows["a"].status, rows["must hold"].status) == ("abandoned", "pending")
    await lab.work.todos.act(issue_id, {"action": "drop", "content": "must hold"}, operator=True)
    assert (await stored(lab, issue_id))["must hold"].status == "abandoned"


@requirement("AT-TODO-15")
async def test_notes_are_added_one_by_one(lab: WorkLab) -> None:
    issue_id = await lab.bound("a")
    await lab.call("kaged.todo", action="note", content="a", text="one")
    await lab.call("kaged.todo", action="note", content="a", text="x" * 2000)
    assert len((await stored(lab, issue_id))["a"].notes) == 2
    for text in ("x" * 2001, "", " \n"):
        refused = await lab.refusal("kaged.todo", action="note", content="a", text=text)
        assert refused.code == "invalid_params"
    assert (await stored(lab, issue_id))["a"].notes == ("one", "x" * 2000)


@requirement("AT-TODO-16", "AT-AMB-27")
async def test_tasks_are_found_by_their_text(lab: WorkLab) -> None:
    await lab.bound("Implement auth module", "Write tests", "Write tests for auth")
    found = await lab.call("kaged.todo", action="start", content="WRITE tests ")
    assert shown(found, "status") == [("pending",), ("in_progress",), ("pending",)]
    found = await lab.call("kaged.todo", action="start", content="auth mod")
    assert shown(found, "status") == [("in_progress",), ("pending",), ("pending",)]


@requirement("AT-TODO-17")
async def test_equal_texts_have_an_order_and_different_ones_are_told_apart(lab: WorkLab) -> None:
    await lab.bound("Same", "same", "SAME")
    first = (await lab.call("kaged.todo", action="start", content="same"))["todos"]
    assert [one["status"] for one in first] == ["in_progress", "pending", "pending"]
    second = (await lab.call("kaged.todo", action="done", content="same"))["todos"]
    assert [one["status"] for one in second] == ["completed", "pending", "pending"]
    third = (await lab.call("kaged.todo", action="done", content="same"))["todos"]
    assert [one["status"] for one in third] == ["completed", "completed", "pending"]
    await lab.call("kaged.todo", action="set", items=["unit test", "smoke test"])
    refused = await lab.refusal("kaged.todo", action="start", content="test")
    assert refused.code == "todo_not_found"
    assert isinstance(refused.detail, dict)
    assert refused.detail["candidates"] == ["unit test", "smoke test"]


@requirement("AT-TODO-18", "AT-FAIL-19")
async def test_what_is_not_there_is_answered_with_what_is(lab: WorkLab) -> None:
    await lab.bound()
    refused = await lab.refusal("kaged.todo", action="start", content="zzz")
    assert (refused.code, refused.number) == ("todo_not_found", -32000)
    assert "zzz" in str(refused)
    assert "the list is empty" in str(refused)
    await lab.call("kaged.todo", action="set", items=["one", "two"])
    refused = await lab.refusal("kaged.todo", action="start", content="zzz")
    assert isinstance(refused.detail, dict)
    assert refused.detail["content"] == "zzz"
    assert refused.detail["available"] == ["one", "two"]
    assert "'one'" in str(refused.detail["hint"])


@requirement("AT-TODO-19", "AT-FAIL-21")
@pytest.mark.parametrize("content", ["task-3", "STEP-12", "todo-1", "Item-0", "id-99", " id-1 "])
@pytest.mark.parametrize("action", ["start", "done", "drop", "note"])
async def test_made_up_ids_are_answered_with_advice(
    lab: WorkLab, action: str, content: str
) -> None:
    await lab.bound(content, "step one", "step-one")
    more = {"text": "t"} if action == "note" else {}
    refused = await lab.refusal("kaged.todo", action=action, content=content, **more)
    assert (refused.code, refused.number) == ("content_addressing_hint", -32000)
    assert "full text" in str(refused)


@requirement("AT-TODO-19")
async def test_what_only_resembles_an_id_is_looked_up(lab: WorkLab) -> None:
    await lab.bound("step one", "step-one", "task-3 of the plan")
    for content in ("step one", "step-one", "task-3 of"):
        await lab.call("kaged.todo", action="start", content=content)


@requirement("AT-TODO-20")
async def test_the_markdown_is_a_checklist(lab: WorkLab) -> None:
    await lab.bound("Implement auth module", "Write tests")
    await criterion(lab, "All endpoints return 200")
    found = await lab.call("kaged.todo", action="start", content="Implement auth module")
    assert found["markdown"] == (
        "- [>] Implement auth module\n- [ ] Write tests\n- [ ] All endpoints return 200 (criterion)"
    )
    found = await lab.call("kaged.todo", action="done", content="Write tests")
    assert "\n- [x] Write tests\n" in found["markdown"]
    for action, mark in (("start", ">"), ("done", "x")):
        found = await lab.call("kaged.todo", action=action, content="All endpoints return 200")
        last = found["markdown"].splitlines()[-1]
        assert last == f"- [{mark}] All endpoints return 200 (criterion)", action


@requirement("AT-TODO-21")
async def test_notes_stand_beneath_the_task_in_progress(lab: WorkLab) -> None:
    await lab.bound("a", "b")
    await lab.call("kaged.todo", action="note", content="b", text="hidden for now")
    await lab.call("kaged.todo", action="start", content="a")
    found = await lab.call("kaged.todo", action="note", content="a", text="mind the gap")
    lines = found["markdown"].split("\n")
    assert [line.strip() for line in lines] == ["- [>] a", "→ mind the gap", "- [ ] b"]


@requirement("AT-TODO-22", "AT-AMB-29")
async def test_abandoned_tasks_are_kept_and_shown_nowhere(lab: WorkLab) -> None:
    issue_id = await lab.bound("keep", "drop me")
    found = await lab.call("kaged.todo", action="drop", content="drop me")
    assert found == await lab.call("kaged.todo", action="view")
    assert shown(found, "content") == [("keep",)]
    assert "drop me" not in found["markdown"]
    assert (await stored(lab, issue_id))["drop me"].status == "abandoned"
    assert (await lab.refusal("kaged.todo", action="start", content="drop me")).code == (
        "todo_not_found"
    )
    assert "drop me" not in str(await lab.work.todos.reminder(PROJECT, SESSION))


async def test_the_reminder_follows_the_list(lab: WorkLab) -> None:
    remind = lab.work.todos.reminder
    await lab.bound()
    assert await remind(PROJECT, SESSION) is None
    await lab.call("kaged.todo", action="set", items=["a", "b"])
    assert "- [ ] a" in str(await remind(PROJECT, SESSION))
    assert await remind(PROJECT, SESSION, just_shown=True) is None
    await lab.call("kaged.todo", action="done", content="a")
    assert "- [ ] a" not in str(await remind(PROJECT, SESSION))
    await lab.call("kaged.todo", action="done", content="b")
    assert await remind(PROJECT, SESSION) is None
    await lab.store.sessions.bind(PROJECT, SESSION, None)
    assert await remind(PROJECT, SESSION) is None


@requirement("AT-TODO-28", "AT-AMB-28")
async def test_what_a_subagent_proposed_is_marked_as_its_own(lab: WorkLab) -> None:
    issue_id = await lab.bound("mine")
    await lab.call(
        "kaged.todo", action="add", items=["theirs"], origin_agent="primary.subagents.coder"
    )
    rows = await stored(lab, issue_id)
    assert (rows["mine"].origin_agent, rows["theirs"].origin_agent) == (
        "primary", "primary.subagents.coder",
    )  # fmt: skip
    await lab.call(
        "kaged.todo", action="set", items=["set"],
        origin_agent="primary.subagents.a.subagents.b",
    )  # fmt: skip
    assert (await stored(lab, issue_id))["set"].origin_agent == "primary.subagents.a.subagents.b"
    for wrong in ("coder", "", "primary.", "operator"):
        refused = await lab.refusal("kaged.todo", action="add", items=["x"], origin_agent=wrong)
        assert refused.code == "invalid_params", wrong


async def test_a_proposal_is_known_by_its_form_and_becomes_steps(lab: WorkLab) -> None:
    issue_id = await lab.bound("mine")
    take = lab.work.todos.take_over
    done = await take(
        issue_id, {"proposed_todos": {"items": ["x", "y"], "phase": "p"}}, "primary.subagents.c"
    )
    assert done is not None
    assert done.event == "kaged.todo.added"
    rows = await stored(lab, issue_id)
    assert (rows["x"].kind, rows["x"].phase) == ("step", "p")
    assert rows["y"].origin_agent == "primary.subagents.c"
    for other in (
        None, "proposed_todos: x", {"items": ["z"]}, {"proposed_todos": ["z"]},
        {"proposed_todos": {"items": []}}, {"proposed_todos": {"items": ["z", 1]}},
        {"proposed_todos": {"items": ["z"], "kind": "criterion"}},
        {"proposed_todos": {"items": ["z"], "phase": 3}},
    ):  # fmt: skip
        assert await take(issue_id, other, "primary.subagents.c") is None  # type: ignore[arg-type]  # JSON of any kind
    assert len(await stored(lab, issue_id)) == 3


@requirement("AT-TODO-31")
async def test_starting_again_reopens_and_repeating_changes_nothing(
    lab: WorkLab, clock: ManualClock
) -> None:
    issue_id = await lab.bound("a")
    for action in ("start", "done"):
        await lab.call("kaged.todo", action=action, content="a")
        before = await stored(lab, issue_id)
        clock.advance(3)
        await lab.call("kaged.todo", action=action, content="a")
        assert await stored(lab, issue_id) == before
    assert lab.audit.names().count("kaged.todo.started") == 1
    await lab.call("kaged.todo", action="start", content="a")
    row = (await stored(lab, issue_id))["a"]
    assert (row.status, row.completed_at) == ("in_progress", None)


@requirement("AT-AUD-18", "AT-AUD-19", "AT-AUD-20", "AT-AUD-21", "AT-AUD-22", "AT-AUD-23")
async def test_changes_of_todos_are_on_record(lab: WorkLab) -> None:
    issue_id = await lab.bound("a", "b")
    await criterion(lab, "c")
    for params in (
        {"action": "start", "content": "a"}, {"action": "done", "content": "c"},
        {"action": "drop", "content": "b"}, {"action": "note", "content": "a", "text": "t"},
    ):  # fmt: skip
        await lab.call_with("kaged.todo", params)
    rows = await stored(lab, issue_id)

    def recorded(name: str) -> list[dict[str, Any]]:
        found = lab.audit.of(f"kaged.todo.{name}")
        for one in found:
            assert one.pop("caller") == "primary"
            assert one.pop("issue_id") == issue_id
            assert one.pop("project_id") == PROJECT
            assert one.pop("request_id").startswith("req_")
        return found

    assert recorded("set") == [{"count": 2, "kind": "step"}]
    assert recorded("added") == [{"count": 1, "kind": "criterion"}]
    assert recorded("started") == [{"todo_id": rows["a"].id, "content": "a"}]
    assert recorded("completed") == [{"todo_id": rows["c"].id, "content": "c", "kind": "criterion"}]
    assert recorded("dropped") == [{"todo_id": rows["b"].id, "content": "b"}]
    assert recorded("noted") == [{"todo_id": rows["a"].id}]


async def test_todos_of_fifty_callers_are_all_kept(lab: WorkLab) -> None:
    issue_id = await lab.bound()
    await asyncio.gather(
        *(lab.call("kaged.todo", action="add", items=[f"item {n:02}"]) for n in range(50))
    )
    found = await lab.call("kaged.todo", action="view")
    assert [one["position"] for one in found["todos"]] == list(range(50))
    assert len(await stored(lab, issue_id)) == 50


async def test_a_subagent_has_no_list(lab: WorkLab) -> None:
    issue_id = await lab.bound("a")
    other = lab.other("primary.subagents.coder")
    refused = await other.refusal("kaged.todo", action="set", items=["b"])
    assert refused.code == "principal_scope_violation"
    assert set(await stored(lab, issue_id)) == {"a"}


async def test_one_started_todo_per_issue_is_a_rule_of_the_schema(lab: WorkLab) -> None:
    names = await lab.store.read(
        lambda conn: [one["name"] for one in inspect(conn).get_indexes("issue_todos")]
    )
    assert "issue_todos_started" in names
