"""A vendor's marks: they come back beside the same words, or not at all."""

from __future__ import annotations

import pytest

from kaged.base import JsonValue
from kaged.models.turn import AssistantMessage, ModelToolCall
from kaged.models.vendor_parts import (
    MAX_MARK_CHARS,
    MAX_PARTS,
    VendorPart,
    VendorParts,
    kept_parts,
    parts_of_json,
)

PARTS = (
    VendorPart("thinking", 5, signature="sig"),
    VendorPart("text", 4, id="msg_1"),
    VendorPart("call", details={"thought_signature": "x"}),
)
MESSAGE = AssistantMessage("said", (ModelToolCall("c1", "file_read", {}),), "thunk")


def fits(made: VendorParts, message: AssistantMessage) -> bool:
    return made.fits(message.thinking, message.text, len(message.tool_calls))


def test_what_is_kept_is_read_again() -> None:
    made = kept_parts("anthropic:m", "anthropic", PARTS)
    assert made is not None
    assert made == VendorParts("anthropic:m", "anthropic", PARTS)
    assert parts_of_json(made.as_json()) == made
    assert fits(made, MESSAGE)


@pytest.mark.parametrize(
    "changed",
    [
        AssistantMessage("said more", MESSAGE.tool_calls, "thunk"),
        AssistantMessage("said", (), "thunk"),
        AssistantMessage("said", MESSAGE.tool_calls, ""),
    ],
)
def test_words_that_were_changed_have_no_marks(changed: AssistantMessage) -> None:
    made = kept_parts("anthropic:m", "anthropic", PARTS)
    assert made is not None
    assert not fits(made, changed)


def test_nothing_is_kept_of_what_has_no_marks_or_too_many() -> None:
    assert kept_parts("m", "v", [VendorPart("text", 4)]) is None
    assert kept_parts("m", "v", [VendorPart("text", 4, id="x")] * (MAX_PARTS + 1)) is None
    large = VendorPart("thinking", 4, signature="s" * MAX_MARK_CHARS)
    assert kept_parts("m", "v", [large]) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"model": "m", "vendor": "v"},
        {"model": "m", "vendor": "v", "parts": [{"kind": "image"}]},
        {"model": "m", "vendor": "v", "parts": [{"kind": "text", "chars": -1}]},
        {"model": "m", "vendor": "v", "parts": [{"kind": "text", "chars": "4"}]},
        {"model": 1, "vendor": "v", "parts": []},
        {"model": "m", "vendor": "v", "parts": [{"kind": "text", "chars": 1}] * (MAX_PARTS + 1)},
    ],
)
def test_what_is_no_list_of_parts_is_none(value: JsonValue) -> None:
    assert parts_of_json(value) is None
