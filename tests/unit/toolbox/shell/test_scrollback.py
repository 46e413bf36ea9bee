"""What a terminal showed: bounded, with plain line ends, without paint."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.shell.scrollback import (
    CUT_MARK,
    OUTPUT_LIMIT_BYTES,
    TAIL_BYTES,
    Scrollback,
    cut_mark,
    readable,
)


def fed(*chunks: bytes, limit: int = OUTPUT_LIMIT_BYTES, terminal: bool = True) -> Scrollback:
    scrollback = Scrollback(limit, terminal=terminal)
    for chunk in chunks:
        scrollback.feed(chunk)
    return scrollback


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_how_output_is_cut_into_reads_does_not_change_it(raw: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    chunks = [raw[start:end] for start, end in pairwise(edges)]
    whole, parts = fed(raw), fed(*chunks)
    assert parts.text() == whole.text()


@given(
    st.text("aé€😀\r\n\x1b[31m", max_size=80),
    st.lists(st.integers(0, 300), max_size=8),
    st.integers(1, 200),
    st.booleans(),
)
def test_how_a_cut_output_came_does_not_change_what_is_kept_of_it(
    text: str, cuts: list[int], limit: int, terminal: bool
) -> None:
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    chunks = [raw[start:end] for start, end in pairwise(edges)]
    whole, parts = (fed(*one, limit=limit, terminal=terminal) for one in ((raw,), tuple(chunks)))
    assert (parts.text(), parts.tail()) == (whole.text(), whole.tail())
    assert parts.truncated == whole.truncated
    assert "\ufffd" not in whole.text() + whole.tail()


@given(st.binary(max_size=3 * TAIL_BYTES), st.integers(1, 5000))
def test_the_tail_is_the_end_of_the_output_with_plain_line_ends(raw: bytes, step: int) -> None:
    raw = b"\r\n".join((raw, b"\r" * 9000, b"\r\n" * 9000, raw))
    chunks = [raw[at : at + step] for at in range(0, len(raw), step)]
    plain = raw.replace(b"\r\n", b"\n")[-TAIL_BYTES:]
    assert fed(*chunks, limit=64).tail() == readable(
        plain[:3].lstrip(bytes(range(128, 192))) + plain[3:]
    )


def test_line_ends_of_the_terminal_become_plain_ones() -> None:
    assert fed(b"a\r", b"\nb\r\n").text() == "a\nb\n"


def test_a_lone_carriage_return_stays() -> None:
    assert fed(b"50%\r", b"100%\n").text() == "50%\r100%\n"


def test_a_carriage_return_at_the_very_end_stays_too() -> None:
    assert fed(b"50%\r").text() == "50%\r"
    assert fed(b"ab\r", limit=2).truncated


def test_line_ends_that_came_through_a_pipe_are_the_commands_own() -> None:
    assert fed(b"a\r", b"\nb\r\n", terminal=False).text() == "a\r\nb\r\n"
    assert fed(b"xy", b"a\r\nb", limit=2, terminal=False).tail() == "a\r\nb"


def test_a_letter_on_the_limit_is_left_out_whole() -> None:
    for letter in ("é", "€", "😀"):
        for room in range(1, len(letter.encode())):
            scrollback = fed(b"ab" + letter.encode() + b"cd", limit=2 + room)
            assert scrollback.text() == "ab" + cut_mark(2 + room)
            assert scrollback.tail() == "cd"


def test_a_letter_where_the_tail_begins_is_left_out_whole() -> None:
    scrollback = fed(b"x" * 64, ("€" * TAIL_BYTES).encode(), b"!", limit=64)
    assert set(scrollback.tail()) == {"€", "!"}


def test_paint_that_is_cut_by_the_limit_leaves_nothing_behind() -> None:
    assert fed(b"ab\x1b[1;3", b"1mred", limit=7).text() == "ab" + cut_mark(7)
    assert fed(b"ab\x1b]0;ti", b"tle\x07red", limit=7).text() == "ab" + cut_mark(7)


def test_exactly_one_megabyte_is_not_cut() -> None:
    assert not fed(b"x" * OUTPUT_LIMIT_BYTES).truncated


def test_one_byte_more_is_cut_and_marked() -> None:
    scrollback = fed(b"x" * OUTPUT_LIMIT_BYTES, b"y")
    assert scrollback.text() == "x" * OUTPUT_LIMIT_BYTES + CUT_MARK
    assert scrollback.tail() == "y"


def test_the_limit_counts_what_is_kept_not_what_the_terminal_added() -> None:
    lines = OUTPUT_LIMIT_BYTES // 2
    assert not fed(b"y\r\n" * lines).truncated


def test_a_flood_keeps_its_end_and_costs_no_memory() -> None:
    scrollback = fed(*(b"z" * 100_000 for _ in range(200)), b"the last words")
    assert scrollback.tail().endswith("the last words")
    assert len(scrollback.tail()) <= TAIL_BYTES
    held = sum(map(len, scrollback._end)) + len(scrollback._head)
    assert held <= OUTPUT_LIMIT_BYTES + 5 * TAIL_BYTES


def test_colours_titles_and_cursor_moves_are_taken_out() -> None:
    painted = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b[2K\x1bM"
    assert readable(painted) == "red link"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert readable(b"a\xff\xfeb") == "a\ufffd\ufffdb"


def test_a_character_split_between_two_reads_stays_whole() -> None:
    assert fed("é".encode()[:1], "é".encode()[1:]).text() == "é"
