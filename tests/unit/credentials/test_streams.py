"""Bodies that stream: values and placeholders are found wherever a stream is cut."""

from __future__ import annotations

import base64
import gzip
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.credentials.bodies import AnswerBody, clean_answer
from kaged.credentials.needles import MAX_TEXTS, Needles, StreamWindow, spellings
from kaged.credentials.placeholders import PlaceholderWatch, holds_placeholder
from kaged.credentials.refusals import RequestRefused
from kaged.kernel.bindings import new_placeholder

VALUE = 'gh/p_"Ab+1 Cd\\e&f<9'
HELD = new_placeholder(b"\7" * 20)


def _needles() -> Needles:
    needles = Needles()
    needles.add(VALUE)
    return needles


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(one % (len(data) + 1) for one in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(
    st.binary(max_size=60),
    st.sampled_from(spellings(VALUE)),
    st.binary(max_size=60),
    st.lists(st.integers(0, 500), max_size=8),
)
def test_a_spelling_is_starred_however_the_stream_is_cut(
    before: bytes, spelled: bytes, after: bytes, cuts: list[int]
) -> None:
    data = before + spelled + after
    window = StreamWindow(_needles())
    out = b"".join([*map(window.feed, _cut(data, cuts)), window.end()])
    assert len(out) == len(data)
    # Only the first few bytes of it can be there, when it came in that many pieces.
    assert spelled[4:] not in out or spelled[4:] in before + after
    kept = [one for one, was in zip(out, data, strict=True) if one != was]
    assert set(kept) <= {ord("*")}


@given(st.binary(max_size=300), st.lists(st.integers(0, 500), max_size=8))
def test_what_holds_no_value_passes_as_it_is(data: bytes, cuts: list[int]) -> None:
    window = StreamWindow(_needles())
    out = b"".join([*map(window.feed, _cut(data, cuts)), window.end()])
    assert out == _needles().starred(data)


def test_a_message_that_ends_like_a_values_beginning_is_not_kept_back() -> None:
    window = StreamWindow(_needles())
    assert window.feed(b"data: gh") == b"data: gh"
    assert window.feed(VALUE.encode()[2:] + b".") == b"*" * (len(VALUE) - 2) + b"."
    assert window.feed(VALUE.encode()[:8]) == b""
    assert window.end() == VALUE.encode()[:8]


def test_only_so_many_values_are_looked_for() -> None:
    needles = Needles()
    for number in range(MAX_TEXTS + 1):
        needles.add(f"value-{number:05}")
    assert not needles.found_in(b"value-00000")
    assert needles.found_in(b"value-00001")
    assert Needles().starred(b"x") == b"x"


@given(
    st.binary(max_size=60).filter(lambda one: b"k" not in one.lower()),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_a_placeholder_never_passes_whole(before: bytes, upper: bool, cuts: list[int]) -> None:
    held = HELD.upper() if upper else HELD
    data = before + held.encode() + b" end"
    watch = PlaceholderWatch()
    out = bytearray()
    refused = False
    for piece in _cut(data, cuts):
        try:
            out += watch.feed(piece)
        except RequestRefused:
            refused = True
            break
    assert refused
    assert len(out) <= len(before) + 4


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_other_bodies_pass_as_they_are(data: bytes, cuts: list[int]) -> None:
    watch = PlaceholderWatch()
    assert b"".join([*map(watch.feed, _cut(data, cuts)), watch.end()]) == data


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_placeholders_are_found_in_base64_at_every_offset(before: bytes, after: bytes) -> None:
    assert holds_placeholder(base64.b64encode(before + HELD.encode() + after))
    assert holds_placeholder(base64.urlsafe_b64encode(before + HELD.encode() + after))


@given(st.binary(max_size=100))
def test_looking_for_placeholders_never_fails(data: bytes) -> None:
    holds_placeholder(data)


def test_compressed_answers_are_bounded_and_broken_ones_refused() -> None:
    answer = AnswerBody(_needles(), decode=True)
    packed = gzip.compress(bytes(5_000_000))
    pieces = list(answer.feed(packed))
    assert sum(map(len, pieces)) == 5_000_000
    assert max(map(len, pieces)) <= 256 * 1024
    with pytest.raises(RequestRefused):
        list(AnswerBody(_needles(), decode=True).feed(b"no gzip at all"))


@pytest.mark.parametrize("coding", [b"br", b"gzip, gzip", b"zstd", b"compress", b"gzip, br"])
def test_codings_that_cannot_be_looked_into_are_refused(coding: bytes) -> None:
    with pytest.raises(RequestRefused):
        clean_answer([(b"content-encoding", coding)], Needles())


def test_headers_of_answers_lose_values_and_what_is_between_neighbors() -> None:
    kept, decode = clean_answer(
        [
            (b"x", VALUE.encode()),
            (b"connection", b"close"),
            (b"alt-svc", b'h3="evil.test:443"'),
            (b"content-length", b"5"),
            (b"content-encoding", b"identity"),
        ],
        _needles(),
    )
    assert decode is False
    assert kept == [
        (b"x", b"*" * len(VALUE)),
        (b"content-length", b"5"),
        (b"content-encoding", b"identity"),
    ]
