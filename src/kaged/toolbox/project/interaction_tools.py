"""`kaged.ask`, `kaged.form` and `kaged.checkpoint`: a run pauses until the operator has spoken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.store.interaction_rows import InteractionKind
from kaged.toolbox.project.answers import FieldType
from kaged.toolbox.project.interactions import InteractionService
from kaged.toolbox.project.texts import definition, require_line, require_unicode
from kaged.tools import InvalidToolParams, Tool, ToolInvocation
from kaged.tools.fields import closed, flag, text

QUESTIONS_LIMIT: Final = 20
OPTIONS_LIMIT: Final = 50
NAME_LIMIT_CHARS: Final = 64
TITLE_LIMIT_CHARS: Final = 500
TEXT_LIMIT_CHARS: Final = 4000
DETAIL_LIMIT_CHARS: Final = 16 * 1024

_OPTIONS: Final[JsonObject] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": TITLE_LIMIT_CHARS},
    "maxItems": OPTIONS_LIMIT,
    "uniqueItems": True,
}
_NAME: Final[JsonObject] = {"type": "string", "minLength": 1, "maxLength": NAME_LIMIT_CHARS}
_TITLE: Final[JsonObject] = {"type": "string", "minLength": 1, "maxLength": TITLE_LIMIT_CHARS}
_TEXT: Final[JsonObject] = {"type": "string", "maxLength": TEXT_LIMIT_CHARS}


def _list_of(name: str, required: list[JsonValue], properties: JsonObject) -> JsonObject:
    """Return the schema of parameters that are one list of objects."""
    item = closed(properties, required)
    listed: JsonObject = {
        "type": "array",
        "minItems": 1,
        "maxItems": QUESTIONS_LIMIT,
        "items": item,
    }
    return closed({name: listed}, [name])


ASK_PARAMETERS: Final = _list_of(
    "questions",
    ["id", "title", "options"],
    {
        "id": {**_NAME, "description": "Your name for it; the answer comes under it."},
        "title": {**_TITLE, "description": "The question."},
        "description": {**_TEXT, "description": "What helps to answer it."},
        "options": {**_OPTIONS, "description": "Choices; [] means free text."},
        "multiple": flag("Whether several may be chosen.", default=False),
    },
)
FORM_PARAMETERS: Final = _list_of(
    "fields",
    ["name", "label", "type"],
    {
        "name": {**_NAME, "description": "Your name for it; the value comes under it."},
        "label": {**_TITLE, "description": "What the operator reads beside it."},
        "type": {"enum": [one.value for one in FieldType]},
        "required": {"type": "boolean", "default": False},
        "description": {**_TEXT, "description": "What helps to fill it in."},
        "options": {**_OPTIONS, "description": "The choices of a select."},
    },
)
CHECKPOINT_PARAMETERS: Final = closed(
    {
        "message": text(
            "Why you pause and what the operator is to decide.",
            minLength=1,
            maxLength=TEXT_LIMIT_CHARS,
        ),
        "detail": text("What the operator needs to know for that.", maxLength=DETAIL_LIMIT_CHARS),
    },
    ["message"],
)


def interaction_tools(service: InteractionService) -> tuple[Tool, ...]:
    """Make the three tools."""
    return (
        _tool(
            service,
            InteractionKind.ASK,
            "Ask the operator one or more questions, with choices or as free text. Your run "
            "pauses until they are answered, so ask everything you need at once, and only what "
            "you cannot find out yourself.",
            ASK_PARAMETERS,
            _check_ask,
        ),
        _tool(
            service,
            InteractionKind.FORM,
            "Have the operator fill in a form: text, multiline, number, boolean, select and file "
            "fields. The answer says where files are: in the project under config:/tmp/, or, of a "
            "person, where only commands and kaged.upload of runs for that person find them. Your "
            "run pauses until the form is filled in.",
            FORM_PARAMETERS,
            _check_form,
        ),
        _tool(
            service,
            InteractionKind.CHECKPOINT,
            "Pause until the operator has looked at what you did or are about to do, and "
            "approves, rejects or says something. Use it before what cannot be undone and when "
            "acceptance criteria are to be signed off.",
            CHECKPOINT_PARAMETERS,
            _check_checkpoint,
        ),
    )


def _tool(
    service: InteractionService,
    kind: InteractionKind,
    description: str,
    parameters: JsonObject,
    check: Callable[[JsonObject], None],
) -> Tool:
    async def handle(call: ToolInvocation) -> JsonValue:
        record = await service.request(call.context, kind, _payload(kind, call.args))
        # The event has the id of the call, which is that of the question, too.
        call.emit("kaged.interaction.requested", kind=kind.value, session_id=record.session_id)
        return await service.outcome(call.context, record)

    return Tool(
        definition=definition(
            f"kaged.{kind.value}",
            description,
            parameters,
            {
                "type": "object",
                "description": "{request_id, kind, answers} or, for a checkpoint, {request_id, "
                "kind, decision, text}. A run of the agent loop ends with "
                "{interaction_requested: {kind, request_id, payload}} instead.",
            },
            None if kind is InteractionKind.CHECKPOINT else "root-only",
        ),
        handler=handle,
        changes=True,
        check=check,
    )


def _payload(kind: InteractionKind, args: JsonObject) -> JsonObject:
    """Write the question in full, so that whoever shows or checks it needs no defaults."""
    if kind is InteractionKind.ASK:
        return {
            "questions": [
                {"description": "", "multiple": False, **one} for one in _listed(args, "questions")
            ]
        }
    if kind is InteractionKind.FORM:
        return {
            "fields": [
                {"description": "", "required": False, "options": [], **one}
                for one in _listed(args, "fields")
            ]
        }
    return {"message": args["message"], "detail": args.get("detail")}


def _check_ask(args: JsonObject) -> None:
    questions = _listed(args, "questions")
    _require_unique("questions", "id", questions)
    for number, one in enumerate(questions):
        _require_texts(f"questions[{number}]", one, ("id", "title"))


def _check_form(args: JsonObject) -> None:
    fields = _listed(args, "fields")
    _require_unique("fields", "name", fields)
    for number, one in enumerate(fields):
        where = f"fields[{number}]"
        _require_texts(where, one, ("name", "label"))
        choices = one.get("options")
        if one["type"] == FieldType.SELECT and not choices:
            raise InvalidToolParams.of_field(f"{where}.options", "is required for a select")
        if one["type"] != FieldType.SELECT and choices:
            raise InvalidToolParams.of_field(f"{where}.options", "is for type select only")


def _check_checkpoint(args: JsonObject) -> None:
    require_line("message", str(args["message"]), TEXT_LIMIT_CHARS)
    require_unicode("detail", str(args.get("detail", "")))


def _require_texts(where: str, one: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        require_line(f"{where}.{name}", one[name], TITLE_LIMIT_CHARS)
    for value in (one.get("description", ""), *one.get("options", ())):
        require_unicode(where, value)


def _require_unique(field: str, name: str, listed: list[dict[str, Any]]) -> None:
    twice = [one for one, count in Counter(item[name] for item in listed).items() if count > 1]
    if twice:
        raise InvalidToolParams.of_field(field, f"{name} {twice[0]!r} is used twice")


def _listed(args: JsonObject, name: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", args[name])  # by the schema
