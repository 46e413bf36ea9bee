"""Columns: characters for us, units of its own for a server, and no way to mix them up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.lsp.positions import (
    Encoding,
    SourceText,
    Spot,
    from_units,
    negotiated,
    to_units,
)

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40)
ENCODINGS = st.sampled_from(Encoding)


@given(LINES, st.integers(0, 50), ENCODINGS)
def test_a_column_makes_the_round_trip(line: str, column: int, encoding: Encoding) -> None:
    units = to_units(line, column, encoding)
    assert from_units(line, units, encoding) == min(column, len(line))


@given(LINES, st.integers(0, 200), ENCODINGS)
def test_any_number_of_units_is_a_column_of_the_line(
    line: str, units: int, encoding: Encoding
) -> None:
    assert 0 <= from_units(line, units, encoding) <= len(line)


def test_the_middle_of_a_character_is_its_start() -> None:
    assert from_units("😀x", 1, Encoding.UTF16) == 0
    assert from_units("😀x", 3, Encoding.UTF8) == 0
    assert from_units("😀x", 2, Encoding.UTF16) == 1


@pytest.mark.parametrize(
    ("encoding", "units"), [(Encoding.UTF8, 5), (Encoding.UTF16, 3), (Encoding.UTF32, 2)]
)
def test_units_are_counted_as_the_encoding_has_them(encoding: Encoding, units: int) -> None:
    assert to_units("😀xy", 2, encoding) == units


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_ends_a_line(end: str) -> None:
    source = SourceText(f"one{end}two{end}")
    assert source.line_count == 3
    assert (source.line(1), source.line(2), source.line(3)) == ("one", "two", "")


def test_a_form_feed_ends_no_line() -> None:
    assert SourceText("a\x0cb\u2028c").line_count == 1


@given(st.text(max_size=80), st.integers(1, 10), st.integers(0, 20))
def test_a_spot_always_lies_in_the_text(text: str, line: int, column: int) -> None:
    assert 0 <= SourceText(text).offset(Spot(line, column)) <= len(text)


def test_positions_that_make_no_sense_become_the_nearest_that_does() -> None:
    source = SourceText("abc\n")
    assert source.from_server({"line": -4, "character": -1}, Encoding.UTF16) == Spot(1, 0)
    assert source.from_server({"line": 0, "character": 99}, Encoding.UTF16) == Spot(1, 3)


@pytest.mark.parametrize("value", [None, [], {"line": "1"}, {"line": True, "character": 0}, 5])
def test_what_is_no_position_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        SourceText("x").from_server(value, Encoding.UTF16)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    ("said", "taken"),
    [("utf-8", Encoding.UTF8), (None, Encoding.UTF16), ("utf-7", Encoding.UTF16), (3, "utf-16")],
)
def test_an_encoding_that_nobody_offered_is_the_default(said: object, taken: str) -> None:
    assert negotiated({"positionEncoding": said}) == taken  # type: ignore[dict-item]  # the point
