"""The connection over real pipes, with the test as the peer at the other end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest

from kaged.base import JsonValue, KagedError, Tasks
from kaged.cage.pipe_end import PipeEnd
from kaged.peer.connection import Connection
from kaged.peer.errors import PeerGone, PeerStalled, PeerTimeout
from kaged.peer.owner import ConnectionLimits
from kaged.wire.correlator import Ignored, TooManyOpen
from kaged.wire.errors import NotApplicable, RpcError
from kaged.wire.framing import OversizeMessage, Unsendable
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response
from requirements import requirement


class Recorder:
    """An owner that writes down what it hears and answers by method name."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.asked_for: list[MessageId] = []
        self.gate = asyncio.Event()
        self.changed = asyncio.Event()

    def _hear(self, what: str, value: Any) -> None:
        self.heard.append((what, value))
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.heard) < count:
                self.changed.clear()
                await self.changed.wait()

    async def answer(self, request: Request) -> JsonValue:
        if request.method == "wait":
            await self.gate.wait()
        if request.method == "refuse":
            raise NotApplicable("not here", detail={"a": 1})
        if request.method == "domain":
            raise KagedError("ours")
        if request.method == "bug":
            raise ZeroDivisionError("secret detail")
        if request.method == "unsendable":
            return cast("JsonValue", float("nan"))
        return {"echo": cast("JsonValue", request.params)}

    def asked(self, request: Request) -> None:
        self.asked_for.append(request.id)

    def notified(self, notification: Notification) -> None:
        self._hear("notified", notification.method)

    def refused(self, refused: Refused) -> None:
        self._hear("refused", type(refused).__name__)

    def ignored(self, response: Response, why: Ignored) -> None:
        self._hear("ignored", why)

    def out_of_step(self, message_id: MessageId) -> None:
        self._hear("out_of_step", message_id)

    def broke(self, error: KagedError) -> None:
        self._hear("broke", type(error))

    def closed(self) -> None:
        self._hear("closed", None)


class Peer:
    """The other end of the two pipes."""

    def __init__(
        self, connection: Connection, owner: Recorder, read_fd: int, write_fd: int
    ) -> None:
        self.connection = connection
        self.owner = owner
        self._reader = asyncio.StreamReader(limit=8 * 1024 * 1024)
        self._read_fd = read_fd
        self._write_fd = write_fd
        self.transport: asyncio.ReadTransport | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(self._read_fd, "rb")
        )

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return cast("dict[str, Any]", json.loads(await self._reader.readline()))

    def raw(self, data: bytes) -> None:
        os.write(self._write_fd, data)

    def write(self, **message: Any) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def hang_up(self) -> None:
        os.close(self._write_fd)
        self._write_fd = -1

    async def close(self) -> None:
        await self.connection.close()
        if self._write_fd >= 0:
            self.hang_up()
        if self.transport is not None:
            self.transport.close()
        await asyncio.sleep(0)


LIMITS = ConnectionLimits(open_calls=3, open_requests=2, write_buffer_bytes=256 * 1024)


async def make_peer(limits: ConnectionLimits = LIMITS, *, listen: bool = True) -> Peer:
    to_peer, from_host = os.pipe()
    from_peer, to_host = os.pipe()
    owner = Recorder()
    connection = Connection(owner, name="stub", limits=limits)
    await connection.attach(PipeEnd(from_peer), PipeEnd(from_host))
    peer = Peer(connection, owner, to_peer, to_host)
    if listen:
        await peer.listen()
    return peer


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = await make_peer()
    yield made
    await made.close()


def ask(peer: Peer, method: str = "m", timeout_s: float = 5.0, **params: Any) -> asyncio.Task[Any]:
    loop = asyncio.get_running_loop()
    return loop.create_task(peer.connection.request(method, params, timeout_s))


async def test_answers_find_their_requests_in_any_order(peer: Peer) -> None:
    first, second = ask(peer, n=1), ask(peer, n=2)
    messages = [await peer.read(), await peer.read()]
    assert [message["id"] for message in messages] == [1, 2]
    peer.write(id=2, result="second")
    peer.write(id=1, result="first")
    assert (await first, await second) == ("first", "second")


async def test_errors_of_the_peer_reach_the_caller_unchanged(peer: Peer) -> None:
    call = ask(peer)
    await peer.read()
    peer.write(id=1, error={"code": -32005, "message": "busy", "data": {"retry": 3}})
    with pytest.raises(RpcError) as caught:
        await call
    assert (caught.value.number, caught.value.message, caught.value.detail) == (
        -32005,
        "busy",
        {"retry": 3},
    )


