"""Markdown as it streams: what is finished never changes, and what comes out is what came in."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kaged.cli.terminal.markdown import MAX_FENCE_LINES, MarkdownStream

WIDTH = 60


def plain(lines: list[str]) -> list[str]:
    return [re.sub("\x1b\\[[0-9;]*m", "", one) for one in lines]


def streamed(text: str, size: int) -> list[str]:
    stream = MarkdownStream()
    lines: list[str] = []
    for at in range(0, len(text), size):
        lines += stream.feed(text[at : at + size], WIDTH)
    return plain([*lines, *stream.end(WIDTH)])


def test_a_block_is_finished_when_the_next_begins_and_not_before() -> None:
    stream = MarkdownStream()
    assert stream.feed("A **bold** word\n\n", WIDTH) == []
    assert plain(stream.tail(WIDTH)) == ["A bold word"]
    assert plain(stream.feed("and", WIDTH)) == ["A bold word"]
    assert plain(stream.tail(WIDTH)) == ["", "and"]
    assert plain(stream.end(WIDTH)) == ["", "and"]
    assert stream.tail(WIDTH) == []


def test_code_with_empty_lines_stays_one_block_and_keeps_its_lines() -> None:
    text = "Before\n\n```python\na = 1\n\n\nb = 2\n```\nAfter\n"
    assert streamed(text, 3) == ["Before", "", " a = 1", "", "", " b = 2", "", "After"]


def test_long_code_is_shown_before_it_ends_and_goes_on_as_code() -> None:
    stream = MarkdownStream()
    lines = [f"**line {number}**" for number in range(MAX_FENCE_LINES + 20)]
    shown = plain(stream.feed("```\n" + "\n".join(lines) + "\n", WIDTH))
    assert len(shown) >= MAX_FENCE_LINES
    rest = plain([*stream.feed("```\n\nEnd **bold**\n", WIDTH), *stream.end(WIDTH)])
    assert [one.strip() for one in [*shown, *rest] if one.strip()] == [*lines, "End bold"]


def test_what_looks_like_a_tag_or_an_escape_is_shown() -> None:
    assert streamed("Use Vec<T> and <div>.\n\n<b>x</b>\n", 5) == [
        "Use Vec<T> and <div>.", "", "<b>x</b>",
    ]  # fmt: skip
    assert streamed("\x1b[2Jgone\x07", 4) == ["\\u001b[2Jgone\\u0007"]


def test_an_attempt_that_is_void_leaves_nothing() -> None:
    stream = MarkdownStream()
    stream.feed("Half an ans", WIDTH)
    stream.drop()
    assert stream.end(WIDTH) == []


@given(
    st.lists(
        st.sampled_from(
            ["word", " ", "\n", "\n\n", "\n```\n", "- item", "# head", "**", "`x`", "1. "]
        ),
        max_size=40,
    ),
    st.integers(1, 9),
)
def test_no_word_is_lost_however_it_is_cut(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    seen = "".join(streamed(text, size))
    assert seen.count("word") == text.count("word")
    assert seen.count("item") == text.count("item")
