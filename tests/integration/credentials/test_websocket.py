"""WebSocket through the gate of a bound host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from fakes.bound_world import VALUE, Authorities, BoundWorld, bound_world, placeholder
from kaged.kernel.bindings import BEARER, CageCredential, CredentialBinding, Destination

HELD = placeholder(1)


class Echo:
    """A server that answers each message with itself, and keeps what came."""

    def __init__(self) -> None:
        self.seen: list[str | bytes] = []
        self.authorization: list[str | None] = []
        self.extensions: list[str | None] = []
        self.port = 0

    async def serve(self, connection: ServerConnection) -> None:
        """Echo until the end."""
        request = connection.request
        assert request is not None
        self.authorization.append(request.headers.get("authorization"))
        self.extensions.append(request.headers.get("sec-websocket-extensions"))
        async for message in connection:
            self.seen.append(message)
            if message == "the value, please":
                await connection.send(f"it is {VALUE}.")
            elif message == "in pieces, please":
                await connection.send(iter([f"it is {VALUE[:9]}", f"{VALUE[9:]}."]))
            else:
                await connection.send(message)


@pytest.fixture
async def echo(outside: Authorities) -> AsyncIterator[Echo]:
    """Return such a server."""
    made = Echo()
    async with serve(made.serve, "127.0.0.1", 0, ssl=outside.server("api.test")) as server:
        made.port = next(iter(server.sockets)).getsockname()[1]
        yield made


@pytest.fixture
async def world(outside: Authorities, echo: Echo) -> AsyncIterator[BoundWorld]:
    """Return the gate of a cage before it."""
    binding = CredentialBinding(
        "github", (Destination("api.test"),), (BEARER,), ca_file=str(outside.file)
    )
    async with bound_world(CageCredential(binding, HELD), server_port=echo.port) as one:
        yield one


def _connect(world: BoundWorld) -> connect:
    host, port = world.address
    return connect(
        "wss://api.test/socket",
        host=host,
        port=port,
        ssl=world.client_context(),
        server_hostname="api.test",
        additional_headers={"Authorization": f"Bearer {HELD}"},
        proxy=None,
    )


async def _said(talk: ClientConnection, message: str | bytes) -> str | bytes:
    await talk.send(message)
    async with asyncio.timeout(10):
        return await talk.recv()


async def test_messages_pass_in_both_directions(world: BoundWorld, echo: Echo) -> None:
    async with _connect(world) as talk:
        assert await _said(talk, "hello t") == "hello t"
        assert await _said(talk, b"\0bytes" * 50_000) == b"\0bytes" * 50_000
        assert await _said(talk, "gr\u00fc\u00dfe \U0001f600") == "gr\u00fc\u00dfe \U0001f600"
        pong = await talk.ping()
        async with asyncio.timeout(10):
            await pong
    assert echo.authorization == [f"Bearer {VALUE}"]
    assert echo.extensions == [None]  # what is compressed cannot be looked into
    assert {event.outcome for event in world.events} == {"101"}


async def test_the_value_does_not_come_back(world: BoundWorld, echo: Echo) -> None:
    async with _connect(world) as talk:
        assert await _said(talk, "the value, please") == f"it is {'*' * len(VALUE)}."
        assert VALUE[9:] not in str(await _said(talk, "in pieces, please"))


async def test_a_placeholder_in_a_message_ends_the_conversation(
    world: BoundWorld, echo: Echo
) -> None:
    async with _connect(world) as talk:
        with pytest.raises(ConnectionClosed) as caught:
            await _said(talk, f"my key is {HELD}")
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == websockets.frames.CloseCode.POLICY_VIOLATION
    assert echo.seen == []
