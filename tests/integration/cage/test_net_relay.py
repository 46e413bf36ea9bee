"""Bytes between two sockets: order, pressure, half-open ends, breaks."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from kaged.cage.net.events import ConnectionEnd
from kaged.cage.net.limits import RELAY_CHUNK_BYTES
from kaged.cage.net.relay import RelayBuffer, RelayResult, SocketRelay

WAIT_S = 5
OVERHEAD_BYTES = 64 * 1024  # what the loop needs to turn


class Line:
    """A relay with both of its outer ends in the test's hands."""

    def __init__(self, half_closed_s: float = 60) -> None:
        self.inside, cage = tcp_pair()
        self.outside, upstream = tcp_pair()
        self.ended: asyncio.Future[RelayResult] = asyncio.get_running_loop().create_future()
        self.relay = SocketRelay(
            cage,
            upstream,
            RelayBuffer(),
            half_closed_s=half_closed_s,
            on_end=lambda _, result: self.ended.set_result(result),
        )

    async def result(self) -> RelayResult:
        async with asyncio.timeout(WAIT_S):
            return await self.ended


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


async def read(sock: socket.socket, amount: int) -> bytes:
    loop = asyncio.get_running_loop()
    got = b""
    async with asyncio.timeout(WAIT_S):
        while len(got) < amount and (chunk := await loop.sock_recv(sock, 65536)):
            got += chunk
    return got


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    made.relay.cut()
    made.inside.close()
    made.outside.close()


async def test_bytes_go_both_ways_and_are_counted(line: Line) -> None:
    loop = asyncio.get_running_loop()
    line.relay.start(b"early ")
    await loop.sock_sendall(line.inside, b"up")
    assert await read(line.outside, 8) == b"early up"
    await loop.sock_sendall(line.outside, b"down")
    assert await read(line.inside, 4) == b"down"
    line.inside.close()
    line.outside.close()
    assert await line.result() == RelayResult(8, 4, ConnectionEnd.CLOSED)


async def test_an_end_in_one_direction_leaves_the_other_open(line: Line) -> None:
    loop = asyncio.get_running_loop()
    line.relay.start()
    await loop.sock_sendall(line.inside, b"question")
    line.inside.shutdown(socket.SHUT_WR)
    assert await read(line.outside, 100) == b"question"
    await loop.sock_sendall(line.outside, b"late answer")
    assert await read(line.inside, 11) == b"late answer"
    assert not line.ended.done()
    line.outside.close()
    assert await line.result() == RelayResult(8, 11, ConnectionEnd.CLOSED)


async def test_a_half_closed_relay_that_falls_silent_is_ended() -> None:
    line = Line(half_closed_s=0.05)
    line.relay.start()
    line.inside.shutdown(socket.SHUT_WR)
    assert (await line.result()).ending is ConnectionEnd.IDLE
    line.inside.close()
    line.outside.close()


async def test_a_half_closed_relay_that_keeps_talking_goes_on(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    timers: list[Callable[[], None]] = []
    real = loop.call_later

    def call_later(delay: float, callback: Callable[[], None], *args: Any) -> asyncio.TimerHandle:
        timers.append(callback)
        return real(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", call_later)
    line.relay.start()
    line.inside.shutdown(socket.SHUT_WR)
    assert await read(line.outside, 1) == b""
    for word in (b"a", b"b"):
        await loop.sock_sendall(line.outside, word)
        assert await read(line.inside, 1) == word
        timers.pop()()
        assert not line.ended.done()
    timers.pop()()
    assert (await line.result()).ending is ConnectionEnd.IDLE


async def test_a_broken_connection_is_passed_on_as_broken(line: Line) -> None:
    line.relay.start()
    line.outside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    line.outside.close()
    assert (await line.result()).ending is ConnectionEnd.RESET
    with pytest.raises(ConnectionResetError):
        await asyncio.get_running_loop().sock_recv(line.inside, 1)


async def test_a_receiver_that_does_not_read_stops_its_sender(line: Line) -> None:
    line.relay.start()
    sent = 0
    idle_rounds = 0
    block = bytes(1 << 20)
    tracemalloc.start()
    while idle_rounds < 50:
        with suppress(BlockingIOError):
            sent += line.inside.send(block)
            idle_rounds = 0
        idle_rounds += 1
        await asyncio.sleep(0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Kernel buffers on both sides and one chunk; far below what an unbounded relay would take.
    kernel = sum(
        sock.getsockopt(socket.SOL_SOCKET, option)
        for sock in (line.inside, line.outside)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
    )
    assert sent <= 2 * kernel + RELAY_CHUNK_BYTES + (16 << 20)
    assert held <= RELAY_CHUNK_BYTES + OVERHEAD_BYTES
    got = 0
    line.inside.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(WAIT_S):
        while chunk := await asyncio.get_running_loop().sock_recv(line.outside, 1 << 20):
            got += len(chunk)
    assert got == sent


async def test_cutting_ends_once_and_closes_both_sides(line: Line) -> None:
    line.relay.start()
    line.relay.cut()
    line.relay.cut()
    assert await line.result() == RelayResult(0, 0, ConnectionEnd.CUT)
    with pytest.raises(ConnectionResetError):
        await asyncio.get_running_loop().sock_recv(line.outside, 1)
