"""WebSocket between a program in a cage and a bound host: frames are read, looked at, and written.

The frames of a program are masked, so nothing could be found in their bytes. Extensions (which
compress) are not agreed on: the gate does not pass the question on.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from kaged.credentials.link import Link
from kaged.credentials.needles import Needles, StreamWindow
from kaged.credentials.placeholders import PlaceholderWatch
from kaged.credentials.refusals import RequestRefused

_POLICY_VIOLATION: Final = 1008
_GOODBYE_S: Final = 5.0
_REASON: Final = "a placeholder of a credential stands in a message"


def asks_for_websocket(event: h11.Request) -> bool:
    """Return whether a request asks for a WebSocket, and for nothing else."""
    asked = [bytes(value).lower() for name, value in event.headers if name == b"upgrade"]
    tokens = [
        one.strip().lower()
        for name, value in event.headers
        if name == b"connection"
        for one in bytes(value).split(b",")
    ]
    return asked == [b"websocket"] and b"upgrade" in tokens and event.method == b"GET"


async def serve_websocket(
    client: Link, server: Link, secrets: Needles, from_client: bytes, from_server: bytes
) -> None:
    """Pass messages in both directions until one side closes."""
    inward = Connection(ConnectionType.SERVER)
    outward = Connection(ConnectionType.CLIENT)
    up = _Direction(client, inward, server, outward, _Watched())
    down = _Direction(server, outward, client, inward, _Scrubbed(secrets))
    async with asyncio.TaskGroup() as tasks:
        going = [
            tasks.create_task(up.run(from_client)),
            tasks.create_task(down.run(from_server)),
        ]
        done, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
        if all(one.result() for one in done):
            # One side has said goodbye, and the other has a moment to answer.
            await asyncio.wait(going, timeout=_GOODBYE_S)
        for one in going:
            one.cancel()


class _Watched:
    """What a program sends: it must hold no placeholder."""

    def __init__(self) -> None:
        self._watch = PlaceholderWatch()

    def feed(self, data: bytes, *, last: bool) -> bytes:
        out = self._watch.feed(data)
        return out + self._watch.end() if last else out


class _Scrubbed:
    """What a server sends: it holds no value any more."""

    def __init__(self, secrets: Needles) -> None:
        self._window = StreamWindow(secrets)

    def feed(self, data: bytes, *, last: bool) -> bytes:
        out = self._window.feed(data)
        return out + self._window.end() if last else out


class _Direction:
    """Messages from one side to the other."""

    def __init__(
        self,
        source: Link,
        reading: Connection,
        target: Link,
        writing: Connection,
        change: _Watched | _Scrubbed,
    ) -> None:
        self._source = source
        self._reading = reading
        self._target = target
        self._writing = writing
        self._change = change

    async def run(self, first: bytes) -> bool:
        """Pass on until this side has ended; return whether it said goodbye before."""
        try:
            if first:
                self._reading.receive_data(first)
            while True:
                for event in self._reading.events():
                    if await self._passed(event):
                        return True
                data = await self._source.read()
                if not data:
                    return False
                self._reading.receive_data(data)
        except (RemoteProtocolError, LocalProtocolError, OSError):
            return False

    async def _passed(self, event: Event) -> bool:
        """Pass one event on; return whether it was the last."""
        match event:
            case TextMessage() | BytesMessage():
                try:
                    changed = self._changed(event)
                except RequestRefused:
                    await self._close_both()
                    return True
                await self._target.write(self._writing.send(changed))
            case CloseConnection():
                if self._writing.state is ConnectionState.OPEN:
                    await self._target.write(self._writing.send(event))
                return True
            case Ping() | Pong():
                await self._target.write(self._writing.send(event))
            case _:
                return True
        return False

    def _changed(self, event: TextMessage | BytesMessage) -> Message[bytes] | Message[str]:
        last = event.message_finished
        if isinstance(event, TextMessage):
            data = self._change.feed(event.data.encode("utf-8"), last=last)
            # What was kept back ends within ASCII, and so does what goes on.
            return TextMessage(data=data.decode("utf-8", "replace"), message_finished=last)
        data = self._change.feed(bytes(event.data), last=last)
        return BytesMessage(data=data, message_finished=last)

    async def _close_both(self) -> None:
        for link, protocol in ((self._target, self._writing), (self._source, self._reading)):
            if protocol.state is ConnectionState.OPEN:
                closing = CloseConnection(code=_POLICY_VIOLATION, reason=_REASON)
                await link.write(protocol.send(closing))
