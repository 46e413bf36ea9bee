"""`kaged.todo`: the root agent's checklist on the issue that its session works on."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.project.texts import (
    NOTE_LIMIT_CHARS,
    PHASE_LIMIT_CHARS,
    TODO_LIMIT_CHARS,
    definition,
    require_action_params,
)
from kaged.toolbox.project.todo_list import TodoKind
from kaged.toolbox.project.todos import ITEMS_LIMIT, TodoAction, TodoService
from kaged.tools import ROOT_CALLER, Tool, ToolInvocation
from kaged.tools.fields import array, closed, text

_NEEDS: Final = {
    "set": ("items",),
    "add": ("items",),
    "start": ("content",),
    "done": ("content",),
    "drop": ("content",),
    "note": ("content", "text"),
}
_TAKES: Final = {
    "set": ("phase", "kind", "origin_agent"),
    "add": ("phase", "kind", "origin_agent"),
}

PARAMETERS: Final = closed(
    {
        "action": {"enum": [one.value for one in TodoAction], "description": "What to do."},
        "content": text(
            "start, done, drop, note: the task, by its text (not by an id).",
            maxLength=TODO_LIMIT_CHARS,
        ),
        "items": array(
            {"type": "string", "maxLength": TODO_LIMIT_CHARS},
            "set, add: the texts of the tasks, in order.",
            maxItems=ITEMS_LIMIT,
        ),
        "phase": text("set, add: the stage of work these belong to.", maxLength=PHASE_LIMIT_CHARS),
        "kind": {
            "enum": [one.value for one in TodoKind],
            "default": TodoKind.STEP.value,
            "description": "set, add: step of your plan, or criterion the result must fulfil.",
        },
        "text": text("note: what to remember about the task.", maxLength=NOTE_LIMIT_CHARS),
        "origin_agent": text(
            "set, add: the subagent whose proposal you take over, by its path.",
            maxLength=1000,
            pattern=r"^primary(\.subagents\.[^.\s]+)*$",
            default=ROOT_CALLER,
        ),
    },
    ["action"],
)

_DESCRIPTION = """\
Keep the checklist of the issue you work on. Every action returns the whole list, also as Markdown.

- view: look at it.
- set: replace your plan by items. Acceptance criteria stay; only the operator can drop them.
- add: put items at the end.
- start: begin a task; whatever was in progress goes back to pending.
- done: a task is finished. For a criterion this is your claim; the operator signs it off.
- drop: a step is not needed any more.
- note: write something down under a task; the notes of the task in progress are shown to you.

Name tasks by their text, whole or a part that only one of them contains.
"""

RETURNS: Final[JsonObject] = {
    "type": "object",
    "required": ["todos", "markdown"],
    "properties": {
        "todos": array({"type": "object"}, "[{id, content, status, kind, phase, position}]"),
        "markdown": {"type": "string"},
    },
}


def require_todo_params(args: JsonObject) -> None:
    """Check that an action has what it needs and nothing else. Raises InvalidParams."""
    require_action_params(args, PARAMETERS, _NEEDS, _TAKES)


def todo_tool(service: TodoService) -> Tool:
    """Make the tool."""

    async def handle(call: ToolInvocation) -> JsonValue:
        context = call.context
        issue_id = await service.bound_issue(context.project_id, context.session_id)
        return (await service.act(issue_id, call.args)).tell(call)

    return Tool(
        definition=definition("kaged.todo", _DESCRIPTION, PARAMETERS, RETURNS),
        handler=handle,
        changes=lambda args: args.get("action") != TodoAction.VIEW,
        check=require_todo_params,
    )
