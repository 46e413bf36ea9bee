"""Pages and their cursors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.store import StoreError
from kaged.store.page import PAGE_LIMIT, clamp_limit, encode_cursor, parse_cursor
from raising import raises_code


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_a_cursor_reads_back(position: int) -> None:
    assert parse_cursor(encode_cursor(position)) == position


def test_no_cursor_is_the_beginning() -> None:
    assert parse_cursor(None) is None


@pytest.mark.parametrize(
    "cursor",
    ["", "c", "7", "c-1", "c1.0", "cx", "c٣", "c" + "9" * 30, "C1", "c 1"],
)
def test_anything_else_is_refused(cursor: str) -> None:
    with raises_code("invalid_cursor", StoreError) as caught:
        parse_cursor(cursor)
    assert caught.value.code == "invalid_cursor"


@pytest.mark.parametrize(
    ("asked", "given_"), [(None, 100), (0, 1), (-5, 1), (7, 7), (10**9, PAGE_LIMIT)]
)
def test_a_page_has_a_size_within_bounds(asked: int | None, given_: int) -> None:
    assert clamp_limit(asked) == given_