async def test_an_answer_without_result_is_none_and_marked_empty(peer: Peer) -> None:
    loop = asyncio.get_running_loop()
    call = loop.create_task(peer.connection.exchange("m", {}, 5.0))
    await peer.read()
    peer.write(id=1)
    assert await call == Response(1, None, None, empty=True)


async def test_a_late_answer_is_ignored(peer: Peer) -> None:
    with pytest.raises(PeerTimeout):
        await ask(peer, timeout_s=0.0)
    await peer.read()
    peer.write(id=1, result="late")
    await peer.owner.until(1)
    assert peer.owner.heard == [("ignored", Ignored.LATE)]


async def test_each_call_has_its_own_deadline(peer: Peer) -> None:
    patient = ask(peer, timeout_s=60.0)
    with pytest.raises(PeerTimeout):
        await ask(peer, timeout_s=0.0)
    assert not patient.done()
    assert peer.connection.open_calls == 1
    await peer.read()
    peer.write(id=1, result="fine")
    assert await patient == "fine"


async def test_a_cancelled_caller_tells_the_peer_when_asked_to(peer: Peer) -> None:
    loop = asyncio.get_running_loop()
    call = loop.create_task(peer.connection.request("m", {}, 5.0, cancel=True))
    await peer.read()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await peer.read() == {"jsonrpc": "2.0", "method": "kaged.cancel", "params": {"id": 1}}


async def test_calls_notices_and_cancellations_of_one_turn_keep_their_order(peer: Peer) -> None:
    loop = asyncio.get_running_loop()
    calls = [loop.create_task(peer.connection.request("m", {}, 5.0, cancel=True)) for _ in "abc"]
    loop.call_soon(peer.connection.notify, "told", {})
    loop.call_soon(calls[1].cancel)
    heard = [await peer.read() for _ in range(5)]
    assert [message.get("id", message["method"]) for message in heard] == [
        1,
        2,
        3,
        "told",
        "kaged.cancel",
    ]
    peer.write(id=3, result="three")
    peer.write(id=1, result="one")
    assert (await calls[0], await calls[2]) == ("one", "three")


async def test_calls_that_wait_for_the_end_of_the_turn_count_as_unread() -> None:
    deaf = await make_peer(ConnectionLimits(open_calls=9, write_buffer_bytes=3000), listen=False)
    loop = asyncio.get_running_loop()
    pad: dict[str, JsonValue] = {"pad": "x" * 900}
    calls = [loop.create_task(deaf.connection.request("m", pad, 60.0)) for _ in range(5)]
    await asyncio.sleep(0)
    # The first one is alone and leaves at once; of the others three fit, the last one does not.
    assert [call.done() for call in calls] == [False] * 4 + [True]
    with pytest.raises(PeerStalled):
        await calls[-1]
    assert deaf.connection.open_calls == 4
    await deaf.close()
    await asyncio.gather(*calls, return_exceptions=True)
    os.close(deaf._read_fd)


async def test_open_calls_fail_at_once_when_the_peer_ends(peer: Peer) -> None:
    call = ask(peer, timeout_s=3600.0)
    await peer.read()
    peer.hang_up()
    with pytest.raises(PeerGone):
        await call
    assert peer.owner.heard == [("closed", None)]
    with pytest.raises(PeerGone):
        await peer.connection.request("m", {}, 1.0)


async def test_too_many_open_calls_are_refused_without_sending(peer: Peer) -> None:
    calls = [ask(peer) for _ in range(3)]
    for _ in calls:
        await peer.read()
    with pytest.raises(TooManyOpen):
        await peer.connection.request("m", {}, 1.0)
    for n in (1, 2, 3):
        peer.write(id=n, result=n)
    assert [await call for call in calls] == [1, 2, 3]


async def test_requests_of_the_peer_are_answered(peer: Peer) -> None:
    for n, method in enumerate(["echo", "refuse", "domain", "bug", "unsendable"], start=1):
        peer.write(id=n, method=method, params={"x": 1})
        answer = await peer.read()
        assert answer["id"] == n
        if method == "echo":
            assert answer["result"] == {"echo": {"x": 1}}
        else:
            wanted = {"refuse": -32006, "domain": -32603, "bug": -32603, "unsendable": -32603}
            assert answer["error"]["code"] == wanted[method], method
            assert "secret detail" not in json.dumps(answer)


