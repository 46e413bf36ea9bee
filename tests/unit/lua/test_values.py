"""Values between host and script lose nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kaged.lua.values import from_bytes, from_wire, like, shown, to_bytes, to_wire

TEXTS = st.text() | st.binary().map(from_bytes)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=2), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_goes_out_comes_back(value: Any) -> None:
    assert from_wire(json.loads(json.dumps(to_wire(value)))) == value


@given(st.binary())
def test_bytes_survive_as_text(data: bytes) -> None:
    assert to_bytes(from_bytes(data)) == data
    shown(from_bytes(data)).encode("utf-8")


def test_text_of_control_characters_is_written_in_the_shorter_form() -> None:
    text = "\0" * 1_000_000
    wire = to_wire(text)
    assert len(json.dumps(wire)) < 1_500_000
    assert from_wire(wire) == text


def test_an_empty_table_is_a_list_where_one_was() -> None:
    assert like([1], {}) == []
    assert like({"a": [1]}, {"a": {}, "b": {}}) == {"a": [], "b": {}}
    assert like([{"c": []}], [{"c": {}}, {"c": {}}]) == [{"c": []}, {"c": []}]
    assert like({"a": {}}, {"a": {}}) == {"a": {}}


def test_a_marker_with_nonsense_is_nothing() -> None:
    assert from_wire({"\0b64": "***"}) == ""
    assert from_wire({"\0b64": "AA==", "more": 1}) == {"\0b64": "AA==", "more": 1}
