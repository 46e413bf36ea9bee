"""What a todo list means, without a store: finding, changing and showing."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from kaged.base import Ids, ManualClock
from kaged.store.todo_rows import TodoRecord
from kaged.toolbox.project import todo_list
from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.todo_list import NewItems, TodoKind, TodoStatus


def todos(*statuses: str, kind: str = "step") -> tuple[TodoRecord, ...]:
    return tuple(
        TodoRecord(
            f"id{place}", "issue", f"item {place}", status, kind, None, place, (), "primary", 1, 1,
            None,
        )
        for place, status in enumerate(statuses)
    )  # fmt: skip


def test_the_reminder_shows_five_open_items_with_the_one_in_progress() -> None:
    text = todo_list.reminder(todos(*["pending"] * 6, "in_progress", "pending"))
    assert text is not None
    lines = [line for line in text.split("\n") if line.startswith("- [")]
    assert lines == ["- [ ] item 0", "- [ ] item 1", "- [ ] item 2", "- [ ] item 3", "- [>] item 6"]
    assert "3 more" in text


def test_the_reminder_shows_no_done_and_no_abandoned_items() -> None:
    text = todo_list.reminder(todos("completed", "pending", "abandoned"))
    assert text is not None
    assert "item 1" in text
    assert "item 0" not in text
    assert "item 2" not in text
    assert "more" not in text
    assert todo_list.reminder(todos("completed", "abandoned")) is None
    assert todo_list.reminder(()) is None


def test_no_text_can_pose_as_another_item() -> None:
    (made,) = todo_list.adding(NewItems(("a\n- [x] b",)), "issue", Ids(ManualClock()), (), 1)
    assert todo_list.markdown([made]) == "- [ ] a - [x] b"


ACTIONS = st.sampled_from(["start", "done", "drop", "note", "set", "add"])
NAMES = st.sampled_from(["alpha", "beta", "gamma", "alp", "step-1", "ALPHA ", "x"])


@given(st.lists(st.tuples(ACTIONS, NAMES, st.booleans()), max_size=25))
def test_whatever_is_done_a_list_stays_a_list(steps: list[tuple[str, str, bool]]) -> None:
    ids = Ids(ManualClock())
    rows: dict[str, TodoRecord] = {}
    criteria: set[str] = set()
    for now, (action, name, flag) in enumerate(steps):
        items = NewItems((name, "beta"), TodoKind.CRITERION if flag else TodoKind.STEP)
        before = tuple(sorted(rows.values(), key=lambda one: (one.position, one.id)))
        try:
            if action in ("set", "add"):
                put = todo_list.replacing if action == "set" else todo_list.adding
                changed = put(items, "issue", ids, before, now)
            else:
                change: todo_list.Change = {
                    "start": todo_list.starting,
                    "done": todo_list.completing,
                    "drop": partial(todo_list.dropping, operator=False),
                    "note": partial(todo_list.noting, text="n"),
                }[action]
                changed = change(todo_list.find(before, name), before, now)
        except WorkError as error:
            if error.code in {"todo_not_found", "invalid_transition", "content_addressing_hint"}:
                continue
            raise
        rows |= {todo.id: todo for todo in changed}
        shown = todo_list.listed(list(rows.values()))
        assert [todo.status for todo in shown].count(TodoStatus.IN_PROGRESS) <= 1
        positions = [todo.position for todo in shown]
        assert len(set(positions)) == len(positions)
        criteria |= {todo.id for todo in shown if todo.kind == TodoKind.CRITERION}
        assert criteria <= {todo.id for todo in shown}
        assert all(
            (todo.status == "completed") == (todo.completed_at is not None) for todo in shown
        )
