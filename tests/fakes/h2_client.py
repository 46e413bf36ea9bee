"""A client of HTTP/2 that sends whatever it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

from fakes.bound_world import BoundWorld


@dataclass
class Came:
    """What came back on one stream."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: bool = False


class RawH2:
    """One connection; nothing that is sent is looked at first."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.protocol = h2.connection.H2Connection(config)
        self._reader = reader
        self._writer = writer
        self.streams: dict[int, Came] = {}
        self.over = False

    @classmethod
    async def connect(cls, world: BoundWorld) -> RawH2:
        """Connect as a program of the cage."""
        one = cls(*await world.connect(protocols=("h2",)))
        one.protocol.initiate_connection()
        return one

    def ask(self, headers: Iterable[tuple[str, str]], body: bytes | None = b"") -> int:
        """Send a request; with None for a body it stays open."""
        number = self.protocol.get_next_available_stream_id()
        self.streams[number] = Came()
        self.protocol.send_headers(number, list(headers), end_stream=body == b"")
        if body:
            self.protocol.send_data(number, body, end_stream=True)
        return number

    async def flush(self) -> None:
        """Send what there is."""
        self._writer.write(self.protocol.data_to_send())
        await self._writer.drain()

    async def until(self, number: int, *, size: int | None = None) -> Came:
        """Read until a stream has ended, or has so much of a body."""
        await self.flush()
        came = self.streams[number]
        async with asyncio.timeout(10):
            while not (came.ended or came.reset or self.over):
                if size is not None and len(came.body) >= size:
                    break
                try:
                    data = await self._reader.read(65536)
                except OSError:
                    data = b""
                self.over = not data
                for event in self.protocol.receive_data(data) if data else ():
                    self._take(event)
                await self.flush()
        return came

    def close(self) -> None:
        """Break the connection."""
        self._writer.transport.abort()

    def _take(self, event: h2.events.Event) -> None:
        came = self.streams.get(getattr(event, "stream_id", 0) or 0, Came())
        match event:
            case h2.events.ResponseReceived():
                came.headers = dict(event.headers or ())  # type: ignore[arg-type] # text, as configured
                came.status = int(came.headers[":status"])
            case h2.events.DataReceived():
                came.body += event.data or b""
                self.protocol.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id or 0
                )
            case h2.events.TrailersReceived():
                came.trailers = dict(event.headers or ())  # type: ignore[arg-type] # as above
            case h2.events.StreamEnded():
                came.ended = True
            case h2.events.StreamReset():
                came.reset = True
            case h2.events.ConnectionTerminated():
                self.over = True
            case _:
                pass
