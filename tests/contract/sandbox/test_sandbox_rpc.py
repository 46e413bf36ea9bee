"""The host's end of the sandbox channel, over a real socket, with clients good and bad."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.capability_codes import CAPABILITY_CODES
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.serve.sandbox_rpc import RpcLimits, SandboxRpc
from kaged.services.errors import (
    CapabilityNotFound,
    CapabilityRateLimited,
    provider_error,
)
from kaged.wire.tokens import TokenReason, TokenRejected
from requirements import requirement

TOKEN = "own.token.here"
WAIT_S = 30


class Methods:
    """Answers as the test says."""

    methods = frozenset({"capability.list", "capability.invoke"})

    def __init__(self, answer: Callable[[JsonObject], Awaitable[JsonObject]] | None = None) -> None:
        self.calls: list[tuple[str, JsonObject]] = []
        self._answer = answer

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        self.calls.append((method, params))
        return {"ok": True} if self._answer is None else await self._answer(params)


class Client:
    """Speaks frames, and anything else that a test wants to send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, value: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.writer.write(len(data).to_bytes(4, "big") + data)

    async def receive(self) -> Any:
        """Return the next message, or None at the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                length = int.from_bytes(await self._reader.readexactly(4), "big")
            except asyncio.IncompleteReadError:
                return None
            return json.loads(await self._reader.readexactly(length))

    async def ask(self, value: Any) -> Any:
        self.send(value)
        return await self.receive()


def request(method: str = "capability.list", token: Any = TOKEN, **more: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {"context_token": token, **more},
    }


class Channel:
    """A served channel and what was said about tokens that are not its own."""

    def __init__(self, methods: Methods, limits: RpcLimits | None) -> None:
        self.methods = methods
        self.refused: list[tuple[str, JsonValue]] = []
        self.rpc = SandboxRpc(methods, TOKEN, self._foreign, limits)
        self.port = 0

    def _foreign(self, method: str, token: JsonValue) -> TokenRejected:
        self.refused.append((method, token))
        return TokenRejected(TokenReason.SIGNATURE if token else TokenReason.MISSING)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    methods: Methods | None = None, limits: RpcLimits | None = None
) -> AsyncGenerator[Channel]:
    channel = Channel(methods or Methods(), limits)
    open_ = set[asyncio.StreamWriter]()
    ended = asyncio.Condition()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        await channel.rpc.serve(reader, writer)
        writer.close()
        async with ended:
            open_.discard(writer)
            ended.notify_all()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    channel.port = server.sockets[0].getsockname()[1]
    try:
        yield channel
    finally:
        server.close()
        async with asyncio.timeout(WAIT_S), ended:
            await ended.wait_for(lambda: not open_)


async def raising(error: Exception) -> JsonObject:
    raise error


@requirement("SC-AMB-06")
@pytest.mark.parametrize(
    ("sent", "number"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"a": NaN}', -32700),
        (b"[" * 300 + b"]" * 300, -32700),
        (b"[]", -32600),
        (b"5", -32600),
        ([request()], -32600),
        ({"id": 1, "method": "capability.list"}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "capability.list"}, -32600),
        ({"jsonrpc": "2.0", "method": "capability.list"}, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "capability.list"}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "capability.list", "params": [1]}, -32600),
        (request("capability.wreck"), -32601),
        (request("vault.get", token=None), -32601),
        (request(token=None), -32602),
        (request(token="x.y.z"), -32602),
        (request(token=7), -32602),
    ],
)
async def test_each_fault_of_a_request_has_its_number(sent: Any, number: int) -> None:
    async with serving() as channel, channel.client() as client:
        answer = await client.ask(sent)
        assert answer["error"]["code"] == number
        assert channel.methods.calls == []
        assert (await client.ask(request()))["result"] == {"ok": True}  # and the line still works


@requirement("SC-AMB-06")
async def test_capability_errors_carry_their_code_in_text_and_data() -> None:
    error = CapabilityNotFound("nobody offers a.b", request_id="cap_7")
    async with serving(Methods(lambda _: raising(error))) as channel, channel.client() as client:
        assert (await client.ask(request()))["error"] == {
            "code": -32603,
            "message": "capability_not_found: nobody offers a.b",
            "data": {"code": "capability_not_found", "retryable": False, "request_id": "cap_7"},
        }


async def test_every_stable_code_travels() -> None:
    errors = [
        CapabilityRateLimited("slow down", retry_after_seconds=9)
        if code == CapabilityRateLimited.code
        else provider_error(code, "no")
        for code in CAPABILITY_CODES
    ]
    waiting = [*errors, provider_error("capability_own_word", "no")]

    async def answer(_: JsonObject) -> JsonObject:
        return await raising(waiting.pop(0))

    async with serving(Methods(answer)) as channel, channel.client() as client:
        for code in [*CAPABILITY_CODES, "capability_own_word"]:
            error = (await client.ask(request()))["error"]
            assert error["data"]["code"] == code
            assert error["message"].startswith(f"{code}: ")
            if code == "capability_rate_limited":
                assert error["data"]["retry_after_seconds"] == 9


@requirement("SC-AMB-06")
async def test_the_text_of_an_unforeseen_exception_stays_in_the_host() -> None:
    methods = Methods(lambda _: raising(RuntimeError("secret-marker-4711")))
    async with serving(methods) as channel, channel.client() as client:
        answer = await client.ask(request())
        assert "secret-marker" not in json.dumps(answer)
        assert answer["error"]["message"] == "capability_internal_error: request failed"
        assert answer["error"]["data"]["code"] == "capability_internal_error"


@requirement("SC-AMB-06")
@pytest.mark.parametrize("method", sorted(Methods.methods))
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret-marker-4711"),
        KagedError("secret-marker-4711 in /home/x/kaged.db", code="store_unusable", fix="marker"),
    ],
)
async def test_no_method_lets_a_text_of_the_host_out(method: str, error: Exception) -> None:
    """Those that only list something no more than the others."""
    methods = Methods(lambda _: raising(error))
    async with serving(methods) as channel, channel.client() as client:
        answer = await client.ask(request(method))
        assert answer["error"] == {
            "code": -32603,
            "message": "capability_internal_error: request failed",
            "data": {"code": "capability_internal_error", "retryable": True},
        }


@pytest.mark.parametrize("method", sorted(Methods.methods))
async def test_a_refused_token_names_the_reason_and_no_handler_sees_the_request(
    method: str,
) -> None:
    async with serving() as channel, channel.client() as client:
        for token, reason in ((None, "missing"), ("", "missing"), ("a.b.c", "signature")):
            error = (await client.ask(request(method, token)))["error"]
            assert error["code"] == -32602
            assert error["message"].startswith(f"Invalid context token ({reason})")
        assert channel.methods.calls == []
        assert channel.refused == [(method, None), (method, ""), (method, "a.b.c")]


async def test_ten_refused_tokens_end_the_connection() -> None:
    async with serving() as channel:
        async with channel.client() as client:
            for _ in range(10):
                assert (await client.ask(request(token="a.b.c")))["error"]["code"] == -32602
            assert await client.receive() is None
        async with channel.client() as another:
            assert (await another.ask(request()))["result"] == {"ok": True}


@pytest.mark.parametrize("length", [10 * 1024 * 1024 + 1, 2**32 - 1])
async def test_an_over_long_frame_is_answered_and_ends_the_connection(length: int) -> None:
    async with serving() as channel, channel.client() as client:
        client.send(request())
        client.writer.write(length.to_bytes(4, "big") + b"x" * 100)
        assert (await client.receive())["result"] == {"ok": True}
        assert (await client.receive())["error"]["code"] == -32600
        assert await client.receive() is None


async def test_a_frame_may_come_byte_by_byte_and_several_at_once() -> None:
    body = json.dumps(request()).encode()
    frame = len(body).to_bytes(4, "big") + body
    async with serving() as channel, channel.client() as client:
        for at in range(len(frame)):
            client.writer.write(frame[at : at + 1])
            await client.writer.drain()
        assert (await client.receive())["result"] == {"ok": True}
        client.writer.write(frame * 3)
        for _ in range(3):
            assert (await client.receive())["result"] == {"ok": True}


async def test_a_frame_that_drips_has_one_deadline() -> None:
    limits = RpcLimits(frame_s=0.05)
    async with serving(limits=limits) as channel, channel.client() as client:
        client.writer.write((1000).to_bytes(4, "big") + b"{")
        assert await client.receive() is None


async def test_a_silent_connection_is_closed() -> None:
    async with serving(limits=RpcLimits(idle_s=0.05)) as channel, channel.client() as client:
        assert await client.receive() is None


async def test_requests_of_one_connection_are_answered_in_order() -> None:
    order: list[JsonValue] = []

    async def slow_first(params: JsonObject) -> JsonObject:
        if params["n"] == 0:
            await asyncio.sleep(0)
        order.append(params["n"])
        return {"n": params["n"]}

    async with serving(Methods(slow_first)) as channel, channel.client() as client:
        for n in range(5):
            client.send(request(n=n))
        answers = [await client.receive() for _ in range(5)]
    assert [one["result"]["n"] for one in answers] == order == [0, 1, 2, 3, 4]


async def test_more_connections_than_are_served_at_once_wait_their_turn() -> None:
    gate, full, busy, most = asyncio.Event(), asyncio.Event(), 0, 0

    async def hold(_: JsonObject) -> JsonObject:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 2:
            full.set()
        await gate.wait()
        busy -= 1
        return {}

    async with serving(Methods(hold), RpcLimits(connections=2)) as channel:

        async def one() -> Any:
            async with channel.client() as client:
                return await client.ask(request())

        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            asked = [group.create_task(one()) for _ in range(6)]
            await full.wait()
            gate.set()
        assert [task.result()["result"] for task in asked] == [{}] * 6
    assert most == 2


async def test_an_answer_that_is_too_long_becomes_an_error() -> None:
    async def large(_: JsonObject) -> JsonObject:
        return {"text": "x" * 2000}

    limits = RpcLimits(frame_bytes=1000)
    async with serving(Methods(large), limits) as channel, channel.client() as client:
        answer = await client.ask(request())
        assert answer["error"]["data"]["code"] == "capability_internal_error"
        assert answer["id"] == 1
