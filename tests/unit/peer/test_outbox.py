"""Order, bounds and pieces of what is written to a peer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.peer.outbox import PIECE_BYTES, Outbox


class Pipe:
    """A transport that keeps what was written; `unread` stands for what the peer did not take."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unread = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def outbox_on(pipe: Pipe, limit_bytes: int = 1 << 20) -> Outbox:
    transport = cast("asyncio.WriteTransport", pipe)
    return Outbox(asyncio.get_running_loop(), transport, limit_bytes)


async def test_a_line_that_is_alone_leaves_at_once() -> None:
    pipe = Pipe()
    assert outbox_on(pipe).put(b"a\n", alone=True)
    assert pipe.writes == [b"a\n"]


async def test_the_lines_of_one_turn_leave_together_in_order() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    for line in (b"a\n", b"b\n", b"c\n"):
        assert outbox.put(line, alone=False)
    assert pipe.writes == []
    await asyncio.sleep(0)
    assert pipe.writes == [b"a\nb\nc\n"]
    await asyncio.sleep(0)
    assert pipe.writes == [b"a\nb\nc\n"]


async def test_a_line_that_is_alone_never_overtakes_gathered_ones() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    outbox.put(b"a\n", alone=False)
    outbox.put(b"b\n", alone=True)
    assert pipe.writes == [b"a\nb\n"]


async def test_much_leaves_in_pieces_before_the_turn_ends() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    line = b"x" * 1000 + b"\n"
    for _ in range(20):
        outbox.put(line, alone=False)
    assert len(pipe.writes) >= 3
    assert all(len(piece) <= PIECE_BYTES + len(line) for piece in pipe.writes)
    await asyncio.sleep(0)
    assert b"".join(pipe.writes) == line * 20


@pytest.mark.parametrize("alone", [True, False])
async def test_a_full_outbox_takes_nothing_more(alone: bool) -> None:
    pipe = Pipe()
    pipe.unread = 90
    outbox = outbox_on(pipe, 100)
    assert outbox.put(b"12345", alone=False)
    assert outbox.waiting_bytes == 95
    assert outbox.put(b"12345", alone=False)
    assert not outbox.put(b"1", alone=alone)
    assert outbox.waiting_bytes == 100
    await asyncio.sleep(0)
    assert pipe.writes == [b"1234512345"]


async def test_closing_hands_over_what_was_gathered() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    outbox.put(b"a\n", alone=False)
    outbox.close()
    assert (pipe.writes, pipe.closed, outbox.is_open) == ([b"a\n"], True, False)
    await asyncio.sleep(0)
    assert pipe.writes == [b"a\n"]


async def test_what_was_gathered_for_a_pipe_that_broke_is_dropped() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    outbox.put(b"a\n", alone=False)
    pipe.closed = True
    await asyncio.sleep(0)
    assert pipe.writes == []
    assert outbox.waiting_bytes == 0


@given(st.lists(st.tuples(st.binary(max_size=3000), st.booleans(), st.booleans()), max_size=40))
def test_any_mix_of_lines_arrives_once_and_in_order(
    lines: list[tuple[bytes, bool, bool]],
) -> None:
    async def play() -> None:
        pipe = Pipe()
        outbox = outbox_on(pipe)
        for line, alone, turn in lines:
            assert outbox.put(line, alone=alone)
            if turn:
                await asyncio.sleep(0)
        outbox.flush()
        assert b"".join(pipe.writes) == b"".join(line for line, _, _ in lines)

    asyncio.run(play())
