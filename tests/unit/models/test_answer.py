"""What models send is put together within limits, and never trusted to be well-formed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.models import answer as answers
from kaged.models.answer import TurnBuilder, clean_text, parse_arguments
from kaged.models.errors import ModelBadAnswer


def test_pieces_become_one_message() -> None:
    answer = TurnBuilder()
    answer.think("hm ")
    answer.say("Hello ")
    answer.say("there")
    answer.call(0, call_id="c1", name="file_read", arguments='{"pa')
    answer.call(0, arguments='th":"a"}')
    message = answer.message()
    assert (message.thinking, message.text) == ("hm ", "Hello there")
    (call,) = message.tool_calls
    assert (call.id, call.name, call.arguments, call.raw) == ("c1", "file_read", {"path": "a"}, "")


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '"x"', "null", "NaN", '{"a": NaN}', "{'a': 1}", "[" * 100_000, '{"a"\ud800'],
)
def test_arguments_that_are_no_object_are_handed_on_as_written(text: str) -> None:
    answer = TurnBuilder()
    answer.call(0, call_id="c", name="t", arguments=text)
    (call,) = answer.message().tool_calls
    assert call.arguments is None
    assert call.raw == clean_text(text[:20_000])


def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert parse_arguments("") == {}
    assert parse_arguments("  \n") == {}


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(-10, 10) | st.text()))
def test_every_object_survives_however_it_is_cut(value: dict[str, object]) -> None:
    text = json.dumps(value)
    answer = TurnBuilder()
    for piece in (text[start : start + 3] for start in range(0, len(text), 3)):
        answer.call(4, arguments=piece)
    expected = json.loads(text)
    (call,) = answer.message().tool_calls
    if any(0xD800 <= ord(char) <= 0xDFFF for char in json.dumps(expected, ensure_ascii=False)):
        return
    assert call.arguments == expected


def test_missing_odd_and_double_ids_are_replaced() -> None:
    answer = TurnBuilder()
    for index, call_id in enumerate(["same", "same", "", "a b\n", "call_2"]):
        answer.call(index, call_id=call_id, name="t", arguments="{}")
    ids = [call.id for call in answer.message().tool_calls]
    assert ids[0] == "same"
    assert len(set(ids)) == len(ids)
    assert all(call_id and " " not in call_id for call_id in ids)


def test_a_name_without_end_is_cut() -> None:
    answer = TurnBuilder()
    for _ in range(100):
        answer.call(0, name="x" * 100)
    assert len(answer.message().tool_calls[0].name) == answers.MAX_NAME_CHARS


def test_too_much_of_anything_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_TEXT_CHARS", 10)
    monkeypatch.setattr(answers, "MAX_ARGUMENTS_CHARS", 10)
    monkeypatch.setattr(answers, "MAX_TOOL_CALLS", 2)
    with pytest.raises(ModelBadAnswer, match="text"):
        TurnBuilder().say("x" * 11)
    with pytest.raises(ModelBadAnswer, match="thinking"):
        TurnBuilder().think("x" * 11)
    answer = TurnBuilder()
    answer.call(0, arguments="x" * 6)
    with pytest.raises(ModelBadAnswer, match="arguments"):
        answer.call(1, arguments="x" * 6)
    with pytest.raises(ModelBadAnswer, match="tool calls"):
        answer.call(2)


def test_half_characters_are_written_out() -> None:
    answer = TurnBuilder()
    assert answer.say("a\ud83d") == "a\ufffd"
    answer.message().text.encode()
