"""`TodoService`: the todo lists of issues, for the root agent's session and for operators."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import assert_never

from kaged.base import Ids, JsonObject, JsonValue
from kaged.store import Store
from kaged.store.todo_rows import TodoRecord
from kaged.toolbox.project import todo_list
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.texts import (
    NOTE_LIMIT_CHARS,
    PHASE_LIMIT_CHARS,
    TODO_LIMIT_CHARS,
    require_line,
)
from kaged.toolbox.project.todo_list import NewItems, TodoKind
from kaged.tools import ROOT_CALLER, InvalidToolParams

ITEMS_LIMIT = 100


class TodoAction(StrEnum):
    """What can be done with a list."""

    VIEW = "view"
    SET = "set"
    ADD = "add"
    START = "start"
    DONE = "done"
    DROP = "drop"
    NOTE = "note"


class TodoService:
    """Changes todo lists, one unit of work at a time."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids

    async def bound_issue(self, project_id: str, session_id: str) -> str:
        """Return the id of the issue that a session works on.

        Raises SessionNotFound and NoBoundIssue.
        """
        return await self._store.sessions.bound_issue(project_id, session_id)

    async def issue_id(self, project_id: str, number: int) -> str:
        """Return the id of an issue by its number. Raises IssueNotFound."""
        return (await self._store.issues.get(project_id, number)).issue.id

    async def view(self, issue_id: str) -> JsonObject:
        """Return the list of an issue."""
        return todo_list.as_json(await self._store.todos.of(issue_id))

    async def act(self, issue_id: str, args: JsonObject, *, operator: bool = False) -> Done:
        """Do one of the actions; `args` are those of the tool `kaged.todo`.

        Raises:
            InvalidToolParams, WorkError: `todo_not_found`, `content_addressing_hint`,
                `invalid_transition`; it cannot be
                done; the list is as it was.
        """
        action = TodoAction(str(args["action"]))
        if action is TodoAction.VIEW:
            return Done(await self.view(issue_id))
        if action is TodoAction.SET or action is TodoAction.ADD:
            return await self._put(issue_id, _items(args), replace=action is TodoAction.SET)
        content = require_line("content", str(args["content"]), TODO_LIMIT_CHARS)
        change: todo_list.Change
        match action:
            case TodoAction.START:
                change, event = todo_list.starting, "kaged.todo.started"
            case TodoAction.DONE:
                change, event = todo_list.completing, "kaged.todo.completed"
            case TodoAction.DROP:
                change = partial(todo_list.dropping, operator=operator)
                event = "kaged.todo.dropped"
            case TodoAction.NOTE:
                text = require_line("text", str(args["text"]), NOTE_LIMIT_CHARS)
                change, event = partial(todo_list.noting, text=text), "kaged.todo.noted"
            case _:
                assert_never(action)
        return await self._mark(issue_id, content, change, event)

    async def reminder(
        self, project_id: str, session_id: str, *, just_shown: bool = False
    ) -> str | None:
        """Return what the agent of a session is to be reminded of before its next step.

        None when its last turn showed the list (`just_shown`), when no issue is bound, and when
        nothing is open. Built anew from the store each time and never kept.
        """
        if just_shown:
            return None
        session = await self._store.sessions.get(project_id, session_id)
        if session.bound_issue is None:
            return None
        return todo_list.reminder(await self._store.todos.of(session.bound_issue))

    async def take_over(self, issue_id: str, result: JsonValue, origin_agent: str) -> Done | None:
        """Store the steps that a subagent proposes in the result of its delegation.

        A proposal is a member `proposed_todos` of the form `{items: [texts], phase?}`. Anything
        else is plain content for the root agent: None, and nothing is stored.
        """
        proposed = result.get("proposed_todos") if isinstance(result, dict) else None
        if not isinstance(proposed, dict) or not set(proposed) <= {"items", "phase"}:
            return None
        items, phase = proposed.get("items"), proposed.get("phase")
        if not isinstance(items, list) or not (phase is None or isinstance(phase, str)):
            return None
        given: JsonObject = {"items": items, "origin_agent": origin_agent}
        try:
            new = _items(given if phase is None else {**given, "phase": phase})
        except InvalidToolParams:
            return None
        return await self._put(issue_id, new, replace=False)

    async def _put(self, issue_id: str, items: NewItems, *, replace: bool) -> Done:
        how = todo_list.replacing if replace else todo_list.adding
        plan = partial(how, items, issue_id, self._ids)
        todos = await self._store.todos.change(issue_id, plan)
        return Done(
            todo_list.as_json(todos),
            "kaged.todo.set" if replace else "kaged.todo.added",
            {"issue_id": issue_id, "count": len(items.contents), "kind": items.kind.value},
        )

    async def _mark(
        self, issue_id: str, content: str, change: todo_list.Change, event: str
    ) -> Done:
        target: list[TodoRecord] = []

        def plan(todos: tuple[TodoRecord, ...], now: int) -> Sequence[TodoRecord]:
            # May be asked twice; what counts is the last time.
            target[:] = [todo_list.find(todos, content)]
            return change(target[0], todos, now)

        todos = await self._store.todos.change(issue_id, plan)
        (todo,) = target
        now = next(one for one in todos if one.id == todo.id)
        result = todo_list.as_json(todos)
        if now == todo:
            return Done(result)  # it was so before: nothing happened that could be on record
        facts: JsonObject = {"issue_id": issue_id, "todo_id": todo.id}
        if event != "kaged.todo.noted":
            facts["content"] = todo.content
        if event == "kaged.todo.completed":
            facts["kind"] = todo.kind
        return Done(result, event, facts)


def _items(args: JsonObject) -> NewItems:
    items = args["items"]
    if not isinstance(items, list) or not items:
        raise InvalidToolParams.of_field("items", "must be a list of at least one text")
    if len(items) > ITEMS_LIMIT:
        raise InvalidToolParams.of_field("items", f"has more than {ITEMS_LIMIT} texts")
    contents: list[str] = []
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise InvalidToolParams.of_field(f"items[{number}]", "must be a text")
        contents.append(require_line(f"items[{number}]", item, TODO_LIMIT_CHARS))
    phase = args.get("phase")
    if phase is not None:
        phase = require_line("phase", str(phase), PHASE_LIMIT_CHARS) if phase else None
    return NewItems(
        tuple(contents),
        TodoKind(str(args.get("kind", TodoKind.STEP))),
        phase,
        str(args.get("origin_agent") or ROOT_CALLER),
    )
