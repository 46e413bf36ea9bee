"""How an engine's output is read: in pieces, to its end, until it is enough, or until it fails."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kaged.toolbox.search.children import PIECE_BYTES, _Output


class Pipe:
    """A transport that remembers whether anybody wants to read."""

    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


class Reads:
    """A reader that keeps the pieces it got, and has enough after some."""

    def __init__(self, enough_after: int = 10**9, fails: bool = False) -> None:
        self.pieces: list[bytes] = []
        self._enough_after = enough_after
        self._fails = fails

    def feed(self, data: bytes) -> bool:
        if self._fails:
            raise ValueError("cannot read this")
        self.pieces.append(data)
        return len(self.pieces) >= self._enough_after


def connected(reader: Reads) -> tuple[_Output, Pipe, list[str]]:
    ended: list[str] = []
    output, pipe = _Output(reader.feed, lambda: ended.append("killed")), Pipe()
    output.connection_made(cast("Any", pipe))
    return output, pipe, ended


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_much_output_is_read_in_pieces_with_turns_for_others_between_them() -> None:
    reader = Reads()
    output, pipe, killed = connected(reader)
    data = bytes(range(256)) * (PIECE_BYTES // 64) + b"end"
    output.data_received(data)
    assert [len(one) for one in reader.pieces] == [PIECE_BYTES]
    assert not pipe.reading
    await asyncio.sleep(0)
    assert len(reader.pieces) == 2
    assert not pipe.reading
    await turn()
    assert b"".join(reader.pieces) == data
    assert max(len(one) for one in reader.pieces) == PIECE_BYTES
    assert pipe.reading
    output.connection_lost(None)
    assert output.ended.done()
    assert killed == []


async def test_a_pipe_that_closes_early_loses_nothing() -> None:
    reader = Reads()
    output, _, _ = connected(reader)
    output.data_received(b"x" * (3 * PIECE_BYTES + 5))
    output.connection_lost(None)
    assert sum(len(one) for one in reader.pieces) == 3 * PIECE_BYTES + 5
    await turn()
    assert sum(len(one) for one in reader.pieces) == 3 * PIECE_BYTES + 5


async def test_a_reader_that_has_enough_ends_the_program_and_the_pipe_is_emptied() -> None:
    reader = Reads(enough_after=2)
    output, pipe, killed = connected(reader)
    output.data_received(b"x" * (4 * PIECE_BYTES))
    await turn()
    assert len(reader.pieces) == 2
    assert output.stopped
    assert killed == ["killed"]
    assert pipe.reading, "nobody would ever hear that the program has ended"
    output.data_received(b"more")
    assert pipe.reading
    output.connection_lost(None)
    assert output.ended.done()
    assert len(reader.pieces) == 2


async def test_a_reader_that_fails_ends_the_program_and_its_error_is_handed_on() -> None:
    output, pipe, killed = connected(Reads(fails=True))
    output.data_received(b"x" * (2 * PIECE_BYTES))
    await turn()
    assert killed == ["killed"]
    assert pipe.reading
    output.connection_lost(None)
    with pytest.raises(ValueError, match="cannot read"):
        await output.ended
