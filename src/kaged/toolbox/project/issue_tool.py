"""`kaged.issue`: the root agent files, reads, comments and moves issues."""

from __future__ import annotations

from typing import Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.issue_states import IssueStatus, Visibility
from kaged.toolbox.project.issues import LIST_DEFAULT, LIST_LIMIT, IssueService
from kaged.toolbox.project.texts import (
    BODY_LIMIT_BYTES,
    NUMBER_LIMIT,
    TITLE_LIMIT_CHARS,
    definition,
    require_action_params,
)
from kaged.tools import Tool, ToolInvocation
from kaged.tools.fields import closed, integer, text

AUTHOR: Final = "agent:primary"
ACTIONS: Final = ("list", "get", "create", "comment", "transition")

_NEEDS: Final = {
    "get": ("number",),
    "create": ("title", "body"),
    "comment": ("number", "body"),
    "transition": ("number", "to"),
}
_TAKES: Final = {
    "list": ("status", "limit", "offset", "search"),
    "comment": ("visibility",),
    "transition": ("comment",),
}
_READS: Final = frozenset({"list", "get"})

PARAMETERS: Final = closed(
    {
        "action": {"enum": list[Any](ACTIONS), "description": "What to do."},
        "number": integer(
            "get, comment, transition: the issue's number, 42 for #42.",
            minimum=1,
            maximum=NUMBER_LIMIT,
        ),
        "title": text(
            "create: one line that says what it is about.", minLength=1, maxLength=TITLE_LIMIT_CHARS
        ),
        "body": text(
            "create, comment: the text in Markdown, at most 16 KB.", maxLength=BODY_LIMIT_BYTES
        ),
        "visibility": {
            "enum": [one.value for one in Visibility],
            "default": Visibility.ALL.value,
            "description": "comment: who may see it; operator_only is an internal note.",
        },
        "to": {
            "enum": [one.value for one in IssueStatus if one is not IssueStatus.OPEN],
            "description": "transition: the new status.",
        },
        "comment": text(
            "transition: why; required for resolved and rejected.", maxLength=BODY_LIMIT_BYTES
        ),
        "status": {
            "enum": [one.value for one in IssueStatus],
            "description": "list: only this status; without it all that are not done.",
        },
        "search": text('list: words in title or body; also "a phrase", begin*, a OR b, -not.'),
        "limit": integer(
            "list: how many at most.", minimum=1, maximum=LIST_LIMIT, default=LIST_DEFAULT
        ),
        "offset": integer("list: how many to skip.", minimum=0, maximum=NUMBER_LIMIT, default=0),
    },
    ["action"],
)

_DESCRIPTION = """\
Work with the issues of this project. They outlive your session; the operator sees them too.

- list: open issues, last changed first. Filter with status and search; page with limit and offset.
- get: one issue with everything that was said and done about it.
- create: file an issue for work that is worth remembering, with title and body.
- comment: add what you found out or did.
- transition: move it along: triaged, assigned, in_progress, resolved, rejected, reopened. Say why
  in comment; resolved and rejected require it.

You cannot edit or delete an issue: comment instead.
"""

RETURNS: Final[JsonObject] = {
    "type": "object",
    "description": "list: {issues, total, limit, offset}; get: the issue with its updates; create: "
    "{id, number, status, created_at}; comment: {update_id, issue_number, created_at}; "
    "transition: {number, from, to, updated_at}. Times are Unix seconds.",
}


def issue_tool(service: IssueService) -> Tool:
    """Make the tool."""

    async def handle(call: ToolInvocation) -> JsonValue:
        args, project_id = call.args, call.context.project_id
        if args["action"] == "list":
            return await _list(service, project_id, args)
        if args["action"] == "get":
            return await service.shown_in(call.context.session_id, project_id, _number(args))
        return (await _change(service, project_id, args)).tell(call)

    return Tool(
        definition=definition("kaged.issue", _DESCRIPTION, PARAMETERS, RETURNS),
        handler=handle,
        changes=lambda args: args.get("action") not in _READS,
        check=lambda args: require_action_params(args, PARAMETERS, _NEEDS, _TAKES),
        aliases={f"kaged.issue.{action}": {"action": action} for action in ACTIONS},
    )


async def _list(service: IssueService, project_id: str, args: JsonObject) -> JsonObject:
    status, search = args.get("status"), args.get("search")
    return await service.list(
        project_id,
        status=None if status is None else IssueStatus(str(status)),
        search=None if search is None else str(search),
        limit=_whole(args, "limit", LIST_DEFAULT),
        offset=_whole(args, "offset", 0),
    )


async def _change(service: IssueService, project_id: str, args: JsonObject) -> Done:
    if args["action"] == "create":
        return await service.create(project_id, str(args["title"]), str(args["body"]), AUTHOR)
    if args["action"] == "comment":
        visibility = Visibility(str(args.get("visibility", Visibility.ALL)))
        return await service.comment(
            project_id, _number(args), str(args["body"]), visibility, AUTHOR
        )
    comment = args.get("comment")
    return await service.transition(
        project_id,
        _number(args),
        IssueStatus(str(args["to"])),
        None if comment is None else str(comment),
        AUTHOR,
    )


def _number(args: JsonObject) -> int:
    return _whole(args, "number", 0)


def _whole(args: JsonObject, name: str, default: int) -> int:
    value = args.get(name, default)
    assert isinstance(value, int)  # by the schema
    return value
