"""`WindowMessage`: one message of an agent's window, between the store, plugins and models. Pure.

A message is a role and a list of blocks, as entries keep them: `text {text}`, `thinking {text}`,
`tool_call {id, name, input, request_id}`, `tool_result_block {call_id, output, is_error, name,
request_id}`. Blocks of other types are kept and shown to nobody.

How many tokens a message takes is estimated by length, and then corrected with what the vendor
counted for the same window, so that it gets better with every turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.entry import Entry, EntryRole
from kaged.tools.result_cut import tokens_of

VENDOR_PARTS: Final = "vendor_parts"
"""The type of the block with a vendor's marks on an answer; only model clients read it."""

MESSAGE_OVERHEAD: Final = 4
"""What roles and separators around a message take."""

_LOWEST, _HIGHEST = 0.5, 3.0


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text; every four bytes count as one."""
    return tokens_of(text)


def estimate_json(value: JsonValue) -> int:
    """Estimate the tokens of a value as it stands in a request."""
    return estimate_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class TokenGauge:
    """Corrects estimates by what the vendor counted for the last request of the same window."""

    __slots__ = ("_factor",)

    def __init__(self) -> None:
        self._factor = 1.0

    def learn(self, estimated: int, counted: int) -> None:
        """Take note of a request's estimate and of what the vendor counted for it.

        A count that is far off says more about the vendor's accounting (cached parts, pictures)
        than about the text; it moves the correction within bounds only.
        """
        if estimated > 0 and counted > 0:
            self._factor = min(max(counted / estimated, _LOWEST), _HIGHEST)

    def tokens(self, estimated: int) -> int:
        """Return an estimate with the correction applied."""
        return round(estimated * self._factor)


NOTE_MARK: Final = ":"
"""In the ids of messages that exist only inside a compaction; entry ids never have it."""

INTERRUPTED: Final = (
    "[interrupted] The run ended before this call had a result. It was not made again; find out "
    "how far it got before you repeat it."
)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call that stands in an assistant's message, under the host's own `request_id`."""

    request_id: str
    call_id: str
    name: str
    arguments: JsonObject | None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """One message. `id` is that of its entry; `tokens` is an estimate."""

    id: str
    role: EntryRole
    blocks: tuple[JsonObject, ...]
    pinned: bool = False
    tokens: int = field(default=0, compare=False)

    @property
    def stored(self) -> bool:
        """Whether it has an entry of its own; what a compaction wrote has not."""
        return NOTE_MARK not in self.id

    @property
    def text(self) -> str:
        """Everything it says in words."""
        return "\n".join(texts_of(self.blocks, "text"))

    @property
    def calls(self) -> tuple[AskedCall, ...]:
        """The tool calls that it asks for."""
        return tuple(_call(one) for one in self.blocks if one.get("type") == "tool_call")

    @property
    def answers(self) -> tuple[str, ...]:
        """The request ids of the calls whose results it holds."""
        return tuple(
            str(one.get("request_id") or one.get("call_id"))
            for one in self.blocks
            if one.get("type") == "tool_result_block"
        )

    def as_json(self) -> JsonObject:
        """Write it as plugins see it: text alone is a string, anything else a list of blocks."""
        only_text = len(self.blocks) == 1 and self.blocks[0].get("type") == "text"
        content: JsonValue = self.text if only_text else [*self.blocks]
        shown: JsonObject = {"id": self.id, "role": self.role.value, "content": content}
        if self.pinned:
            shown["pinned"] = True
        return shown


def message_of(
    id_: str, role: EntryRole, blocks: Iterable[JsonObject], *, pinned: bool = False
) -> WindowMessage:
    """Make a message and estimate its size."""
    listed = tuple(blocks)
    size = MESSAGE_OVERHEAD + sum(_size(one) for one in listed)
    return WindowMessage(id_, role, listed, pinned, size)


def message_of_entry(entry: Entry) -> WindowMessage:
    """Read a message out of its entry; one without a role speaks for the user."""
    pinned = entry.content.get("pinned") is True
    blocks = blocks_of(entry.content.get("content"))
    return message_of(entry.id, entry.role or EntryRole.USER, blocks, pinned=pinned)


def message_of_json(value: JsonObject, fallback_id: str) -> WindowMessage | None:
    """Read a message that a plugin wrote; None when it has no known role."""
    said = value.get("role")
    word = "tool_result" if said == "tool" else said
    if not isinstance(word, str) or word not in set(EntryRole):
        return None
    name = value.get("id")
    return message_of(
        name if isinstance(name, str) and name else fallback_id,
        EntryRole(word),
        blocks_of(value.get("content")),
        pinned=value.get("pinned") is True,
    )


def blocks_of(content: JsonValue) -> tuple[JsonObject, ...]:
    """Read the blocks of a content; bare text is one block."""
    if isinstance(content, str):
        return (text_block(content),)
    if isinstance(content, list):
        return tuple(
            text_block(one) if isinstance(one, str) else one
            for one in content
            if isinstance(one, (str, dict))
        )
    return ()


def text_block(text: str) -> JsonObject:
    """Write words as a block."""
    return {"type": "text", "text": text}


def result_block(call: AskedCall, output: str, *, is_error: bool) -> JsonObject:
    """Write the outcome of a tool call as a block."""
    return {
        "type": "tool_result_block",
        "call_id": call.call_id,
        "request_id": call.request_id,
        "name": call.name,
        "output": output,
        "is_error": is_error,
    }


def open_calls(messages: Sequence[WindowMessage]) -> tuple[AskedCall, ...]:
    """Return the calls that were asked for and have no result, in the order of asking."""
    answered = {name for message in messages for name in message.answers}
    return tuple(
        call
        for message in messages
        for call in message.calls
        if call.request_id not in answered and call.call_id not in answered
    )


def results_of(message: WindowMessage) -> Iterable[tuple[str, str, bool]]:
    """Yield the results that a message holds: of which call, the text, whether it failed."""
    for block in message.blocks:
        if block.get("type") == "tool_result_block":
            name = str(block.get("request_id") or block.get("call_id"))
            yield name, _text(block.get("output")), block.get("is_error") is True


def _call(block: JsonObject) -> AskedCall:
    call_id, request_id = block.get("id"), block.get("request_id")
    given = block.get("input")
    return AskedCall(
        str(request_id or call_id),
        str(call_id),
        str(block.get("name")),
        given if isinstance(given, dict) else None,
        str(block.get("raw") or ""),
    )


def texts_of(blocks: Sequence[JsonObject], kind: str) -> list[str]:
    """Return what the blocks of one type say."""
    return [str(one.get("text") or "") for one in blocks if one.get("type") == kind]


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _size(block: JsonObject) -> int:
    match block.get("type"):
        case "text" | "thinking":
            return estimate_text(str(block.get("text") or ""))
        case "tool_result_block":
            return MESSAGE_OVERHEAD + estimate_text(_text(block.get("output")))
        case "tool_call":
            return MESSAGE_OVERHEAD + estimate_json([block.get("name"), block.get("input")])
        case _:
            return 0
