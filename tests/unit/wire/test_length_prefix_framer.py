from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.framing import FramerClosed, OversizeMessage, Unsendable
from kaged.wire.length_prefixed import FRAME_LIMIT_BYTES, LengthPrefixFramer, encode_frame

_LIMIT = 64


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _run(chunks: list[bytes]) -> tuple[list[bytes], bool]:
    framer = LengthPrefixFramer(_LIMIT)
    frames: list[bytes] = []
    for chunk in chunks:
        try:
            frames += framer.feed(chunk)
        except OversizeMessage as error:
            return frames + list(error.complete), True
        assert framer.buffered_bytes <= _LIMIT
    return frames, False


def _reference(data: bytes) -> tuple[list[bytes], bool]:
    frames: list[bytes] = []
    while len(data) >= 4:
        length = int.from_bytes(data[:4], "big")
        if length > _LIMIT:
            return frames, True
        if len(data) < 4 + length:
            break
        frames.append(data[4 : 4 + length])
        data = data[4 + length :]
    return frames, False


@given(st.lists(st.binary(max_size=_LIMIT)), st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(encode_frame(payload) for payload in payloads)
    assert _run(_cut(data, cuts)) == (payloads, False)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=8),
            st.integers(0, 80).map(lambda size: size.to_bytes(4, "big")),
            st.just(b"x" * 70),
        )
    ).map(b"".join)
)
def test_arbitrary_bytes_one_at_a_time_give_what_the_reference_gives(data: bytes) -> None:
    chunks = [data[i : i + 1] for i in range(len(data))]
    assert _run(chunks) == _reference(data) == _run([data])


def test_the_prefix_is_four_bytes_big_endian() -> None:
    assert LengthPrefixFramer().encode(b"ab") == b"\x00\x00\x00\x02ab"
    assert LengthPrefixFramer().feed(b"\x00\x00\x00\x00\x00\x00\x00\x01x") == [b"", b"x"]


def test_an_announced_length_over_the_limit_is_refused_before_any_of_it_arrives() -> None:
    framer = LengthPrefixFramer()
    assert FRAME_LIMIT_BYTES == 10 * 1024 * 1024
    framer.feed(FRAME_LIMIT_BYTES.to_bytes(4, "big"))

    framer = LengthPrefixFramer()
    with pytest.raises(OversizeMessage) as raised:
        framer.feed(encode_frame(b"ok") + (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"))
    assert raised.value.complete == (b"ok",)
    with pytest.raises(FramerClosed):
        framer.feed(b"")


def test_a_frame_over_the_limit_is_not_written() -> None:
    assert encode_frame(b"1234", 4)
    with pytest.raises(Unsendable):
        encode_frame(b"12345", 4)
