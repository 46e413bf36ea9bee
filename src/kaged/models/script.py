"""`ModelScript`: a YAML file of model turns, and the choice of the turn that comes next.

```yaml
turns:
  - when: { user: fold }
    say: I read the log first.
    call: [{ tool: file.read, with: { path: log.txt } }]
  - say: Done.
```

Which turn comes next is read from the window, never remembered: the first one that fits, after the
one that the window's last answer came from. So a script goes on where it was after a restart, and
starts over from the right place in a fork or after a rewind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import JsonTable, ListOf
from kaged.config.files import read_text
from kaged.config.nodes import Node
from kaged.config.problems import ConfigFileInvalid, Severity
from kaged.config.reading import INVALID, DocumentPosition, Reading
from kaged.config.records import RecordShape, empty_map, key, optional, record
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.yamldoc import parse_yaml
from kaged.models.errors import ModelError
from kaged.models.turn import (
    AssistantMessage,
    ModelRequest,
    SystemMessage,
    ToolResultMessage,
    UserMessage,
)

MAX_TURNS: Final = 1000
MAX_CALLS: Final = 64
MAX_FAILURES: Final = 20
MAX_DELAY_S: Final = 3600.0

_PLAYED: Final = re.compile(r"call_(\d{1,6})_\d{1,3}_\w+")


class Finish(StrEnum):
    """Why a scripted turn ends, beside having said everything."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


class Fault(StrEnum):
    """How an attempt at a scripted turn fails."""

    UNAVAILABLE = "unavailable"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    CONTEXT_EXCEEDED = "context_exceeded"
    BAD_ANSWER = "bad_answer"
    CUT = "cut"


@record
class When:
    """What must be so for a turn to be played; all of it."""

    user: str | None = optional(
        TextShape(min_chars=0), "The last message is the user's and contains this.", default=None
    )
    tool: str | None = optional(
        TextShape(max_chars=200), "The last message is the result of this tool.", default=None
    )
    contains: str | None = optional(TextShape(), "The last message contains this.", default=None)
    failed: bool | None = optional(
        Flag(), "Whether the last message is the error of a tool.", default=None
    )
    system: str | None = optional(TextShape(), "The system prompt contains this.", default=None)


_ALWAYS: Final = When()


@record
class ScriptedCall:
    """A tool that a scripted turn calls."""

    tool: str = key(TextShape(max_chars=200), "The tool, by its name.")
    arguments: Mapping[str, JsonValue] = key(
        JsonTable(), "What it is called with.", default_factory=empty_map, name="with"
    )
    raw: str | None = optional(
        TextShape(min_chars=0, one_line=False),
        "What is sent in place of the arguments, for models that write invalid JSON.",
        default=None,
    )


@record
class ScriptedFailure:
    """One attempt that fails before the turn succeeds."""

    fault: Fault = key(Choice(Fault), "How it fails.", name="as")
    after: str = key(
        TextShape(min_chars=0, one_line=False), "What is said before it fails.", default=""
    )
    retry_after_s: float | None = optional(
        Number(0, MAX_DELAY_S), "How long the model wants to be left alone.", default=None
    )


@record
class ScriptedUsage:
    """What a scripted turn claims to take."""

    input: int = key(Whole(0, 10**12), "Tokens read.", default=0)
    output: int = key(Whole(0, 10**12), "Tokens written.", default=0)
    cached: int = key(Whole(0, 10**12), "Tokens read from a cache.", default=0)
    cost_usd: float | None = optional(Number(0, 10**9), "What it cost.", default=None)


@record
class ScriptedTurn:
    """One answer of the model."""

    agent: str = key(
        TextShape(max_chars=300), "The path of the agent it is for; `*` stands for any part.",
        default="primary",
    )  # fmt: skip
    when: When = key(RecordShape(When), "When it is played.", default_factory=When)
    think: str = key(TextShape(min_chars=0, one_line=False), "What it thinks aloud.", default="")
    say: str = key(TextShape(min_chars=0, one_line=False), "What it says.", default="")
    call: tuple[ScriptedCall, ...] = key(
        ListOf(RecordShape(ScriptedCall), max_items=MAX_CALLS), "Tools that it calls.", default=()
    )
    delay_s: float = key(Number(0, MAX_DELAY_S), "How long it takes to begin.", default=0.0)
    pace_s: float = key(Number(0, 60), "How long it takes for each word.", default=0.0)
    fail: tuple[ScriptedFailure, ...] = key(
        ListOf(RecordShape(ScriptedFailure), max_items=MAX_FAILURES),
        "Attempts that fail before it succeeds.",
        default=(),
    )
    error: Fault | None = optional(
        Choice(Fault), "How it fails for good, when it never succeeds.", default=None
    )
    usage: ScriptedUsage | None = optional(
        RecordShape(ScriptedUsage), "What it claims to take; counted by length when left out.",
        default=None,
    )  # fmt: skip
    finish: Finish = key(Choice(Finish), "Why it ends.", default=Finish.STOP)
    repeat: bool = key(
        Flag(), "Play it whenever it fits and no turn of the sequence does.", default=False
    )


