"""`Stream`: one request over HTTP/2 and its answer."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import h2.connection
import h2.exceptions
from h2.errors import ErrorCodes

from kaged.credentials.bodies import AnswerBody, RequestBody, clean_answer
from kaged.credentials.conversation import Conversation
from kaged.credentials.refusals import Refusal, RefusalRule, RequestRefused, refused
from kaged.credentials.request_places import Header
from kaged.credentials.requests import Admitted, RequestHead

_GRACE_S: Final = 0.1
_WAITING_LIMIT: Final = 32 * 1024 * 1024


class Streams(Protocol):
    """What a stream needs of its connection."""

    @property
    def client(self) -> h2.connection.H2Connection:
        """The program's side."""
        ...

    @property
    def server(self) -> h2.connection.H2Connection:
        """The server's side."""
        ...

    def flush(self) -> None:
        """Let both writers send what there is."""
        ...

    def start(self, stream: Stream) -> None:
        """Let a stream find its value and begin, in its own time."""
        ...

    def has_room(self) -> bool:
        """Return whether the server takes one more stream."""
        ...

    def wait(self, stream: Stream) -> None:
        """Keep a stream until the server takes one more."""
        ...

    def attach(self, number: int, stream: Stream) -> None:
        """Remember a stream by its number at the server."""
        ...

    def forget(self, stream: Stream) -> None:
        """Let a stream go that has ended on both sides."""
        ...

    def record_refusal(self, stream: Stream, refusal: Refusal) -> None:
        """Put a refused stream on record."""
        ...


