from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.content_length import (
    HEADER_LIMIT_BYTES,
    ContentLengthFramer,
    HeaderFault,
    HeaderInvalid,
    encode_content,
)
from kaged.wire.framing import FramerClosed, FramingError, OversizeMessage, Unsendable
from requirements import requirement

_LIMIT = 64
_HEADER_LIMIT = 80


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _run(chunks: list[bytes]) -> tuple[list[bytes], str | None]:
    framer = ContentLengthFramer(_LIMIT, _HEADER_LIMIT)
    bodies: list[bytes] = []
    for chunk in chunks:
        try:
            bodies += framer.feed(chunk)
        except FramingError as error:
            fault = error.fault if isinstance(error, HeaderInvalid) else error.code
            return bodies + list(error.complete), fault
        assert framer.buffered_bytes <= max(_LIMIT, _HEADER_LIMIT)
    return bodies, None


def _fault(data: bytes) -> str:
    with pytest.raises(HeaderInvalid) as raised:
        ContentLengthFramer().feed(data)
    assert raised.value.code == "protocol.bad_header"
    return raised.value.fault


@requirement("AT-LSP-17")
def test_a_conversation_is_read_byte_by_byte_and_in_one_lump() -> None:
    """Split headers, split bodies, several messages in a chunk, extra headers, bytes not chars."""
    texts = ["ä€𝄞", "plain", ""]
    bodies = [
        json.dumps({"jsonrpc": "2.0", "method": "m", "params": [text]}, ensure_ascii=False).encode()
        for text in texts
    ]
    assert len(bodies[0]) > len(bodies[0].decode())
    data = (
        encode_content(bodies[0])
        + b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"
        + b"content-length:%d\r\nX-Other: 1\r\n\r\n" % len(bodies[1])
        + bodies[1]
        + b"CONTENT-LENGTH:   %d  \r\n\r\n" % len(bodies[2])
        + bodies[2]
    )
    framer = ContentLengthFramer()
    one_by_one = [body for i in range(len(data)) for body in framer.feed(data[i : i + 1])]

    assert one_by_one == bodies
    assert ContentLengthFramer().feed(data) == bodies
    assert [json.loads(body)["params"] for body in one_by_one] == [[text] for text in texts]
    assert framer.buffered_bytes == 0


@given(st.lists(st.binary(max_size=_LIMIT)), st.lists(st.integers(0, 10_000), max_size=20))
def test_bodies_come_out_as_they_went_in_however_they_are_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(ContentLengthFramer().encode(payload) for payload in payloads)
    assert _run(_cut(data, cuts)) == (payloads, None)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from(
                [
                    b"Content-Length: ",
                    b"Content-Length: 3\r\n\r\nabc",
                    b"Content-Length: 0\r\n\r\n",
                    b"Content-Length: 70\r\n\r\n",
                    b"Content-Type: x\r\n",
                    b"\r\n",
                    b"\r\n\r\n",
                    b"\n",
                    b"\r",
                    b"7",
                    b":",
                    b"x" * 50,
                ]
            ),
        ),
        max_size=8,
    ).map(b"".join),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_hostile_bytes_give_one_verdict_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    whole = _run([data])
    assert _run(_cut(data, cuts)) == whole
    assert _run([data[i : i + 1] for i in range(len(data))]) == whole


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"\r\n\r\n", HeaderFault.BAD_LINE),
        (b"Content-Type: x\r\n\r\n", HeaderFault.MISSING_LENGTH),
        (b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", HeaderFault.DUPLICATE_LENGTH),
        (b"Content-Length: 1\r\ncontent-length: 2\r\n\r\n", HeaderFault.DUPLICATE_LENGTH),
        (b"Content-Length: -1\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length: +1\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length: 1_0\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length: 0x10\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length: 1 2\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length: 1.0\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"Content-Length:\r\n\r\n", HeaderFault.BAD_LENGTH),
        ("Content-Length: ٣\r\n\r\n".encode(), HeaderFault.BAD_LENGTH),
        (b"Starting server...\r\n\r\n", HeaderFault.BAD_LINE),
        (b"5\r\n\r\n", HeaderFault.BAD_LINE),
        (b"Content-Length: Content-Length: 5\r\n\r\n", HeaderFault.BAD_LENGTH),
        (b"A: 1\rContent-Length: 1\r\n\r\n", HeaderFault.BAD_LINE),
        (b"Content-Length: 2\n\n{}", HeaderFault.BARE_LINE_FEED),
        (b"Starting server\n", HeaderFault.BARE_LINE_FEED),
        (b"Content-Length: 2\n\n{}\r\n\r\n", HeaderFault.BARE_LINE_FEED),
        (b"X" * HEADER_LIMIT_BYTES, HeaderFault.TOO_LONG),
    ],
)
def test_a_bad_header_is_named(header: bytes, fault: HeaderFault) -> None:
    assert _fault(header) == fault


def test_a_header_block_up_to_its_limit_passes() -> None:
    filler = HEADER_LIMIT_BYTES - len(b"Content-Length: 0\r\nX:\r\n\r\n")
    header = b"Content-Length: 0\r\nX:" + b"x" * filler + b"\r\n\r\n"
    assert len(header) == HEADER_LIMIT_BYTES
    assert ContentLengthFramer().feed(header) == [b""]
    assert _fault(b"Y" + header) == HeaderFault.TOO_LONG


@pytest.mark.parametrize("length", [b"65", b"9" * 19, b"9" * 7000, b"0" * 20])
def test_a_huge_length_is_refused_at_the_header(length: bytes) -> None:
    framer = ContentLengthFramer(64)
    with pytest.raises(OversizeMessage) as raised:
        framer.feed(encode_content(b"ok") + b"Content-Length: " + length + b"\r\n\r\n")
    assert raised.value.complete == (b"ok",)
    with pytest.raises(FramerClosed):
        framer.feed(b"x")


def test_a_message_over_the_limit_is_not_written() -> None:
    assert encode_content(b"1234", 4) == b"Content-Length: 4\r\n\r\n1234"
    with pytest.raises(Unsendable):
        encode_content(b"12345", 4)
