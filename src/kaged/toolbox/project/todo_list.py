"""What a todo list means: finding items by their text, changing the list, showing it.

Pure functions over the rows of one issue. Those that change the list are run by the store inside
its transaction, so that two callers never work on the same old list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from kaged.base import Ids, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.store.todo_rows import TodoRecord
from kaged.toolbox.project.errors import WorkError
from kaged.tools import InvalidToolParams

TODOS_LIMIT = 500  # on the list of one issue; abandoned ones do not count
REMINDER_ITEMS = 5
HINT_ITEMS = 20
NOTES_LIMIT = 200

_ID_LIKE = re.compile(r"(task|todo|item|step|id)-\d+", re.IGNORECASE | re.ASCII)


class TodoStatus(StrEnum):
    """How far an item is. `abandoned` ones are kept but shown nowhere."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    ABANDONED = "abandoned"


class TodoKind(StrEnum):
    """A step of the agent's own plan, or something the result must fulfil."""

    STEP = "step"
    CRITERION = "criterion"


@dataclass(frozen=True, slots=True)
class NewItems:
    """Items on their way into a list."""

    contents: tuple[str, ...]
    kind: TodoKind = TodoKind.STEP
    phase: str | None = None
    origin_agent: str = "primary"


Change = Callable[[TodoRecord, Sequence[TodoRecord], int], Sequence[TodoRecord]]
"""Gives what changes: of an item, in its list, at this time."""

_MARKS = {
    TodoStatus.PENDING: " ",
    TodoStatus.IN_PROGRESS: ">",
    TodoStatus.COMPLETED: "x",
}


# -- looking ------------------------------------------------------------------------------------


def listed(todos: Sequence[TodoRecord]) -> tuple[TodoRecord, ...]:
    """Return the list as it is shown: in order, without what was abandoned."""
    return tuple(todo for todo in todos if todo.status != TodoStatus.ABANDONED)


def as_json(todos: Sequence[TodoRecord]) -> JsonObject:
    """Write the list as every action of the tool returns it."""
    shown = listed(todos)
    names = ("id", "content", "status", "kind", "phase", "position")
    items: list[JsonValue] = [{name: getattr(todo, name) for name in names} for todo in shown]
    return {"todos": items, "markdown": markdown(shown)}


def markdown(todos: Sequence[TodoRecord]) -> str:
    """Write the list as a checklist; beneath the item in progress stand its notes."""
    lines: list[str] = []
    for todo in listed(todos):
        lines.append(_line(todo))
        if todo.status == TodoStatus.IN_PROGRESS:
            lines.extend(f"  → {_flat(note)}" for note in todo.notes)
    return "\n".join(lines)


def reminder(todos: Sequence[TodoRecord]) -> str | None:
    """Write what an agent is reminded of before each step; None when nothing is open.

    At most five open items, always with the one in progress among them.
    """
    still = [todo for todo in listed(todos) if todo.status != TodoStatus.COMPLETED]
    if not still:
        return None
    started = [todo for todo in still if todo.status == TodoStatus.IN_PROGRESS]
    first = [todo for todo in still if todo not in started][: REMINDER_ITEMS - len(started)]
    shown = sorted((*started, *first), key=still.index)
    lines = [_line(todo) for todo in shown]
    if len(still) > len(shown):
        lines.append(f"({len(still) - len(shown)} more: kaged.todo with action view)")
    return "Open todos of the issue you work on:\n" + "\n".join(lines)


def find(todos: Sequence[TodoRecord], content: str) -> TodoRecord:
    """Find an item by its text: equal but for case and blanks, else the only one containing it.

    Raises `content_addressing_hint` and `todo_not_found`.
    """
    wanted = _folded(content)
    if _ID_LIKE.fullmatch(content.strip()):
        raise WorkError(
            f"Todos have no ids such as {content.strip()!r}; name a todo by its text.",
            code="content_addressing_hint",
            fix="give the full text of the task as the list shows it",
            content=content,
        )
    shown = listed(todos)
    for fits in (
        [todo for todo in shown if _folded(todo.content) == wanted],
        [todo for todo in shown if wanted and wanted in _folded(todo.content)],
    ):
        if len({_folded(todo.content) for todo in fits}) == 1:
            return min(fits, key=_preference)
        if fits:
            raise _not_found(content, fits, "Several todos contain that text", "candidates")
    if not shown:
        raise WorkError(
            f"No todo fits {content[:200]!r}: the list is empty.",
            code="todo_not_found",
            fix="add tasks with action add first",
            content=content,
            available=[],
            hint="The list is empty; add tasks first.",
        )
    raise _not_found(content, shown, "No todo fits that text", "available")


# -- changing -----------------------------------------------------------------------------------


