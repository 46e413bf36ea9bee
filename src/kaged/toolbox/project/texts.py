"""Limits of what people and agents write, checked in one place for tools, HTTP and commands."""

from __future__ import annotations

from typing import Literal

from kaged.base import JsonObject, JsonValue
from kaged.tools import InvalidToolParams, ToolDefinition

TITLE_LIMIT_CHARS = 200
BODY_LIMIT_BYTES = 16 * 1024
NOTE_LIMIT_CHARS = 2000
TODO_LIMIT_CHARS = 1000
PHASE_LIMIT_CHARS = 200
NUMBER_LIMIT = 2**53 - 1


def require_title(title: str) -> str:
    """Return a title that may be stored. Raises InvalidToolParams."""
    if len(title) > TITLE_LIMIT_CHARS:
        raise InvalidToolParams.of_field("title", f"has more than {TITLE_LIMIT_CHARS} characters")
    if not title.strip():
        raise InvalidToolParams.of_field("title", "is empty")
    require_unicode("title", title)
    return title


def require_body(body: str, field: str = "body", *, blank: bool = False) -> str:
    """Return a text of at most 16 KB; `blank` allows an empty one. Raises InvalidToolParams."""
    require_unicode(field, body)
    if len(body.encode("utf-8")) > BODY_LIMIT_BYTES:
        raise InvalidToolParams.of_field(field, f"has more than {BODY_LIMIT_BYTES} bytes (16 KB)")
    if not blank and not body.strip():
        raise InvalidToolParams.of_field(field, "is empty")
    return body


def require_line(field: str, text: str, limit: int) -> str:
    """Return a text that says something, of limited length. Raises InvalidToolParams."""
    if not text.strip():
        raise InvalidToolParams.of_field(field, "is empty")
    if len(text) > limit:
        raise InvalidToolParams.of_field(field, f"has more than {limit} characters")
    require_unicode(field, text)
    return text


def require_unicode(field: str, text: str) -> None:
    """Refuse text that cannot be written down. Raises InvalidToolParams."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidToolParams.of_field(
            field, "has a lone surrogate, which is no character"
        ) from (error)


def require_action_params(
    args: JsonObject,
    schema: JsonObject,
    needs: dict[str, tuple[str, ...]],
    takes: dict[str, tuple[str, ...]],
) -> None:
    """Check that a call of a tool with actions has what its action needs, and nothing else.

    Empty texts and lists, and values that the schema fills in, do not count as given.
    Raises InvalidToolParams when something is missing or belongs to another action.
    """
    action = str(args["action"])
    wanted = needs.get(action, ())
    problems = [(name, f"is required for {action}") for name in wanted if name not in args]
    allowed = {"action", *wanted, *takes.get(action, ())}
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for name, value in args.items():
        if name not in allowed and not _absent(value, properties.get(name)):
            problems.append((name, f"is not for {action}"))
    if problems:
        raise InvalidToolParams.of_fields(problems)


def _absent(value: JsonValue, drawn: JsonValue) -> bool:
    default = drawn.get("default") if isinstance(drawn, dict) else None
    return value in ("", []) or (value == default and type(value) is type(default))


def definition(
    name: str,
    description: str,
    parameters: JsonObject,
    returns: JsonObject,
    scope: Literal["root-only"] | None = "root-only",
) -> ToolDefinition:
    """Return what a project tool is; most are for the root agent only."""
    return ToolDefinition(
        name, "kaged", description, parameters, returns, (), principal_scope=scope
    )
