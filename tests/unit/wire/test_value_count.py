"""How many values a message holds, counted without making one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire import value_count
from kaged.wire.value_count import ValueCounter, holds_more_values

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=12)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
)


def counted(data: bytes, limit: int = 10**9) -> int:
    """Count to the end."""
    counter = ValueCounter(data, limit)
    while counter.step():
        pass
    return counter.count


def values_in(value: Any) -> int:
    """Count the values one by one; an empty list or object counts twice."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + (sum(map(values_in, inner)) if value else 1)
    return 1


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
@given(value=VALUES)
def test_every_value_is_counted_wherever_the_pieces_are_cut(piece: int, value: Any) -> None:
    for ascii_only in (False, True):
        data = json.dumps(value, ensure_ascii=ascii_only).encode()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(value_count, "PIECE_BYTES", piece)
            escapes = data.count(b"\\")
            assert 0 <= counted(data) - values_in(value) <= escapes // 16 + 1


def test_brackets_commas_and_quotes_within_a_text_are_no_values() -> None:
    text = '[,{"a\\" ,[' * 1000
    assert counted(json.dumps([text], ensure_ascii=False).encode()) < 200 + 2000 // 16 + 1000
    assert counted(b'["' + b"[,{" * 50_000 + b'"]') == 2


def test_long_numbers_and_escapes_weigh_as_much_as_they_cost() -> None:
    assert counted(b"1" * 640) == 1 + 20
    assert counted(b'"' + b"\\n" * 1600 + b'"') == 1 + 100


def test_counting_ends_soon_after_the_limit() -> None:
    counter = ValueCounter(b"[" + b"0," * 2_000_000 + b"0]", 1000)
    assert not counter.step(), "one piece has more than that"
    assert counter.is_over


def test_a_short_message_needs_no_count_and_the_limit_itself_passes() -> None:
    assert not holds_more_values(b"[" * 100, 50)
    at_limit = b"[" + b",".join([b"true"] * 99) + b"]"
    assert not holds_more_values(at_limit, 100)
    assert holds_more_values(at_limit, 99)