class _Flow:
    """One direction: what waits to be sent, and what the sender may be told was taken."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.owed = 0
        self.ended = False
        self.sent_end = False
        self.trailers: list[Header] = []

    def pump(
        self,
        source: h2.connection.H2Connection,
        source_number: int,
        target: h2.connection.H2Connection,
        target_number: int,
    ) -> None:
        """Send what the target's windows take, and give that much back to the source's."""
        while self.waiting and not self.sent_end:
            room = min(
                target.local_flow_control_window(target_number), target.max_outbound_frame_size
            )
            if room <= 0:
                break
            piece = bytes(self.waiting[:room])
            del self.waiting[:room]
            target.send_data(target_number, piece)
        if self.ended and not self.waiting and not self.sent_end:
            self.sent_end = True
            if self.trailers:
                target.send_headers(target_number, self.trailers, end_stream=True)
            else:
                target.end_stream(target_number)
        self.settle(source, source_number, len(self.waiting))

    def settle(self, source: h2.connection.H2Connection, number: int, waiting: int) -> None:
        """Acknowledge to the source what was taken of what it sent."""
        taken = self.owed - waiting
        if taken > 0 and number:
            source.acknowledge_received_data(taken, number)
            self.owed -= taken


class Stream:
    """A stream of the program and the one at the server that answers it."""

    def __init__(
        self, streams: Streams, number: int, head: RequestHead, talk: Conversation
    ) -> None:
        self.number = number
        self.server_number = 0
        self.head = head
        self.admitted: Admitted | None = None
        self._streams = streams
        self._talk = talk
        self._up = _Flow()
        self._down = _Flow()
        self._body: RequestBody | None = None
        self._answer: AnswerBody | None = None
        self._head: list[Header] = []
        self._started = False
        self._answered = False
        self._client_done = False
        self._over = False

    def open(self, scheme: bytes) -> None:
        """Decide about the request; it begins when enough of its body was seen."""
        try:
            if scheme != b"https":
                raise refused(
                    RefusalRule.MALFORMED, "The scheme is not the connection's.", status=400
                )
            self.admitted = self._talk.admit(self.head)
            self._body = RequestBody(self.admitted)
        except RequestRefused as error:
            self.refuse(error.refusal)
            return
        if self._body.may_go_early:
            # Who talks in both directions at once may wait for the answer.
            asyncio.get_running_loop().call_later(_GRACE_S, self._go_early)

    def from_client(self, data: bytes, size: int) -> None:
        """Take a piece of the request's body."""
        self._up.owed += size
        if self._over or self._body is None:
            self._up.settle(self._streams.client, self.number, 0)
            return
        try:
            self._up.waiting += self._body.feed(data)
        except RequestRefused as error:
            self.refuse(error.refusal)
            return
        self._go_on()

    def client_ended(self) -> None:
        """Take note that the request is complete."""
        self._client_done = True
        if self._over or self._body is None:
            self._end_if_over()
            return
        try:
            self._up.waiting += self._body.end()
        except RequestRefused as error:
            self.refuse(error.refusal)
            return
        self._up.ended = True
        self._go_on()

    def client_trailers(self, trailers: list[Header]) -> None:
        """Refuse trailers: nobody decides about them."""
        if trailers and not self._over:
            self.refuse(
                Refusal(400, RefusalRule.MALFORMED.value, "A request has no trailers here.")
            )

    def client_reset(self, code: int) -> None:
        """Take note that the program gave up."""
        if self.server_number:
            self._reset(self._streams.server, self.server_number, code)
        self._finish()

    async def begin(self) -> None:
        """Find the value and send the head, now or when the server has room."""
        if self.admitted is None or self._over:
            return
        target, headers = await self._talk.fill_in(self.admitted)
        if self._over:
            return
        trailers = any(
            n == b"te" and v.strip().lower() == b"trailers" for n, v in self.head.headers
        )
        self._head = [
            (b":method", self.head.method),
            (b":scheme", b"https"),
            (b":authority", self.head.authority),
            (b":path", target),
            *headers,
            *([(b"te", b"trailers")] if trailers else []),
        ]
        if self._streams.has_room():
            self.send_head()
        else:
            self._streams.wait(self)

    def send_head(self) -> None:
        """Send the head to the server, and what there is of the body."""
        if self._over:
            return
        server = self._streams.server
        self.server_number = server.get_next_available_stream_id()
        self._streams.attach(self.server_number, self)
        at_once = self._up.ended and not self._up.waiting
        self._up.sent_end = at_once
        server.send_headers(self.server_number, self._head, end_stream=at_once)
        self._head = []
        self.pump_up()

    def pump_up(self) -> None:
        """Send what the server takes now."""
        if self.server_number and not self._over:
            self._up.pump(
                self._streams.client, self.number, self._streams.server, self.server_number
            )

    # The answer

    def informed(self, headers: list[Header]) -> None:
        """Pass early hints and the like on."""
        kept, _ = clean_answer(headers, self._talk.secrets)
        self._streams.client.send_headers(self.number, kept)

    def answered(self, headers: list[Header]) -> None:
        """Pass the head of the answer on."""
        try:
            kept, decode = clean_answer(headers, self._talk.secrets)
        except RequestRefused as error:
            self.refuse(error.refusal)
            return
        self._answer = AnswerBody(self._talk.secrets, decode=decode)
        self._answered = True
        status = next((value for name, value in headers if name == b":status"), b"")
        if self.admitted is not None:
            self._talk.record_use(self.admitted, status.decode("ascii", "replace"))
        self._streams.client.send_headers(self.number, kept)

    def from_server(self, data: bytes, size: int) -> None:
        """Take a piece of the answer's body."""
        self._down.owed += size
        if self._over or self._answer is None:
            self._down.settle(self._streams.server, self.server_number, 0)
            return
        try:
            for piece in self._answer.feed(data):
                self._down.waiting += piece
                if len(self._down.waiting) > _WAITING_LIMIT:
                    self.broken(ErrorCodes.ENHANCE_YOUR_CALM)
                    return
        except RequestRefused:
            self.broken(ErrorCodes.INTERNAL_ERROR)
            return
        self.pump_down()

    def server_trailers(self, trailers: list[Header]) -> None:
        """Keep the trailers until the body was sent."""
        secrets = self._talk.secrets
        self._down.trailers = [(secrets.starred(n), secrets.starred(v)) for n, v in trailers]

    def server_ended(self) -> None:
        """Take note that the answer is complete."""
        if self._over or self._answer is None:
            return
        self._down.waiting += self._answer.end()
        self._down.ended = True
        self.pump_down()

    def pump_down(self) -> None:
        """Send what the program takes now."""
        if self._over and not self._down.ended:
            return
        if self._answered:
            self._down.pump(
                self._streams.server, self.server_number, self._streams.client, self.number
            )
            self._end_if_over()

    # Ends

    def refuse(self, refusal: Refusal) -> None:
        """Answer for the server."""
        if self._over:
            return
        self._streams.record_refusal(self, refusal)
        if self.server_number:
            self._reset(self._streams.server, self.server_number, ErrorCodes.CANCEL)
        if self._answered:
            self.broken(ErrorCodes.INTERNAL_ERROR)
            return
        self._over = True
        self._up.settle(self._streams.client, self.number, 0)
        self._down.waiting[:] = refusal.body
        self._down.ended = True
        self._answered = True
        self._streams.client.send_headers(
            self.number, [(b":status", str(refusal.status).encode()), *refusal.headers]
        )
        self.pump_down()

    def broken(self, code: int) -> None:
        """End the stream on both sides."""
        if self.server_number:
            self._reset(self._streams.server, self.server_number, ErrorCodes.CANCEL)
        self._reset(self._streams.client, self.number, code)
        self._finish()

    def _end_if_over(self) -> None:
        if not self._down.sent_end:
            return
        if not self._client_done:
            # The answer is complete, so nobody needs the rest of the request.
            self._reset(self._streams.client, self.number, ErrorCodes.NO_ERROR)
        if self.server_number and not self._up.sent_end:
            self._reset(self._streams.server, self.server_number, ErrorCodes.CANCEL)
        self._finish()

    def _finish(self) -> None:
        self._over = True
        self._up.waiting.clear()
        self._down.waiting.clear()
        # What nobody will send on any more is given back, or the connection's window would shrink.
        self._up.settle(self._streams.client, self.number, 0)
        self._down.settle(self._streams.server, self.server_number, 0)
        self._streams.forget(self)

    def _go_on(self) -> None:
        if self._body is not None and self._body.released and not self._started:
            self._started = True
            self._streams.start(self)
        self.pump_up()

    def _go_early(self) -> None:
        if self._over or self._started or self._body is None or self._body.released:
            return
        self._up.waiting += self._body.release()
        self._go_on()
        self._streams.flush()

    def _reset(self, side: h2.connection.H2Connection, number: int, code: int) -> None:
        try:
            side.reset_stream(number, code)
        except h2.exceptions.ProtocolError:
            return  # it has ended there already
