"""`serve_stream`: one client over a WebSocket, as `kaged mcp` brings it from its stdin and stdout.

The socket carries bytes; what is a message is decided by line ends, as on a pipe. Pieces are small,
so that one long message needs no large frames.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from mcp.server.runner import serve_dual_era_loop
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from kaged.serve.mcp.client_session import McpClientSession
    from kaged.serve.mcp.server import AgentServer

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_NOISE: Final = 100
SEND_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """Why a stream ends, as the WebSocket's close says it."""

    code: int = 1000
    reason: str = ""


_TOO_LARGE: Final = _StreamEnd(1009, f"a message may have {MAX_MESSAGE_BYTES} bytes")
_NONSENSE: Final = _StreamEnd(1008, "too many lines are no messages")
_GONE: Final = _StreamEnd(1001, "the daemon is stopping, or the project was unloaded")
_SLOW: Final = _StreamEnd(1013, "the client does not read what it is sent")


async def serve_stream(
    websocket: WebSocket,
    server: AgentServer,
    client_session: McpClientSession,
    cut_off: asyncio.Event,
) -> None:
    """Serve one client until it leaves, is cut off, or does what no client may."""
    read_in, read_out = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_in, write_out = anyio.create_memory_object_stream[SessionMessage](0)

    async def serve() -> _StreamEnd:
        options = server.sdk.create_initialization_options()
        await serve_dual_era_loop(
            server.sdk, read_out, write_in, lifespan_state=client_session, init_options=options
        )
        return _StreamEnd()

    async def receive() -> _StreamEnd:
        async with read_in:
            return await _receive(websocket, read_in)

    async def send() -> _StreamEnd:
        async with write_out:
            return await _send(websocket, write_out)

    async def wait() -> _StreamEnd:
        await cut_off.wait()
        return _GONE

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(part()) for part in (serve, receive, send, wait)]
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            part.cancel()
    for stream in (read_in, read_out, write_in, write_out):
        stream.close()
    ends = [part.result() for part in parts if part in done]
    await _hang_up(websocket, max(ends, key=lambda end: end.code))


async def _receive(websocket: WebSocket, read_in: Any) -> _StreamEnd:
    """Hand on what the client sends, message by message."""
    rest = bytearray()
    noise = 0
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return _StreamEnd()
        piece: bytes = message.get("bytes") or (message.get("text") or "").encode()
        rest += piece
        if len(rest) > MAX_MESSAGE_BYTES:
            return _TOO_LARGE
        if b"\n" not in piece:
            continue
        *lines, tail = bytes(rest).split(b"\n")
        rest = bytearray(tail)
        for line in filter(bytes.strip, lines):
            try:
                parsed = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                await read_in.send(SessionMessage(parsed))
            except ValidationError as error:
                noise += 1
                if noise > MAX_NOISE:
                    return _NONSENSE
                await read_in.send(error)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return _StreamEnd()  # the server has ended


async def _send(websocket: WebSocket, write_out: Any) -> _StreamEnd:
    """Send what the server says."""
    try:
        async for message in write_out:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await websocket.send_bytes(text.encode() + b"\n")
    except TimeoutError:
        return _SLOW
    except (WebSocketDisconnect, RuntimeError):
        pass  # it has left
    return _StreamEnd()


async def _hang_up(websocket: WebSocket, end: _StreamEnd) -> None:
    try:
        async with asyncio.timeout(1.0):
            await websocket.close(end.code, end.reason)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        return  # it has left already
