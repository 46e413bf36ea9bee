"""A client that hangs up before its stream begins is no error of the daemon's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from kaged.serve.http import connection
from kaged.serve.http.connection import accept
from kaged.serve.mcp import stream


class Stream:
    """A stream whose client is gone, or is not."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.accepted = 0

    async def accept(self) -> None:
        self.accepted += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [OSError("gone"), WebSocketDisconnect(1006)], ids=repr)
async def test_nobody_to_accept_is_no_error(error: Exception) -> None:
    gone: Any = Stream(error)
    assert await accept(gone) is False
    assert gone.accepted == 1


async def test_a_client_that_waits_is_accepted_and_other_errors_are_errors() -> None:
    waits: Any = Stream(None)
    assert await accept(waits) is True
    broken: Any = Stream(ValueError("ours"))
    with pytest.raises(ValueError, match="ours"):
        await accept(broken)


@pytest.mark.parametrize("closing", [True, False])
async def test_an_application_that_ends_unaccepted_is_told_from_a_client_that_left(
    monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    """Uvicorn reports the one as a fault of the application, and not the other."""
    kind = connection.KagedWebSocketProtocol
    ran: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(True)

    async def run(self: Any) -> None:
        await self.app({}, None, None)

    monkeypatch.setattr(kind.__mro__[1], "run_asgi", run)
    protocol: Any = kind.__new__(kind)
    protocol.app = app
    protocol.transport = type("Transport", (), {"is_closing": lambda _: closing})()
    if closing:
        with pytest.raises(ClientDisconnected):
            await protocol.run_asgi()
    else:
        await protocol.run_asgi()
    assert ran == [True]


@pytest.mark.parametrize("end", ["reader", "both"])
async def test_a_server_that_has_ended_takes_no_more_lines_and_that_is_no_error(end: str) -> None:
    read_in, read_out = anyio.create_memory_object_stream[Any](0)
    read_out.close()
    if end == "both":
        read_in.close()

    class Lines:
        async def receive(self) -> dict[str, Any]:
            line = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
            return {"type": "websocket.receive", "bytes": line}

    websocket: Any = Lines()
    assert (await stream._receive(websocket, read_in)).code == 1000
    read_in.close()
