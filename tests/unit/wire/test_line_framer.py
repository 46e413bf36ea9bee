from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.framing import FramerClosed, OversizeMessage, Unsendable
from kaged.wire.lines import LINE_LIMIT_BYTES, LineFramer, encode_line

# Mostly line feeds and short runs, so that lines, empty lines and limits are all met.
_streams = st.lists(
    st.one_of(st.just(b"\n"), st.binary(max_size=12), st.just(b"\r\n"), st.just("ä€𝄞".encode()))
).map(b"".join)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _reference(data: bytes, limit: int) -> tuple[list[bytes], bool]:
    """Return what the framer must give: the lines before the first that is over the limit."""
    *lines, rest = data.split(b"\n")
    for index, line in enumerate(lines):
        if len(line) > limit:
            return lines[:index], True
    return lines, len(rest) > limit


def _run(chunks: list[bytes], limit: int) -> tuple[list[bytes], bool]:
    framer = LineFramer(limit)
    lines: list[bytes] = []
    for chunk in chunks:
        try:
            lines += framer.feed(chunk)
        except OversizeMessage as error:
            return lines + list(error.complete), True
        assert framer.buffered_bytes <= limit
    return lines, False


@given(_streams, st.lists(st.integers(min_value=0, max_value=10_000), max_size=20))
def test_any_cutting_of_a_stream_gives_the_lines_of_a_plain_split(
    data: bytes, cuts: list[int]
) -> None:
    assert _run(_cut(data, cuts), 1000) == _reference(data, 1000)


@given(_streams, st.integers(min_value=0, max_value=20), st.lists(st.integers(0, 10_000)))
def test_the_limit_falls_at_the_same_line_however_the_stream_is_cut(
    data: bytes, limit: int, cuts: list[int]
) -> None:
    assert _run(_cut(data, cuts), limit) == _reference(data, limit)


@given(_streams, st.integers(min_value=0, max_value=20))
def test_one_byte_at_a_time_is_no_different(data: bytes, limit: int) -> None:
    chunks = [data[i : i + 1] for i in range(len(data))]
    assert _run(chunks, limit) == _reference(data, limit)


def test_the_exact_limit_passes_and_one_byte_more_does_not() -> None:
    longest = b"x" * LINE_LIMIT_BYTES
    assert LINE_LIMIT_BYTES == 4_194_304
    assert LineFramer().feed(longest + b"\n") == [longest]

    with pytest.raises(OversizeMessage) as raised:
        LineFramer().feed(longest + b"x\n")
    assert raised.value.code == "protocol.oversize_message"


def test_the_exact_limit_passes_when_its_line_feed_comes_later() -> None:
    framer = LineFramer(8)
    assert framer.feed(b"12345678") == []
    assert framer.feed(b"\n12") == [b"12345678"]
    assert framer.buffered_bytes == 2


def test_an_endless_line_is_refused_before_any_line_feed_and_never_held_beyond_the_limit() -> None:
    framer = LineFramer()
    chunk = b"x" * 65_536
    for fed in range(1, 65):
        assert framer.feed(chunk) == []
        assert framer.buffered_bytes == fed * 65_536
    assert framer.buffered_bytes == LINE_LIMIT_BYTES
    with pytest.raises(OversizeMessage):
        framer.feed(b"x")
    assert framer.buffered_bytes == 0


def test_lines_before_an_oversize_one_are_handed_over_with_the_error() -> None:
    framer = LineFramer(4)
    framer.feed(b"o")
    with pytest.raises(OversizeMessage) as raised:
        framer.feed(b"ne\ntwo\nmuch too long\nthree\n")
    assert raised.value.complete == (b"one", b"two")
    assert raised.value.data == {"limit_bytes": 4}


def test_nothing_is_taken_after_an_oversize_line() -> None:
    framer = LineFramer(4)
    with pytest.raises(OversizeMessage):
        framer.feed(b"12345")
    with pytest.raises(FramerClosed):
        framer.feed(b"\n{}\n")


def test_an_empty_chunk_changes_nothing() -> None:
    framer = LineFramer()
    assert framer.feed(b"") == []
    framer.feed(b"ab")
    assert framer.feed(b"") == []
    assert framer.feed(b"c\n") == [b"abc"]


@given(st.text(min_size=1, alphabet="aä€𝄞\u2028\x85"), st.integers(min_value=0))
def test_a_character_cut_in_the_middle_arrives_whole(text: str, cut: int) -> None:
    data = text.encode() + b"\n"
    framer = LineFramer()
    at = cut % len(data)
    lines = framer.feed(data[:at]) + framer.feed(data[at:])
    assert [line.decode() for line in lines] == [text]


@given(st.binary(max_size=50))
def test_an_encoded_line_is_read_back_as_one_line(payload: bytes) -> None:
    if b"\n" in payload:
        with pytest.raises(Unsendable):
            encode_line(payload)
    else:
        line = LineFramer().encode(payload)
        assert line.count(b"\n") == 1
        assert LineFramer().feed(line) == [payload]


def test_a_line_over_the_limit_is_not_written() -> None:
    assert encode_line(b"1234", 4) == b"1234\n"
    with pytest.raises(Unsendable) as raised:
        encode_line(b"12345", 4)
    assert raised.value.code == "invalid_params"
    assert raised.value.data == {"size_bytes": 5, "limit_bytes": 4}
