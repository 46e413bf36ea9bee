"""The plugin's way out: order, holding back, one write for many answers, any thread."""

from __future__ import annotations

import asyncio
import threading

from kaged.sdk.outlet import PIECE_BYTES, Outlet


async def test_the_answers_of_one_turn_are_one_write() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    for line in (b"a\n", b"b\n"):
        outlet.put(line, alone=False)
    assert writes == []
    await asyncio.sleep(0)
    assert writes == [b"a\nb\n"]


async def test_a_line_that_is_alone_leaves_at_once_behind_the_gathered_ones() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    outlet.put(b"a\n", alone=True)
    outlet.put(b"b\n", alone=False)
    outlet.put(b"c\n", alone=True)
    assert writes == [b"a\n", b"b\nc\n"]


async def test_much_leaves_in_pieces() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    line = b"x" * 400 + b"\n"
    for _ in range(10):
        outlet.put(line, alone=False)
    assert len(writes) == 3
    assert all(len(piece) <= PIECE_BYTES + len(line) for piece in writes)
    outlet.flush()
    assert b"".join(writes) == line * 10


async def test_another_thread_writes_at_once_and_in_order() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    outlet.put(b"a\n", alone=False)
    thread = threading.Thread(target=lambda: outlet.put(b"b\n", alone=False))
    thread.start()
    thread.join()
    assert writes == [b"a\nb\n"]


async def test_what_must_wait_for_the_handshake_leaves_when_it_is_complete() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    outlet.put_when_ready(b"1\n", alone=True)
    outlet.put_when_ready(b"2\n", alone=False)
    outlet.put(b"answer\n", alone=True)
    assert writes == [b"answer\n"]
    outlet.open()
    assert writes == [b"answer\n", b"1\n2\n"]
    outlet.put_when_ready(b"3\n", alone=True)
    outlet.open()
    assert writes[2:] == [b"3\n"]


async def test_what_was_held_is_dropped_when_the_handshake_never_completes() -> None:
    writes: list[bytes] = []
    outlet = Outlet(writes.append)
    outlet.put_when_ready(b"1\n", alone=True)
    outlet.open(send_held=False)
    outlet.put_when_ready(b"2\n", alone=True)
    assert writes == [b"2\n"]
