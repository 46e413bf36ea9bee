"""A client that hangs up before its stream begins is no error of the daemon's."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from kaged.serve.http import connection
from kaged.serve.http.connection import accept


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
    stream: Any = Stream(error)
    assert await accept(stream) is False
    assert stream.accepted == 1


async def test_a_client_that_waits_is_accepted_and_other_errors_are_errors() -> None:
    stream: Any = Stream(None)
    assert await accept(stream) is True
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
