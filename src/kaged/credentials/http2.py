"""HTTP/2 between a program in a cage and a bound host that speaks it, too.

One connection of the program is one connection to the server, and each stream is one stream there:
nothing is translated between versions, so nothing can be lost between them. h2 reads and writes the
frames of both sides. What a side may send is bounded by the windows it is given, and these grow
only by what the other side has taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from h2.errors import ErrorCodes

from kaged.base import Tasks
from kaged.credentials.conversation import Conversation
from kaged.credentials.http2_stream import Stream
from kaged.credentials.link import Link
from kaged.credentials.refusals import Refusal, RequestRefused
from kaged.credentials.request_places import Header
from kaged.credentials.requests import RequestHead

MAX_STREAMS: Final = 256
STREAM_WINDOW: Final = 1024 * 1024
CONNECTION_WINDOW: Final = 8 * 1024 * 1024
FRAME_BYTES: Final = 64 * 1024
_MAX_HEADER_LIST: Final = 80 * 1024
_OUT_LIMIT: Final = 32 * 1024 * 1024
_INITIAL_CONNECTION_WINDOW: Final = 65535


async def serve_http2(client: Link, talk: Conversation) -> None:
    """Serve a program's connection until one side ends it."""
    server = talk.server
    if server is None:
        raise ConnectionResetError("there is no server")
    await _Connection(client, server, talk).run()


_Handler: TypeAlias = Callable[[h2.events.Event], bool]


class _Side:
    """One of the two connections: its protocol, and a writer that sends what it has to say."""

    def __init__(self, link: Link, *, client_side: bool) -> None:
        self.link = link
        config = h2.config.H2Configuration(client_side=client_side, header_encoding=None)
        self.protocol = h2.connection.H2Connection(config)
        settings = {
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            h2.settings.SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
            h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_LIST,
            h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
        }
        if client_side:
            settings[h2.settings.SettingCodes.ENABLE_PUSH] = 0
        self.protocol.local_settings = h2.settings.Settings(
            client=client_side, initial_values=settings
        )
        self.protocol.max_inbound_frame_size = FRAME_BYTES
        self.protocol.initiate_connection()
        self.protocol.increment_flow_control_window(CONNECTION_WINDOW - _INITIAL_CONNECTION_WINDOW)
        self._wake = asyncio.Event()
        self._closing = False
        self._backlog = 0
        self._out = deque[bytes]()

    def wake(self) -> None:
        """Let the writer send what there is."""
        data = self.protocol.data_to_send()
        if data:
            self._out.append(data)
            self._backlog += len(data)
            if self._backlog > _OUT_LIMIT:
                raise ConnectionResetError("the other side asks much and reads nothing")
            self._wake.set()

    def no_more(self) -> None:
        """End the writer when all is sent."""
        self._closing = True
        self._wake.set()

    async def write_all(self) -> None:
        """Send what there is, until `no_more`."""
        while True:
            while self._out:
                data = b"".join(self._out)
                self._out.clear()
                await self.link.write(data)
                self._backlog -= len(data)
            if self._closing:
                await self.link.finish()
                return
            self._wake.clear()
            await self._wake.wait()


