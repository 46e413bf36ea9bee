"""A server of HTTP/2 that records what reaches it, and answers as it is told."""

from __future__ import annotations

import asyncio
import ssl

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from fakes.bound_world import Answer, Handler, Seen


class H2Recorder:
    """Records requests; a body that its windows do not take at once is sent as they grow."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.seen: list[Seen] = []
        self.resets: list[int] = []
        self.handler = handler or (lambda _: Answer())
        self.echo = False
        self.go_away_after = 0
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Take no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await _Served(self, reader, writer).run()
        except (OSError, h2.exceptions.ProtocolError):
            pass
        finally:
            writer.close()


class _Served:
    def __init__(
        self, recorder: H2Recorder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._recorder = recorder
        self._reader = reader
        self._writer = writer
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._protocol = h2.connection.H2Connection(config)
        self._seen: dict[int, Seen] = {}
        self._bodies: dict[int, tuple[bytes, list[tuple[str, str]]]] = {}

    async def run(self) -> None:
        self._protocol.initiate_connection()
        await self._flush()
        while data := await self._reader.read(65536):
            for event in self._protocol.receive_data(data):
                self._take(event)
            await self._flush()

    async def _flush(self) -> None:
        self._writer.write(self._protocol.data_to_send())
        await self._writer.drain()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                pairs = [(n.decode(), v.decode("latin-1")) for n, v in event.headers or ()]
                named = dict(pairs)
                seen = Seen(named[":method"], named[":path"], pairs)
                self._seen[event.stream_id or 0] = seen
                self._recorder.seen.append(seen)
                if self._recorder.echo:
                    self._protocol.send_headers(event.stream_id or 0, [(":status", "200")])
            case h2.events.DataReceived():
                number = event.stream_id or 0
                self._seen[number].body += event.data or b""
                self._protocol.acknowledge_received_data(event.flow_controlled_length or 0, number)
                if self._recorder.echo and event.data:
                    self._protocol.send_data(number, event.data)
            case h2.events.StreamEnded():
                number = event.stream_id or 0
                self._seen[number].complete = True
                if self._recorder.echo:
                    self._protocol.send_headers(number, [("grpc-status", "0")], end_stream=True)
                    return
                answer = self._recorder.handler(self._seen[number])
                headers = [(":status", str(answer.status)), *answer.headers]
                self._protocol.send_headers(number, headers)
                self._bodies[number] = (answer.body, answer.trailers)
                self._pump(number)
                if len(self._recorder.seen) == self._recorder.go_away_after:
                    state = self._protocol.state_machine.state
                    self._protocol.close_connection(last_stream_id=number)
                    self._protocol.state_machine.state = state
            case h2.events.StreamReset():
                self._recorder.resets.append(event.stream_id or 0)
                self._bodies.pop(event.stream_id or 0, None)
            case h2.events.WindowUpdated():
                for number in tuple(self._bodies):
                    self._pump(number)
            case _:
                pass

    def _pump(self, number: int) -> None:
        body, trailers = self._bodies[number]
        while body:
            room = min(
                self._protocol.local_flow_control_window(number),
                self._protocol.max_outbound_frame_size,
            )
            if room <= 0:
                self._bodies[number] = (body, trailers)
                return
            self._protocol.send_data(number, body[:room])
            body = body[room:]
        del self._bodies[number]
        if trailers:
            self._protocol.send_headers(number, trailers, end_stream=True)
        else:
            self._protocol.end_stream(number)