async def test_a_peer_with_too_many_open_requests_is_told_to_wait(peer: Peer) -> None:
    for n in (1, 2, 3):
        peer.write(id=n, method="wait")
    answer = await peer.read()
    assert (answer["id"], answer["error"]["code"]) == (3, -32005)
    peer.owner.gate.set()
    assert {(await peer.read())["id"], (await peer.read())["id"]} == {1, 2}


@requirement("PH-AMB-67")
async def test_odd_request_ids_are_answered_and_reported_once(peer: Peer) -> None:
    for message_id in (7, 7, "a"):
        peer.write(id=message_id, method="echo")
        assert (await peer.read())["id"] == message_id
    assert peer.owner.heard == [("out_of_step", 7)]
    assert peer.owner.asked_for == [7, 7, "a"]


async def test_noise_is_dropped_and_batches_are_refused(peer: Peer) -> None:
    peer.raw(b"hello\n\xff\xfe\n[1]\n5\n")
    answers = [await peer.read(), await peer.read()]
    assert [(a["id"], a["error"]["code"]) for a in answers] == [(None, -32600), (None, -32600)]
    assert [what for _, what in peer.owner.heard] == ["Noise", "Noise", "Batch", "Invalid"]
    call = ask(peer)
    await peer.read()
    peer.write(id=1, result="still here")
    assert await call == "still here"


async def test_a_malformed_answer_ends_its_call_at_once(peer: Peer) -> None:
    call = ask(peer, timeout_s=3600.0)
    await peer.read()
    peer.write(id=1, result=1, error={"code": 1, "message": "both"})
    with pytest.raises(RpcError) as caught:
        await call
    assert caught.value.number == -32603


async def test_an_oversize_line_is_reported_after_what_came_whole(peer: Peer) -> None:
    peer.write(method="a.b")

    async def pour() -> None:
        chunk = b"x" * 65536
        for _ in range(70):
            await asyncio.to_thread(peer.raw, chunk)

    pouring = asyncio.get_running_loop().create_task(pour())
    await peer.owner.until(2)
    assert peer.owner.heard[:2] == [("notified", "a.b"), ("broke", OversizeMessage)]
    await peer.connection.close()
    with pytest.raises(BrokenPipeError):
        await pouring


async def test_what_cannot_be_sent_fails_before_it_leaves(peer: Peer) -> None:
    with pytest.raises(Unsendable):
        await peer.connection.request("m", {"x": "y" * (4 * 1024 * 1024)}, 1.0)
    with pytest.raises(Unsendable):
        await peer.connection.request("m", {"x": float("nan")}, 1.0)
    assert peer.connection.open_calls == 0


async def test_a_peer_that_never_reads_costs_a_bounded_buffer() -> None:
    deaf = await make_peer(
        ConnectionLimits(open_calls=1000, write_buffer_bytes=100_000), listen=False
    )
    loop = asyncio.get_running_loop()
    calls: list[asyncio.Task[Any]] = []
    for _ in range(100):
        calls.append(loop.create_task(deaf.connection.request("m", {"pad": "x" * 10_000}, 60.0)))
        await asyncio.sleep(0)
    assert any(call.done() for call in calls)
    await deaf.close()
    gone = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in gone} == {PeerGone, PeerStalled}
    os.close(deaf._read_fd)


async def test_a_flood_of_notifications_pauses_reading_and_loses_nothing() -> None:
    flooded = await make_peer(ConnectionLimits(unasked_per_s=50))
    flooded.raw(b'{"jsonrpc":"2.0","method":"a.b"}\n' * 60)
    await flooded.owner.until(60)
    assert len(flooded.owner.heard) == 60
    await flooded.close()


async def test_one_read_full_of_unasked_lines_is_handled_in_turns_and_in_order() -> None:
    flooded = await make_peer(ConnectionLimits(unasked_per_s=200))  # ten in a turn
    lines = [b'{"jsonrpc":"2.0","method":"n.%d"}\n' % n for n in range(25)]
    flooded.connection.data_received(b"".join(lines[:24]))
    assert len(flooded.owner.heard) == 10
    flooded.connection.data_received(lines[24])
    assert len(flooded.owner.heard) == 10
    await flooded.owner.until(25)
    assert [what for _, what in flooded.owner.heard] == [f"n.{n}" for n in range(25)]
    call = ask(flooded)
    await flooded.read()
    flooded.write(id=1, result="alive")
    assert await call == "alive"
    await flooded.close()