class _Connection:
    """Both sides, and the streams that connect them."""

    def __init__(self, client: Link, server: Link, talk: Conversation) -> None:
        self._talk = talk
        self._client = _Side(client, client_side=False)
        self._server = _Side(server, client_side=True)
        self._by_client: dict[int, Stream] = {}
        self._by_server: dict[int, Stream] = {}
        self._waiting = deque[Stream]()
        self._tasks = Tasks("credentials/h2")
        self._draining = False

    async def run(self) -> None:
        """Serve until one side has ended."""
        self._client.wake()
        self._server.wake()
        writers = [
            self._tasks.start(side.write_all(), "writer") for side in (self._client, self._server)
        ]
        readers = [
            self._tasks.start(self._read(self._client, self._from_client), "from-client"),
            self._tasks.start(self._read(self._server, self._from_server), "from-server"),
        ]
        try:
            await asyncio.wait([*writers, *readers], return_when=asyncio.FIRST_COMPLETED)
            for stream in tuple(self._by_client.values()):
                stream.broken(ErrorCodes.INTERNAL_ERROR)
            if self._client.protocol.state_machine.state.name != "CLOSED":
                self._client.protocol.close_connection()
            self._client.wake()
            self._client.no_more()
            await asyncio.wait(writers[:1], timeout=1.0)
        except (h2.exceptions.ProtocolError, OSError):
            return
        finally:
            await self._tasks.close()

    async def _read(self, side: _Side, handle: _Handler) -> None:
        try:
            while True:
                data = await side.link.read()
                if not data:
                    return
                try:
                    events = side.protocol.receive_data(data)
                except h2.exceptions.ProtocolError:
                    side.wake()  # the reason, for the other side
                    return
                for event in events:
                    if handle(event):
                        return
                self.flush()
        except (h2.exceptions.ProtocolError, OSError):
            return

    # From the program

    def _from_client(self, event: h2.events.Event) -> bool:
        """Handle what a program says; return whether it was the last."""
        number = getattr(event, "stream_id", None) or 0
        stream = self._by_client.get(number)
        match event:
            case h2.events.RequestReceived():
                self._open(event)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for one in tuple(self._by_client.values()):
                    one.pump_down()
            case h2.events.ConnectionTerminated():
                return True
            case h2.events.DataReceived() if stream is None:
                _give_back(self._client, event)
            case _ if stream is not None:
                _tell_request(stream, event)
            case _:
                pass
        return False

    def _open(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id or 0
        fields = dict[bytes, bytes]()
        headers: list[Header] = []
        for name, value in _pairs(event.headers):
            if name.startswith(b":"):
                fields[name] = value
            else:
                headers.append((name, value))
        named = next((value for name, value in headers if name == b"host"), b"")
        authority = fields.get(b":authority", named)
        head = RequestHead(
            fields.get(b":method", b""), fields.get(b":path", b""), authority, headers
        )
        stream = Stream(self, number, head, self._talk)
        self._by_client[number] = stream
        if self._draining:
            stream.broken(ErrorCodes.REFUSED_STREAM)
            return
        stream.open(fields.get(b":scheme", b""))

    # From the server

    def _from_server(self, event: h2.events.Event) -> bool:
        """Handle what a server says; return whether it was the last."""
        number = getattr(event, "stream_id", None) or 0
        stream = self._by_server.get(number)
        match event:
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for one in tuple(self._by_server.values()):
                    one.pump_up()
                self.next_waiting()
            case h2.events.ConnectionTerminated():
                return self._drain(event)
            case h2.events.DataReceived() if stream is None:
                _give_back(self._server, event)
            case _ if stream is not None:
                _tell_answer(stream, event)
            case _:
                pass
        return False

    def _drain(self, event: h2.events.ConnectionTerminated) -> bool:
        """Take no more streams; those that the server still serves may end."""
        self._draining = True
        last = event.last_stream_id or 0
        for number, stream in tuple(self._by_server.items()):
            if number > last:
                stream.broken(ErrorCodes.REFUSED_STREAM)
        for stream in tuple(self._waiting):
            stream.broken(ErrorCodes.REFUSED_STREAM)
        self._waiting.clear()
        # h2 is closed from here on; the protocol lets open streams come to their end.
        self._server.protocol.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return not self._by_server

    # For streams

    @property
    def client(self) -> h2.connection.H2Connection:
        """The program's side."""
        return self._client.protocol

    @property
    def server(self) -> h2.connection.H2Connection:
        """The server's side."""
        return self._server.protocol

    def flush(self) -> None:
        """Let both writers send what there is."""
        self._client.wake()
        self._server.wake()

    def start(self, stream: Stream) -> None:
        """Let a stream find its value and begin, in its own time."""
        self._tasks.start(self._begin(stream), "stream")

    async def _begin(self, stream: Stream) -> None:
        try:
            await stream.begin()
        except RequestRefused as error:
            stream.refuse(error.refusal)
        except (h2.exceptions.ProtocolError, OSError):
            stream.broken(ErrorCodes.INTERNAL_ERROR)
        self.flush()

    def has_room(self) -> bool:
        """Return whether the server takes one more stream."""
        return (
            self.server.open_outbound_streams < self.server.remote_settings.max_concurrent_streams
        )

    def wait(self, stream: Stream) -> None:
        """Keep a stream until the server takes one more."""
        self._waiting.append(stream)

    def next_waiting(self) -> None:
        """Let streams that waited begin."""
        while self._waiting and self.has_room():
            self._waiting.popleft().send_head()

    def attach(self, number: int, stream: Stream) -> None:
        """Remember a stream by its number at the server."""
        self._by_server[number] = stream

    def forget(self, stream: Stream) -> None:
        """Let a stream go that has ended on both sides."""
        self._by_client.pop(stream.number, None)
        if stream.server_number:
            self._by_server.pop(stream.server_number, None)
        if stream in self._waiting:
            self._waiting.remove(stream)
        self.next_waiting()
        if self._draining and not self._by_server:
            self._server.no_more()

    def record_refusal(self, stream: Stream, refusal: Refusal) -> None:
        """Put a refused stream on record."""
        self._talk.record_refusal(stream.head, refusal, stream.admitted)


def _tell_request(stream: Stream, event: h2.events.Event) -> None:
    match event:
        case h2.events.DataReceived():
            stream.from_client(event.data or b"", event.flow_controlled_length or 0)
        case h2.events.StreamEnded():
            stream.client_ended()
        case h2.events.TrailersReceived():
            stream.client_trailers(_pairs(event.headers))
        case h2.events.StreamReset():
            stream.client_reset(event.error_code or 0)
        case _:
            pass


def _tell_answer(stream: Stream, event: h2.events.Event) -> None:
    match event:
        case h2.events.InformationalResponseReceived():
            stream.informed(_pairs(event.headers))
        case h2.events.ResponseReceived():
            stream.answered(_pairs(event.headers))
        case h2.events.DataReceived():
            stream.from_server(event.data or b"", event.flow_controlled_length or 0)
        case h2.events.TrailersReceived():
            stream.server_trailers(_pairs(event.headers))
        case h2.events.StreamEnded():
            stream.server_ended()
        case h2.events.StreamReset():
            stream.broken(event.error_code or 0)
        case _:
            pass


def _give_back(side: _Side, event: h2.events.DataReceived) -> None:
    """Return the window of data for a stream that has ended."""
    if event.flow_controlled_length:
        side.protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)


def _pairs(headers: Iterable[Any] | None) -> list[Header]:
    return [(bytes(name), bytes(value)) for name, value in headers or ()]
