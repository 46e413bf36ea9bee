"""`AnswerRelay`: the server's answer to one request over HTTP/1.1, on its way to the program."""

from __future__ import annotations

from typing import Final

import h11

from kaged.credentials.bodies import AnswerBody, clean_answer
from kaged.credentials.link import READ_BYTES, Link
from kaged.credentials.needles import Needles
from kaged.credentials.request_places import Header

SWITCHING: Final = 101
_CONTINUE: Final = 100
UPGRADE: Final = ((b"connection", b"upgrade"), (b"upgrade", b"websocket"))


class AnswerRelay:
    """Reads an answer from the server, cleans it, and writes it for the program.

    What the server has said at once is written at once. `begun` says whether the program has seen
    the head, after which nobody can answer instead.
    """

    def __init__(
        self,
        client: Link,
        server: Link,
        inward: h11.Connection,
        outward: h11.Connection,
        secrets: Needles,
    ) -> None:
        self._client = client
        self._server = server
        self._inward = inward
        self._outward = outward
        self._secrets = secrets
        self._out: list[bytes] = []
        self._waiting = 0
        self.begun = False

    async def head(self) -> h11.Response | h11.InformationalResponse:
        """Return the answer's head, or that of a switch; hints before it are passed on."""
        while True:
            event = await self._next()
            match event:
                case h11.Response():
                    return event
                case h11.InformationalResponse(status_code=status):
                    if status == SWITCHING:
                        return event
                    if status != _CONTINUE:
                        headers, _ = clean_answer(headers_of(event), self._secrets)
                        self._write(h11.InformationalResponse(status_code=status, headers=headers))
                case _:
                    raise ConnectionResetError("the server ended before its answer")

    async def pass_on(self, response: h11.Response) -> None:
        """Write the whole answer.

        Raises:
            RequestRefused: it cannot be looked into; ConnectionError: it ended in the middle.
        """
        headers, decode = clean_answer(headers_of(response), self._secrets)
        reason = self._secrets.starred(bytes(response.reason))
        answer = AnswerBody(self._secrets, decode=decode)
        self._write(h11.Response(status_code=response.status_code, headers=headers, reason=reason))
        self.begun = True
        while True:
            event = await self._next()
            match event:
                case h11.Data():
                    for piece in answer.feed(bytes(event.data)):
                        self._write(h11.Data(data=piece))
                        if self._waiting >= READ_BYTES:
                            await self._flush()
                case h11.EndOfMessage():
                    if last := answer.end():
                        self._write(h11.Data(data=last))
                    trailers = [
                        (bytes(name), self._secrets.starred(bytes(value)))
                        for name, value in event.headers
                    ]
                    self._write(h11.EndOfMessage(headers=trailers))
                    await self._flush()
                    return
                case _:
                    raise ConnectionResetError("the server ended in the middle of its answer")

    async def switch(self, event: h11.InformationalResponse) -> None:
        """Pass on that the server speaks another protocol from here on."""
        headers, _ = clean_answer(headers_of(event), self._secrets)
        self._write(
            h11.InformationalResponse(
                status_code=SWITCHING, headers=[*headers, *UPGRADE], reason=b"Switching Protocols"
            )
        )
        await self._flush()

    async def _next(self) -> type[h11.PAUSED | h11.NEED_DATA] | h11.Event:
        while (event := self._outward.next_event()) is h11.NEED_DATA:
            await self._flush()
            self._outward.receive_data(await self._server.read())
        return event

    def _write(self, event: h11.Event) -> None:
        pieces = self._inward.send_with_data_passthrough(event) or ()
        self._out += pieces
        self._waiting += sum(map(len, pieces))

    async def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._waiting = 0
            await self._client.write(data)


def headers_of(event: h11.Request | h11.Response | h11.InformationalResponse) -> list[Header]:
    """Return the headers of a message; their names are lower case."""
    return [(bytes(name), bytes(value)) for name, value in event.headers]
