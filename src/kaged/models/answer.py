"""`TurnBuilder`: a model's turn, put together piece by piece, within limits.

Nothing that a model sends is trusted to be small, well-formed or even text: what is too large ends
the turn, what is no JSON object is handed on as such, and half characters are written out.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.models.errors import ModelBadAnswer
from kaged.models.turn import AssistantMessage, ModelToolCall

MAX_TEXT_CHARS: Final = 2_000_000
"""How much a model may say, and how much it may think aloud, in one turn."""

MAX_TOOL_CALLS: Final = 128
"""How many tools a model may call in one turn."""

MAX_ARGUMENTS_CHARS: Final = 4_000_000
"""How long the arguments of one turn's calls may be, taken together."""

MAX_NAME_CHARS: Final = 128
RAW_SHOWN_CHARS: Final = 20_000

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_HALF: Final = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class _PartialCall:
    """A tool call as it comes in."""

    id: str
    name: str
    arguments: list[str]


class TurnBuilder:
    """Collects one turn. Pieces come in the order in which the model sends them."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._said = 0
        self._thought = 0
        self._argued = 0

    def say(self, piece: str) -> str:
        """Take a piece of text; returns it as it may be shown."""
        piece = clean_text(piece)
        self._said += len(piece)
        _within(self._said, MAX_TEXT_CHARS, "characters of text")
        self._text.append(piece)
        return piece

    def think(self, piece: str) -> str:
        """Take a piece of thinking; returns it as it may be shown."""
        piece = clean_text(piece)
        self._thought += len(piece)
        _within(self._thought, MAX_TEXT_CHARS, "characters of thinking")
        self._thinking.append(piece)
        return piece

    def call(self, index: int, *, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """Take a piece of the tool call at `index`."""
        found = self._calls.get(index)
        if found is None:
            _within(len(self._calls) + 1, MAX_TOOL_CALLS, "tool calls")
            found = self._calls[index] = _PartialCall("", "", [])
        found.id = found.id or call_id
        found.name = (found.name + clean_text(name))[: MAX_NAME_CHARS + 1]
        if arguments:
            self._argued += len(arguments)
            _within(self._argued, MAX_ARGUMENTS_CHARS, "characters of arguments")
            found.arguments.append(arguments)

    def message(self) -> AssistantMessage:
        """Return the whole turn."""
        taken: set[str] = set()
        calls = [
            _finished(call, number, taken)
            for number, (_, call) in enumerate(sorted(self._calls.items()), start=1)
        ]
        return AssistantMessage("".join(self._text), tuple(calls), "".join(self._thinking))


def parse_arguments(text: str) -> JsonObject | None:
    """Read the arguments of a call; None when they are no JSON object.

    Nothing at all counts as no arguments: several models write that for tools without parameters.
    """
    if not text.strip():
        return {}
    try:
        value = _DECODER.decode(text.encode("utf-8"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def clean_text(text: str) -> str:
    """Write out half characters, which no store and no wire takes."""
    return _HALF.sub("\ufffd", text) if _HALF.search(text) else text


def _finished(call: _PartialCall, number: int, taken: set[str]) -> ModelToolCall:
    raw = "".join(call.arguments)
    arguments = parse_arguments(raw)
    call_id = call.id
    # Ids are ours to answer with; what is missing, odd or there twice is replaced.
    if _CALL_ID.fullmatch(call_id) is None or call_id in taken:
        call_id = next(
            fresh for extra in range(number, number + MAX_TOOL_CALLS * 2)
            if (fresh := f"call_{extra}") not in taken
        )  # fmt: skip
    taken.add(call_id)
    shown = "" if arguments is not None else clean_text(raw[:RAW_SHOWN_CHARS])
    return ModelToolCall(call_id, call.name[:MAX_NAME_CHARS], arguments, shown)


def _within(number: int, limit: int, of: str) -> None:
    if number > limit:
        raise ModelBadAnswer(
            f"The model sent more than {limit} {of} in one turn.",
            fix="Ask for less at a time, or set a lower max_tokens for the model.",
            limit=limit,
        )


_DECODER: Final = msgspec.json.Decoder()
