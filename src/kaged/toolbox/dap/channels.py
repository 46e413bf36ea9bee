"""`Channels`: the connections to an adapter that listens, carried over its relay's streams.

The relay runs beside the adapter, in its cage; the messages are described there.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import Final, cast

from kaged.base import JsonObject
from kaged.base.log import get_logger
from kaged.toolbox.dap.adapter_relay import (
    CLOSE,
    DATA,
    EXITED,
    HEAD,
    MAX_FRAME,
    OPEN,
    OUTPUT,
    RUN,
    STARTED,
)
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.wire.fastjson import decode_json, encode_json
from kaged.wire.strictjson import NotJson

MAX_CHANNELS: Final = 64
RUN_LIMIT_S: Final = 20.0

_log = get_logger(__name__)


class AdapterChannel(asyncio.WriteTransport):
    """The writing end of one connection to the adapter."""

    def __init__(self, channels: Channels, number: int) -> None:
        super().__init__()
        self._channels = channels
        self._number = number

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the adapter."""
        self._channels.send(DATA, self._number, bytes(data))

    def close(self) -> None:
        """End the connection."""
        self._channels.leave(self._number)

    def is_closing(self) -> bool:
        """Return whether the relay takes nothing any more."""
        return self._channels.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return how much the relay has not read yet."""
        return self._channels.pending()


class Channels(asyncio.Protocol):
    """All connections to one adapter. `on_output` hears what the program prints: stream and text.

    `on_exit` hears the exit code of a program that `run` started; `on_closed` that all is over.
    """

    def __init__(
        self,
        on_output: Callable[[str, str], None],
        on_exit: Callable[[int], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._on_output = on_output
        self._on_exit = on_exit
        self._on_closed = on_closed
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.BaseTransport | None = None
        self._listeners: dict[int, asyncio.Protocol] = {}
        self._last = -1
        self._buffer = bytearray()
        self._starting: asyncio.Future[JsonObject] | None = None
        self._texts = {1: _decoder(), 2: _decoder()}
        self._ended = False

    # -- attaching -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the relay's output."""
        self._reader = transport

    def write_to(self, transport: asyncio.WriteTransport) -> None:
        """Take the transport of the relay's input."""
        self._writer = transport

    def open(self, listener: asyncio.Protocol) -> AdapterChannel:
        """Join the adapter once more; the first time is the connection that is there already.

        Raises DapRequestFailed when there are too many connections.
        """
        if len(self._listeners) >= MAX_CHANNELS or self._last >= MAX_CHANNELS - 1:
            raise DapRequestFailed(f"there are {MAX_CHANNELS} debug sessions in one already")
        self._last += 1
        self._listeners[self._last] = listener
        if self._last > 0:
            self.send(OPEN, self._last)
        return AdapterChannel(self, self._last)

    def leave(self, number: int) -> None:
        """End a connection. Safe to call twice."""
        if self._listeners.pop(number, None) is not None:
            self.send(CLOSE, number)

    async def run(self, args: list[str], cwd: str, env: JsonObject) -> int:
        """Start a program beside the adapter, in its cage; returns its process id there.

        Raises DapRequestFailed when it cannot be started.
        """
        if self._starting is not None:
            raise DapRequestFailed("one program is being started already")
        self._starting = asyncio.get_running_loop().create_future()
        self.send(RUN, 0, encode_json({"args": [*args], "cwd": cwd, "env": env}))
        try:
            async with asyncio.timeout(RUN_LIMIT_S):
                said = await self._starting
        except TimeoutError:
            raise DapRequestFailed("the program did not start in time") from None
        finally:
            self._starting = None
        pid = said.get("pid")
        if type(pid) is not int:
            raise DapRequestFailed(f"the program did not start: {said.get('error')}")
        return pid

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Send a message to the relay; none after the end."""
        if self._writer is not None and not self._ended and not self._writer.is_closing():
            self._writer.write(HEAD.pack(kind, number, len(body)) + body)

    def is_closing(self) -> bool:
        """Return whether the relay is gone, or about to be."""
        return self._writer is not None and self._writer.is_closing()

    def pending(self) -> int:
        """Return how many bytes the relay has not read yet."""
        return 0 if self._writer is None else self._writer.get_write_buffer_size()

    def close(self) -> None:
        """Close the connection. The relay ends the adapter then."""
        self._ended = True
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        if self._starting is not None and not self._starting.done():
            self._starting.set_result({"error": "the debugger ended"})

    # -- hearing ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what the relay wrote."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._buffer, start)
            if size > MAX_FRAME:
                _log.warning("dap.relay_broken", size=size)
                self._lost()
                return
            end = start + HEAD.size + size
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[start + HEAD.size : end])
            start = end
            self._take(kind, number, body)
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the relay is gone."""
        self._lost()

    def _take(self, kind: int, number: int, body: bytes) -> None:
        match kind:
            case _ if kind == DATA:
                found = self._listeners.get(number)
                if found is not None:
                    found.data_received(body)
            case _ if kind == CLOSE:
                gone = self._listeners.pop(number, None)
                if gone is not None:
                    gone.connection_lost(None)
            case _ if kind == OUTPUT and number in self._texts:
                text = self._texts[number].decode(body)
                if text:
                    self._on_output("stdout" if number == 1 else "stderr", text)
            case _ if kind == STARTED:
                if self._starting is not None and not self._starting.done():
                    self._starting.set_result(_object(body))
            case _ if kind == EXITED:
                code = _object(body).get("code")
                self._on_exit(code if type(code) is int else -1)
            case _:
                _log.debug("dap.relay_message_invalid", kind=kind)

    def _lost(self) -> None:
        if self._ended:
            return
        self.close()
        listeners, self._listeners = self._listeners, {}
        for one in listeners.values():
            one.connection_lost(None)
        self._on_closed()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def _object(body: bytes) -> JsonObject:
    # The relay is in the cage, where the debugged program could have taken its place.
    try:
        found = decode_json(body)
    except NotJson:
        return {}
    return cast("JsonObject", found) if isinstance(found, dict) else {}
