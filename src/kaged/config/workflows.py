"""`Workflow`: a named job of a project, its inputs and who may start it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.config.containers import ListOf, MapOf
from kaged.config.nodes import Node, kind_of, to_json
from kaged.config.pluginwords import PRIMARY, SLUG_PATTERN
from kaged.config.problems import Severity
from kaged.config.reading import DocumentPosition, NoValue
from kaged.config.records import RecordShape, empty_map, key, optional, record, strict
from kaged.config.shapes import Choice, Flag, Shape, TextShape, Whole

MAX_WORKFLOWS: Final = 200
MAX_STEPS: Final = 100
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600
DEFAULT_TIMEOUT_SECONDS: Final = 600


class InputType(StrEnum):
    """What a workflow input may be."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    ENUM = "enum"
    FILE = "file"


class Invoker(StrEnum):
    """Who may start a workflow."""

    OPERATOR = "operator"
    GUEST = "guest"


class _AnyJson(Shape[JsonValue]):
    """Any scalar; whether it fits is checked against the input's type."""

    WORDS = "a value of the input's type"

    def read(self, node: Node, place: DocumentPosition) -> JsonValue | NoValue:
        """Read a scalar."""
        if isinstance(node.value, (bool, int, float, str)):
            return node.value
        return place.error(
            node, f"must be text, a number, or true or false, not {kind_of(node.value)}"
        )

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return any scalar."""
        return {"type": ["string", "number", "boolean"]}


@record
class WorkflowInput:
    """One value that a workflow is started with."""

    type: InputType = key(Choice(InputType), "What the value may be.")
    required: bool = key(Flag(), "Whether it must be given.", default=False)
    description: str = key(
        TextShape(min_chars=0, max_chars=2000, one_line=False), "What it is for.", default=""
    )
    default: JsonValue = key(
        _AnyJson(), "The value used when none is given; must fit the type.", default=None
    )
    values: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=200), min_items=1, unique=True),
        "The allowed values; for `enum` only, and required there.",
        default=(),
    )

    def fits(self, value: JsonValue) -> bool:
        """Return whether a value is of this input's type."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        match self.type:
            case InputType.STRING | InputType.FILE:
                return isinstance(value, str)
            case InputType.NUMBER:
                return is_number
            case InputType.INTEGER:
                return is_number and isinstance(value, int)
            case InputType.BOOLEAN:
                return isinstance(value, bool)
            case InputType.ENUM:
                return value in self.values


def _check_input(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    kind: InputType | None = given.get("type")
    if kind is None:
        return
    values = node.child("values")
    if kind is InputType.ENUM and values is None:
        place.at("values").error(node, "is missing", "list the allowed values", "missing_key")
        return
    if kind is not InputType.ENUM and values is not None:
        place.error(values, f"values is for type enum, not for {kind.value}", "remove values")
    default = node.child("default")
    if default is None or "default" not in given or (values is not None and "values" not in given):
        return
    below = place.under("default", default.mark)
    if kind is InputType.FILE:
        below.error(default, "a file input cannot have a default", "remove default")
    elif not WorkflowInput(type=kind, values=given.get("values", ())).fits(to_json(default)):
        below.error(default, f"{below.show(default.value)} does not fit the type {kind.value}")


@record
class WorkflowStep:
    """One message to one agent."""

    message: str = key(TextShape(one_line=False), "The message that the agent gets.")
    agent: str = key(
        TextShape(max_chars=1000),
        "The agent's path; by default the workflow's agent.",
        default="",
    )


@record
class Workflow:
    """A named job: what it needs to know, who may start it, which agent does it."""

    description: str = key(
        TextShape(min_chars=0, max_chars=4000, one_line=False),
        "What the workflow does.",
        default="",
    )
    inputs: Mapping[str, WorkflowInput] = key(
        MapOf(
            RecordShape(
                WorkflowInput,
                unknown=Severity.ERROR,
                check=_check_input,
            ),
            TextShape(max_chars=64, pattern=r"[A-Za-z][A-Za-z0-9_-]*", means="an input name"),
        ),
        "The values it is started with.",
        default_factory=empty_map,
    )
    invokable_by: tuple[Invoker, ...] = key(
        ListOf(Choice(Invoker), min_items=1, unique=True),
        "Who may start it.",
        default=(Invoker.OPERATOR,),
    )
    timeout_seconds: int = key(
        Whole(1, MAX_TIMEOUT_SECONDS),
        "How long a run may take.",
        default=DEFAULT_TIMEOUT_SECONDS,
        aliases=("timeout",),
    )
    agent: str = key(
        TextShape(max_chars=1000),
        "The path of the agent that runs it, for example `primary.subagents.deployer`.",
        default=PRIMARY,
    )
    steps: tuple[WorkflowStep, ...] | None = optional(
        ListOf(strict(WorkflowStep), min_items=1, max_items=MAX_STEPS),
        "Messages sent one after another; without steps the agent gets the description and inputs.",
        default=None,
    )


WORKFLOWS_SHAPE: Final = MapOf(
    strict(Workflow),
    TextShape(max_chars=64, pattern=SLUG_PATTERN, means="a slug (lower case, digits, _ and -)"),
    max_items=MAX_WORKFLOWS,
)


def check_agents(workflows: Node, known: frozenset[str], top: DocumentPosition) -> None:
    """Refuse workflows that name an agent the project does not have."""
    if not isinstance(workflows.value, Mapping):
        return
    for name, entry in workflows.value.items():
        place = top.at("workflows", name)
        _check_agent(entry.node, known, place)
        steps = entry.node.child("steps")
        for index, step in enumerate(
            steps.value if steps is not None and isinstance(steps.value, tuple) else ()
        ):
            _check_agent(step, known, place.at("steps", index))


def _check_agent(node: Node, known: frozenset[str], place: DocumentPosition) -> None:
    agent = node.child("agent")
    if agent is not None and isinstance(agent.value, str) and agent.value not in known:
        place.at("agent").error(
            agent,
            f"{place.show(agent.value)} is no agent of this project",
            f"agents: {', '.join(sorted(known))}",
            "unknown_agent",
        )
