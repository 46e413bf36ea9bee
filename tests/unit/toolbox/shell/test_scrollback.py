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
    readable,
)


def fed(*chunks: bytes) -> Scrollback:
    scrollback = Scrollback()
    for chunk in chunks:
        scrollback.feed(chunk)
    return scrollback


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_how_output_is_cut_into_reads_does_not_change_it(raw: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    chunks = [raw[start:end] for start, end in pairwise(edges)]
    whole, parts = fed(raw), fed(*chunks)
    assert parts.text() == whole.text()
    assert parts.seen_bytes == whole.seen_bytes


def test_line_ends_of_the_terminal_become_plain_ones() -> None:
    assert fed(b"a\r", b"\nb\r\n").text() == "a\nb\n"


def test_a_lone_carriage_return_stays() -> None:
    assert fed(b"50%\r", b"100%\n").text() == "50%\r100%\n"


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
    held = sum(map(len, scrollback._tail)) + len(scrollback._head)
    assert held <= OUTPUT_LIMIT_BYTES + 3 * TAIL_BYTES


def test_colours_titles_and_cursor_moves_are_taken_out() -> None:
    painted = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b[2K\x1bM"
    assert readable(painted) == "red link"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert readable(b"a\xff\xfeb") == "a\ufffd\ufffdb"


def test_a_character_split_between_two_reads_stays_whole() -> None:
    assert fed("é".encode()[:1], "é".encode()[1:]).text() == "é"
