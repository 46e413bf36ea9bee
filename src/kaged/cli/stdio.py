"""`relay`: stdin and stdout of this process on one side, a stream of the daemon on the other.

As thin as it can be: bytes go through as they come. What they mean is the daemon's business, and so
is every limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kaged.base import KagedError
from kaged.cli.client import DaemonRefused

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import InvalidStatus

PIECE_BYTES: Final = 32 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
OPEN_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 2.0
NORMAL: Final = 1000


async def relay(socket: Path, path: str) -> None:
    """Carry MCP between this process's standard streams and the daemon until one side ends.

    Raises:
        KagedError: `mcp_stream_ended`; the daemon refuses, or ends the stream first.
    """
    from websockets.asyncio.client import unix_connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

    try:
        async with unix_connect(
            str(socket),
            f"ws://kaged{path}",
            compression=None,
            max_size=MAX_ANSWER_BYTES,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=None,
        ) as stream:
            await _carry(stream)
    except InvalidStatus as error:
        raise _refusal(error) from error
    except InvalidHandshake as error:
        raise KagedError(
            f"The daemon does not serve this agent: {error}.",
            code="mcp_stream_ended",
            fix="List the project's agents with `kaged project show`.",
        ) from error
    except (WebSocketException, OSError) as error:
        raise KagedError(
            f"The connection to the daemon failed: {error}.", code="mcp_stream_ended"
        ) from error


def _refusal(refused: InvalidStatus) -> Exception:
    """Return the daemon's own words; without any, those of a stream that did not begin."""
    try:
        return DaemonRefused(json.loads(refused.response.body or b""))
    except (ValueError, KeyError, TypeError):
        return KagedError(
            f"The daemon does not serve this agent: {refused}.",
            code="mcp_stream_ended",
            fix="List the project's agents with `kaged project show`.",
        )


async def _carry(stream: ClientConnection) -> None:
    async with asyncio.TaskGroup() as group:
        inward = group.create_task(_send_stdin(stream))
        outward = group.create_task(_write_stdout(stream))
        done, _ = await asyncio.wait({inward, outward}, return_when=asyncio.FIRST_COMPLETED)
        inward.cancel()
        outward.cancel()
    if outward in done and stream.close_code not in (None, NORMAL):
        reason = stream.close_reason or "the daemon closed the connection"
        raise KagedError(f"The daemon ended the stream: {reason}.", code="mcp_stream_ended")


async def _send_stdin(stream: ClientConnection) -> None:
    from websockets.exceptions import ConnectionClosed

    read = await standard_input()
    with suppress(ConnectionClosed):
        while piece := await read():
            await stream.send(piece)


async def standard_input() -> Callable[[], Awaitable[bytes]]:
    """Return what reads a piece of standard input; an empty piece is its end."""
    pipe = asyncio.StreamReader(limit=PIECE_BYTES)
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    except (ValueError, OSError):
        # A plain file, for which there is no waiting.
        return lambda: asyncio.to_thread(os.read, sys.stdin.fileno(), PIECE_BYTES)
    return lambda: pipe.read(PIECE_BYTES)


async def _write_stdout(stream: ClientConnection) -> None:
    from websockets.exceptions import ConnectionClosed

    descriptor = sys.stdout.fileno()
    # Who closed what, and why, is read off the stream afterwards.
    with suppress(ConnectionClosed, BrokenPipeError):
        async for message in stream:
            data = message.encode() if isinstance(message, str) else message
            if len(data) <= PIECE_BYTES:
                # A pipe takes this much at once, unless its reader has stopped reading.
                write_all(descriptor, data)
            else:
                await asyncio.to_thread(write_all, descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however long that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
