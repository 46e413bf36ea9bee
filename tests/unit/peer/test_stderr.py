from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import ManualClock
from kaged.peer.stderr import LINE_LIMIT_BYTES, LINES_AT_ONCE, LINES_PER_S, StderrTail


def feed(*chunks: bytes) -> tuple[StderrTail, list[str]]:
    seen: list[str] = []
    tail = StderrTail(seen.append)
    for chunk in chunks:
        tail.data_received(chunk)
    return tail, seen


async def logged(seen: list[str], count: int) -> list[str]:
    """Return the lines once so many are there; each turn of the loop brings some."""
    while len(seen) < count:
        before = len(seen)
        await asyncio.sleep(0)
        assert 0 < len(seen) - before <= LINES_AT_ONCE
    return seen


async def test_lines_come_out_whole_whatever_the_chunks() -> None:
    tail, seen = feed(b"one\ntw", b"o\r\n", b"\nunfin", b"ished")
    tail.connection_lost(None)
    await tail.drained()
    assert seen == ["one", "two", "", "unfinished"]


async def test_only_the_last_fifty_lines_are_kept() -> None:
    tail, seen = feed(b"".join(b"%d\n" % n for n in range(80)))
    assert len(seen) == 80
    assert tail.lines == [str(n) for n in range(30, 80)]


async def test_bytes_that_are_no_text_are_escaped() -> None:
    _, seen = feed(b"\xff\x00ok\n")
    assert seen == ["\\xff\x00ok"]


async def test_an_endless_line_is_cut_and_never_held() -> None:
    tail, seen = feed(*[b"x" * 3000 for _ in range(10)])
    assert {len(line) for line in seen} == {LINE_LIMIT_BYTES}
    assert len(tail._rest) < LINE_LIMIT_BYTES


async def test_a_flood_is_drained_but_only_so_much_of_it_is_logged(clock: ManualClock) -> None:
    seen: list[str] = []
    tail = StderrTail(seen.append, clock)
    for start in range(0, 10_000, 1000):
        tail.data_received(b"".join(b"%d\n" % n for n in range(start, start + 1000)))
    assert len(seen) == LINES_AT_ONCE, "the rest is for later turns of the loop"
    assert await logged(seen, LINES_PER_S) == [str(n) for n in range(LINES_PER_S)]
    assert tail.lines == [str(n) for n in range(9950, 10_000)]
    clock.advance(1.0)
    tail.data_received(b"calm again\n")
    assert seen[LINES_PER_S:] == [
        f"[{10_000 - LINES_PER_S} lines left out: more than {LINES_PER_S} in a second]",
        "calm again",
    ]
    tail.data_received(b"x\n" * (LINES_PER_S + 5))
    tail.connection_lost(None)
    await tail.drained()
    assert seen[-1].startswith("[6 lines left out")
    assert tail.lines == ["x"] * 50


@pytest.mark.parametrize("length", [LINE_LIMIT_BYTES - 1, LINE_LIMIT_BYTES, LINE_LIMIT_BYTES + 1])
async def test_long_lines_come_in_pieces_without_a_loss(length: int) -> None:
    _, seen = feed(b"y" * length + b"\n" + b"z\n")
    assert "".join(seen) == "y" * length + "z"
    assert max(len(line) for line in seen) <= LINE_LIMIT_BYTES


@pytest.mark.asyncio(loop_scope="function")
async def test_no_byte_is_lost_for_any_chunking() -> None:
    @given(st.lists(st.binary(max_size=40), max_size=20))
    def check(chunks: list[bytes]) -> None:
        tail, seen = feed(*chunks)
        tail.connection_lost(None)
        whole = b"".join(chunks)
        expected = whole.split(b"\n")
        if not expected[-1]:
            expected.pop()
        wanted = [raw.removesuffix(b"\r").decode("utf-8", "backslashreplace") for raw in expected]
        assert seen == wanted

    check()
