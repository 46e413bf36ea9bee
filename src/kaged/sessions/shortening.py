"""`plan_shortening`: what is shown shorter where leaving out old messages is not enough.

Results of tools first, the largest ones down to one size; then what agents said and what they
called tools with; at last what people said. The whole is kept under a handle. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kaged.base import JsonObject
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import WindowMessage, estimate_text, message_of, results_of

LEAST_TOKENS: Final = 150
"""No text is made shorter than that; a note and a few lines still fit."""

_TEXTS: Final = frozenset({"text", "thinking"})


class LongText(NamedTuple):
    """A text of a window: which message and block it is in, and what there is of it."""

    message: int
    block: int
    text: str
    tokens: int


class Shortening(NamedTuple):
    """Which texts are to be shown with how many tokens."""

    texts: tuple[LongText, ...]
    limit_tokens: int


def plan_shortening(messages: Sequence[WindowMessage], goal_tokens: int) -> list[Shortening]:
    """Return what to shorten so that the messages come to `goal_tokens`, as far as that goes."""
    over = sum(one.tokens for one in messages) - goal_tokens
    planned: list[Shortening] = []
    for texts in _tiers(messages):
        if over <= 0:
            break
        long = [one for one in texts if one.tokens > LEAST_TOKENS]
        if long:
            level = _level([one.tokens for one in long], over)
            cut = tuple(one for one in long if one.tokens > level)
            planned.append(Shortening(cut, level))
            over -= sum(one.tokens - level for one in cut)
    return planned


def shortened_messages(
    messages: Sequence[WindowMessage], texts: Mapping[tuple[int, int], str]
) -> list[WindowMessage]:
    """Return the messages with other texts in the blocks that are named by place."""
    blocks: dict[int, dict[int, str]] = {}
    for (message, block), text in texts.items():
        blocks.setdefault(message, {})[block] = text
    return [
        _with_texts(one, blocks[number]) if number in blocks else one
        for number, one in enumerate(messages)
    ]


# -- own -------------------------------------------------------------------------------------------


def _tiers(messages: Sequence[WindowMessage]) -> Iterable[list[LongText]]:
    """Yield the texts that may be shortened, those that are missed least first."""
    results: list[LongText] = []
    said: list[LongText] = []
    people: list[LongText] = []
    for number, message in enumerate(messages):
        own = people if message.pinned or message.role in _OF_PEOPLE else said
        for at, block in enumerate(message.blocks):
            text = _text_of(block)
            if text is not None:
                found = LongText(number, at, text, estimate_text(text))
                is_result = block.get("type") == "tool_result_block" and not message.pinned
                (results if is_result else own).append(found)
    return (results, said, people)


_OF_PEOPLE: Final = frozenset({EntryRole.USER, EntryRole.SYSTEM})


def _text_of(block: JsonObject) -> str | None:
    match block.get("type"):
        case "tool_result_block":
            return next((text for _, text, _ in results_of(_alone(block))), None)
        case "tool_call":
            given = block.get("input")
            return _longest(given) if isinstance(given, dict) else None
        case kind if kind in _TEXTS:
            return str(block.get("text") or "")
        case _:
            return None


def _longest(given: JsonObject) -> str:
    """Return the longest text that a tool was called with."""
    return max((one for one in given.values() if isinstance(one, str)), key=len, default="")


def _with_texts(message: WindowMessage, texts: Mapping[int, str]) -> WindowMessage:
    blocks = [
        _with_text(block, texts[at]) if at in texts else block
        for at, block in enumerate(message.blocks)
    ]
    return message_of(message.id, message.role, blocks, pinned=message.pinned)


def _with_text(block: JsonObject, text: str) -> JsonObject:
    match block.get("type"):
        case "tool_result_block":
            return {**block, "output": text}
        case "tool_call":
            given = block.get("input")
            assert isinstance(given, dict)
            long = _longest(given)
            return {
                **block,
                "input": {name: text if one == long else one for name, one in given.items()},
            }
        case _:
            return {**block, "text": text}


def _level(sizes: Sequence[int], over: int) -> int:
    """Return the size to which everything larger is cut so that `over` is saved, if it can be."""
    low, high = LEAST_TOKENS, max(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(size - middle for size in sizes if size > middle) >= over:
            low = middle
        else:
            high = middle - 1
    return low


def _alone(block: JsonObject) -> WindowMessage:
    return WindowMessage("", EntryRole.TOOL_RESULT, (block,))
