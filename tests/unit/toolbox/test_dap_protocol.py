"""The conversation with a debug adapter that is gone before the first word."""

from __future__ import annotations

import asyncio

import pytest

from kaged.base import JsonObject
from kaged.toolbox.dap.channels import Channels
from kaged.toolbox.dap.errors import DapSessionEnded
from kaged.toolbox.dap.protocol import DapConnection


class ClosedInput(asyncio.WriteTransport):
    """The input of a process that has ended: it is known to close, and takes nothing."""

    def is_closing(self) -> bool:
        """Return that it is."""
        return True

    def close(self) -> None:
        """Close it again."""

    def get_write_buffer_size(self) -> int:
        """Return that nothing waits."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Fail as the event loop's transports do."""
        raise RuntimeError("the handler is closed")


async def refuse(command: str, arguments: JsonObject) -> JsonObject:
    """Take no request of the adapter's."""
    raise AssertionError(command)


@pytest.mark.parametrize("relayed", [False, True])
async def test_an_adapter_that_ended_at_once_is_told_as_one_that_ended(relayed: bool) -> None:
    connection = DapConnection(lambda _event, _body: None, refuse, lambda: None)
    if relayed:
        channels = Channels(lambda _name, _text: None, lambda _code: None, lambda: None)
        channels.write_to(ClosedInput())
        connection.write_to(channels.open(connection))
    else:
        connection.write_to(ClosedInput())
    assert not connection.is_open
    with pytest.raises(DapSessionEnded, match="has ended"):
        await connection.request("initialize")
    await connection.close()