def replacing(
    items: NewItems, issue_id: str, ids: Ids, todos: tuple[TodoRecord, ...], now: int
) -> Sequence[TodoRecord]:
    """Do `set`: what was there is abandoned, but for criteria, which come after the new items."""
    kept = [todo for todo in listed(todos) if todo.kind == TodoKind.CRITERION]
    _require_space(len(kept) + len(items.contents))
    gone = [
        replace(todo, status=TodoStatus.ABANDONED.value, updated_at=now)
        for todo in listed(todos)
        if todo.kind != TodoKind.CRITERION
    ]
    made = _made(items, issue_id, ids, 0, now)
    moved = [
        replace(todo, position=len(made) + place, updated_at=now) for place, todo in enumerate(kept)
    ]
    return [*gone, *made, *moved]


def adding(
    items: NewItems, issue_id: str, ids: Ids, todos: tuple[TodoRecord, ...], now: int
) -> Sequence[TodoRecord]:
    """Do `add`: the items go to the end."""
    shown = listed(todos)
    _require_space(len(shown) + len(items.contents))
    behind = max((todo.position for todo in shown), default=-1) + 1
    return _made(items, issue_id, ids, behind, now)


def starting(target: TodoRecord, todos: Sequence[TodoRecord], now: int) -> Sequence[TodoRecord]:
    """Do `start`: this one is in progress and no other; a completed one is open again."""
    if target.status == TodoStatus.IN_PROGRESS:
        return []
    others = [
        replace(todo, status=TodoStatus.PENDING.value, updated_at=now)
        for todo in todos
        if todo.status == TodoStatus.IN_PROGRESS
    ]
    begun = replace(target, status=TodoStatus.IN_PROGRESS.value, updated_at=now, completed_at=None)
    return [*others, begun]


def completing(target: TodoRecord, _todos: Sequence[TodoRecord], now: int) -> Sequence[TodoRecord]:
    """Do `done`."""
    if target.status == TodoStatus.COMPLETED:
        return []
    return [replace(target, status=TodoStatus.COMPLETED.value, updated_at=now, completed_at=now)]


def dropping(
    target: TodoRecord, _todos: Sequence[TodoRecord], now: int, *, operator: bool
) -> Sequence[TodoRecord]:
    """Do `drop`; only an operator drops a criterion."""
    if target.kind == TodoKind.CRITERION and not operator:
        raise WorkError(
            "Only the operator can drop acceptance criteria.",
            code="invalid_transition",
            content=target.content,
            kind=target.kind,
        )
    return [replace(target, status=TodoStatus.ABANDONED.value, updated_at=now)]


def noting(
    target: TodoRecord, _todos: Sequence[TodoRecord], now: int, *, text: str
) -> Sequence[TodoRecord]:
    """Do `note`: the text is added to the item's notes."""
    if len(target.notes) >= NOTES_LIMIT:
        raise InvalidToolParams.of_field("text", f"the task has {NOTES_LIMIT} notes already")
    return [replace(target, notes=(*target.notes, text), updated_at=now)]


# -- own ----------------------------------------------------------------------------------------


def _made(items: NewItems, issue_id: str, ids: Ids, first: int, now: int) -> list[TodoRecord]:
    return [
        TodoRecord(
            ids.ulid(), issue_id, content.strip(), TodoStatus.PENDING.value, items.kind.value,
            items.phase, first + place, (), items.origin_agent, now, now, None,
        )
        for place, content in enumerate(items.contents)
    ]  # fmt: skip


def _require_space(count: int) -> None:
    if count > TODOS_LIMIT:
        raise InvalidToolParams.of_field("items", f"a list holds at most {TODOS_LIMIT} todos")


def _preference(todo: TodoRecord) -> tuple[int, int]:
    order = (TodoStatus.IN_PROGRESS, TodoStatus.PENDING, TodoStatus.COMPLETED)
    return order.index(TodoStatus(todo.status)), todo.position


def _not_found(content: str, todos: Sequence[TodoRecord], problem: str, name: str) -> WorkError:
    shown = [todo.content for todo in todos[:HINT_ITEMS]]
    more = f" and {len(todos) - HINT_ITEMS} more" if len(todos) > HINT_ITEMS else ""
    texts: list[JsonValue] = list(shown)
    hint = f"On the list: {'; '.join(repr(text[:100]) for text in shown)}{more}."
    return WorkError(
        f"{problem}: {content[:200]!r}. {hint}",
        code="todo_not_found",
        fix="give the full text of one of them",
        content=content,
        hint=hint,
        **{name: texts},
    )


def _line(todo: TodoRecord) -> str:
    mark = _MARKS[TodoStatus(todo.status)]
    kind = " (criterion)" if todo.kind == TodoKind.CRITERION else ""
    return f"- [{mark}] {_flat(todo.content)}{kind}"


def _folded(text: str) -> str:
    return text.strip().casefold()


def _flat(text: str) -> str:
    """Keep an item on its line, so that no text can pose as another item."""
    return " ".join(text.split())