async def test_what_a_flooding_peer_said_last_is_heard_before_its_end() -> None:
    flooded = await make_peer(ConnectionLimits(unasked_per_s=20))  # one in a turn
    call = ask(flooded)
    await flooded.read()
    flooded.connection.data_received(
        b'{"jsonrpc":"2.0","method":"a.b"}\n' * 5 + b'{"jsonrpc":"2.0","id":1,"result":"last"}\n'
    )
    assert not call.done()
    flooded.hang_up()
    assert await call == "last"
    await flooded.owner.until(6)
    assert [what for what, _ in flooded.owner.heard] == ["notified"] * 5 + ["closed"]
    await flooded.close()


async def test_what_came_whole_before_an_oversize_line_is_heard_even_in_a_flood() -> None:
    flooded = await make_peer(ConnectionLimits(unasked_per_s=20))
    good = b'{"jsonrpc":"2.0","method":"a.b"}\n' * 4
    flooded.connection.data_received(good)
    flooded.connection.data_received(good + b"x" * (4 * 1024 * 1024 + 1))
    assert [what for what, _ in flooded.owner.heard] == ["notified"] * 8 + ["broke"]
    await flooded.close()


async def test_a_cancelled_attach_leaves_no_descriptor_open() -> None:
    for turns in range(4):
        ours, theirs = os.pipe(), os.pipe()
        read = PipeEnd(theirs[0])
        write = PipeEnd(ours[1])
        connection = Connection(Recorder(), name="stub")
        attaching = Tasks("test", lambda _name, _error: None).start(
            connection.attach(read, write), "attach"
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        attaching.cancel()
        with suppress(asyncio.CancelledError):
            await attaching
        await connection.close()
        if turns > 0:  # before its first turn it was given nothing
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (read.closed, write.closed) == (True, True), turns
        read.close()
        write.close()
        os.close(ours[0])
        os.close(theirs[1])


FEW = ConnectionLimits(values=100)
LONG = b'{"jsonrpc":"2.0","method":"n.long","params":["%s"]}\n' % (b"x" * 300_000)
MANY = b'{"jsonrpc":"2.0","method":"n.many","params":[%s]}\n' % b",".join([b"0"] * 200)
SHORT = b'{"jsonrpc":"2.0","method":"n.short"}\n'


async def test_a_long_message_is_counted_in_turns_and_keeps_its_place() -> None:
    counted = await make_peer(FEW)
    counted.connection.data_received(SHORT + LONG + SHORT + LONG + SHORT)
    assert [what for _, what in counted.owner.heard] == ["n.short"]
    turns = 0
    while len(counted.owner.heard) < 5:
        await asyncio.sleep(0)
        turns += 1
    order = ["n.short", "n.long", "n.short", "n.long", "n.short"]
    assert [what for _, what in counted.owner.heard] == order
    assert turns >= 2 * (300_000 // 65_536)
    counted.raw(SHORT)
    await counted.owner.until(6)
    await counted.close()


async def test_a_message_of_too_many_values_breaks_the_conversation_off() -> None:
    counted = await make_peer(FEW)
    call = ask(counted)
    await counted.read()
    counted.connection.data_received(SHORT + MANY + SHORT)
    with pytest.raises(PeerGone, match="more than 100 values"):
        await call
    assert counted.owner.heard == [("notified", "n.short"), ("broke", OversizeMessage)]
    counted.connection.data_received(SHORT)
    assert len(counted.owner.heard) == 2
    await counted.close()


@pytest.mark.parametrize(
    ("last", "heard"),
    [(LONG, ["notified", "notified", "closed"]), (MANY, ["notified", "broke", "closed"])],
)
async def test_what_is_being_counted_when_the_peer_ends_is_heard_or_refused(
    last: bytes, heard: list[str]
) -> None:
    counted = await make_peer(FEW)
    counted.connection.data_received(SHORT + last)
    reader = counted.connection._reader
    assert reader is not None
    counted.connection.connection_lost(None)
    assert [what for what, _ in counted.owner.heard] == heard
    await asyncio.sleep(0)
    assert [what for what, _ in counted.owner.heard] == heard
    reader.close()
    await counted.close()


async def test_too_many_values_before_a_breach_are_not_decoded() -> None:
    counted = await make_peer(FEW)
    counted.connection.data_received(MANY + b"x" * (4 * 1024 * 1024 + 1))
    assert {what for what, _ in counted.owner.heard} == {"broke"}
    await counted.close()