def _check_turn(fields: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    when = fields.get("when")
    answers_a_user = isinstance(when, When) and when.user is not None
    if fields.get("repeat") and fields.get("call") and not answers_a_user:
        place.error(
            node,
            "repeats and calls tools after any message, so it would never end",
            "add when: { user: … }, or leave out repeat",
            "endless_script",
        )


@record
class _ScriptFile:
    """A script of the `scripted` model."""

    version: int = key(Whole(1, 1), "The version of this format.", default=1)
    description: str = key(
        TextShape(min_chars=0, one_line=False), "What the script shows.", default=""
    )
    turns: tuple[ScriptedTurn, ...] = key(
        ListOf(
            RecordShape(ScriptedTurn, unknown=Severity.ERROR, check=_check_turn),
            min_items=1,
            max_items=MAX_TURNS,
        ),
        "The turns, in the order in which they are played.",
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A turn with its number in the file, from 1."""

    number: int
    turn: ScriptedTurn


class ModelScript:
    """The turns of a file."""

    def __init__(self, turns: tuple[ScriptedTurn, ...]) -> None:
        self._turns = tuple(Chosen(number, turn) for number, turn in enumerate(turns, start=1))

    @classmethod
    def parse(cls, text: str, file: str) -> ModelScript:
        """Read a script.

        Raises:
            ModelError: `model_script_invalid`; with every problem.
        """
        reading = Reading(file)
        parsed = parse_yaml(text, file)
        reading.add(parsed.problems)
        shape = RecordShape(_ScriptFile, unknown=Severity.ERROR)
        found = INVALID if parsed.node is None else shape.read(parsed.node, reading.top)
        try:
            return cls(reading.finish(found).value.turns)
        except ConfigFileInvalid as error:
            raise ModelError(
                error.message, code="model_script_invalid", problems=error.data["problems"]
            ) from error

    @classmethod
    def load(cls, path: Path) -> ModelScript:
        """Read a script from a file. Raises `model_script_invalid`."""
        try:
            found = read_text(path)
        except ConfigFileInvalid as error:
            raise ModelError(
                error.message,
                code="model_script_invalid",
                fix="Name a YAML file with `turns:`.",
                problems=error.data["problems"],
            ) from error
        return cls.parse(found.text, str(path))

    def __len__(self) -> int:
        """Count the turns."""
        return len(self._turns)

    def choose(self, request: ModelRequest) -> Chosen | None:
        """Find the turn that answers a request; None when the script has none."""
        mine = [one for one in self._turns if fnmatchcase(request.agent, one.turn.agent)]
        after = _played(mine, request)
        # A turn that names the system prompt is meant for such windows, for example those of
        # summaries, before any other is.
        named = [one for one in mine if one.turn.when.system is not None]
        return _first(named, after, request) or _first(mine, after, request)


def _first(turns: list[Chosen], after: int, request: ModelRequest) -> Chosen | None:
    """Return the first turn of the sequence that fits, else one that repeats.

    A turn that waits for words of the user begins a new part of the script: when it does not fit,
    turns behind it that wait for nothing belong to a part that has not begun.
    """
    begun = True
    for one in turns:
        if one.number <= after or one.turn.repeat:
            continue
        when = one.turn.when
        if _fits(when, request) and (begun or when != _ALWAYS):
            return one
        if when.user is not None:
            begun = False
    return next((one for one in turns if one.turn.repeat and _fits(one.turn.when, request)), None)


def _played(turns: list[Chosen], request: ModelRequest) -> int:
    """Return the number of the turn that the window's last answer came from; 0 for none.

    The ids of tool calls say it outright; what was only said is found by its words.
    """
    number = 0
    said: list[str] = []
    for message in reversed(request.messages):
        if not isinstance(message, AssistantMessage):
            continue
        if not message.tool_calls:
            said.append(message.text)
            continue
        played = _PLAYED.fullmatch(message.tool_calls[0].id)
        if played is not None:
            number = int(played[1])
            break
    numbers: dict[str, list[int]] = {}
    for one in turns:
        if not one.turn.repeat and not one.turn.call:
            numbers.setdefault(one.turn.say, []).append(one.number)
    for text in reversed(said):
        number = next((one for one in numbers.get(text, ()) if one > number), number)
    return number


def _fits(when: When, request: ModelRequest) -> bool:
    last = next(
        (one for one in reversed(request.messages) if not isinstance(one, SystemMessage)), None
    )
    if when.system is not None and not any(
        isinstance(one, SystemMessage) and when.system in one.text for one in request.messages
    ):
        return False
    if when.user is not None and not (isinstance(last, UserMessage) and when.user in last.text):
        return False
    result = last if isinstance(last, ToolResultMessage) else None
    if when.tool is not None and (
        result is None or plain_name(result.name) != plain_name(when.tool)
    ):
        return False
    if when.failed is not None and (result is None or result.is_error is not when.failed):
        return False
    return when.contains is None or when.contains in _text_of(last)


def _text_of(message: object) -> str:
    match message:
        case UserMessage() | AssistantMessage():
            return message.text
        case ToolResultMessage():
            return message.content
        case _:
            return ""


def plain_name(tool: str) -> str:
    """Write a tool's name with the letters that vendors allow."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)
