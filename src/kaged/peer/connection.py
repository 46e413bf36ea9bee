"""`Connection`: JSON-RPC in both directions over two pipes of one peer.

The bytes move here; what they mean is decided in `kaged.wire` and by the owner. Everything the
peer can do to us is bounded: the line, the unread output we hold for it, the requests it may have
open, and how many unasked messages it gets handled per second.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock, Tasks
from kaged.peer.errors import PeerGone, PeerStalled, PeerTimeout
from kaged.peer.throttle import Throttle
from kaged.wire.correlator import Admission, Correlator, Ignored, Inbound, OpenRequest
from kaged.wire.errors import ErrorCode, RpcError, number_of_error
from kaged.wire.fastjson import decode_message, encode_message
from kaged.wire.framing import Framer, FramingError, Unsendable
from kaged.wire.lines import LineFramer
from kaged.wire.messages import (
    Batch,
    Invalid,
    Noise,
    Notification,
    Outgoing,
    Request,
    Response,
    failure,
    rejection,
)

if TYPE_CHECKING:
    from kaged.wire.messages import MessageId, Refused

# Output we hold for a peer that is slow to read; four of the longest lines.
WRITE_BUFFER_LIMIT_BYTES = 16 * 1024 * 1024


class Owner(Protocol):
    """Whoever runs the peer: answers its requests and hears what it does unasked.

    `answer` may raise KagedError (or RpcError for an exact number) to refuse. The other methods
    must not raise and must not block.
    """

    async def answer(self, request: Request) -> JsonValue:
        """Answer one request of the peer."""
        ...

    def asked(self, request: Request) -> None:
        """Hear of a request as it arrives, in order with everything else; `answer` comes later."""
        ...

    def notified(self, notification: Notification) -> None:
        """Hear a notification of the peer."""
        ...

    def refused(self, refused: Refused) -> None:
        """Hear of a line that is no message; it was answered already where that is due."""
        ...

    def ignored(self, response: Response, why: Ignored) -> None:
        """Hear of an answer that belongs to no open request."""
        ...

    def out_of_step(self, message_id: MessageId) -> None:
        """Hear, once, that the peer's request ids do not count up from 1."""
        ...

    def broke(self, error: KagedError) -> None:
        """Hear that the conversation cannot go on: framing broken, or the peer does not read."""
        ...

    def closed(self) -> None:
        """Hear that the peer's output ended; open requests have failed already."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How much of the peer's doing we put up with."""

    open_calls: int = 64
    open_requests: int = 64
    unasked_per_s: int = 5000
    write_buffer_bytes: int = WRITE_BUFFER_LIMIT_BYTES


class Connection(asyncio.Protocol):
    """One conversation. Make it on the event loop, then `attach` it to the peer's pipes."""

    def __init__(
        self,
        owner: Owner,
        *,
        name: str,
        framer: Framer | None = None,
        clock: Clock | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._name = name
        self._framer = framer or LineFramer()
        self._clock = clock or SystemClock()
        self._limits = limits or ConnectionLimits()
        self._calls: Correlator[asyncio.Future[JsonValue]] = Correlator(
            open_limit=self._limits.open_calls
        )
        self._inbound = Inbound(open_limit=self._limits.open_requests)
        self._throttle = Throttle(self._limits.unasked_per_s, self._clock)
        self._tasks = Tasks(f"peer {name}", self._task_failed)
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = False

    async def attach(self, read_fd: Any, write_fd: Any) -> None:
        """Start talking on the peer's stdout (`read_fd`) and stdin (`write_fd`), as open files."""
        write_pipe = await self._loop.connect_write_pipe(lambda: _WriteSide(self), write_fd)
        self._writer = write_pipe[0]
        read_pipe = await self._loop.connect_read_pipe(lambda: self, read_fd)
        self._reader = read_pipe[0]

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._writer is not None and not self._ended

    @property
    def open_calls(self) -> int:
        """Count our requests that have no answer yet."""
        return len(self._calls)

    # -- asking --------------------------------------------------------------------------------

    async def request(
        self, method: str, params: JsonObject, timeout_s: float, *, cancel: bool = False
    ) -> JsonValue:
        """Ask the peer and wait for its answer. A missing result is None.

        With `cancel`, a caller that stops waiting leads to a `kaged.cancel` notification.

        Raises:
            RpcError: the peer answered with an error; number, message and detail unchanged.
            PeerTimeout: no answer in `timeout_s`; a late one will be ignored.
            PeerGone: the peer ended first.
            PeerStalled: the peer does not read; nothing was sent.
            TooManyOpen: the peer owes too many answers already.
            Unsendable: params are too long or no JSON.
        """
        response = await self.exchange(method, params, timeout_s, cancel=cancel)
        return response.result

    async def exchange(
        self, method: str, params: JsonObject, timeout_s: float, *, cancel: bool = False
    ) -> Response:
        """Do as `request` does, but give the whole response: `empty` matters to some methods."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        call = self._calls.open(method, answer, self._loop.time() + timeout_s)
        try:
            self._write(Request(call.id, method, params))
        except KagedError:
            self._calls.give_up(call.id)
            raise
        self._watch(call)
        try:
            return cast("Response", await answer)
        except (asyncio.CancelledError, PeerTimeout):
            self._calls.give_up(call.id)
            if cancel and self.is_open:
                self._say_cancel(call.id)
            raise

    def notify(self, method: str, params: JsonObject) -> None:
        """Tell the peer something that it never answers. Raises as `request` does."""
        self._write(Notification(method, params))

    # -- ending --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close both pipes, fail what is open, end the handlers. Safe to call twice."""
        self._end()
        await self._tasks.close()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        for call in self._calls.reset():
            self._fail(call, PeerGone(f"{self._name} ended before it answered {call.method}"))

    def input_closed(self) -> None:
        """Hear from the transport that the peer closed its input: it can be told nothing more."""
        if not self._ended:
            self._owner.broke(PeerGone(f"{self._name} closed its input"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear from the transport that the peer's output ended."""
        if not self._ended:
            self._end()
            self._owner.closed()

    # -- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what the peer wrote."""
        try:
            lines = self._framer.feed(data)
        except FramingError as error:
            for line in error.complete:
                self._receive(line)
            self._owner.broke(error)
            return
        for line in lines:
            if line:
                self._receive(line)

    def _receive(self, line: bytes) -> None:
        message = decode_message(line)
        if isinstance(message, Response):
            settled = self._calls.settle(message)
            if isinstance(settled, OpenRequest):
                _settle(settled, message)
                return
            self._owner.ignored(message, settled)
        elif isinstance(message, Request):
            self._asked(message)
        elif isinstance(message, Notification):
            self._owner.notified(message)
        else:
            self._refuse(message)
        # Only what nobody asked for counts: a peer that answers fast is never slowed down.
        self._slow_down()

    def _asked(self, request: Request) -> None:
        self._owner.asked(request)
        admission = self._inbound.admit(request.id)
        if admission is Admission.BUSY:
            self._reply(failure(request.id, ErrorCode.RESOURCE_BUSY, "too many open requests"))
            return
        if admission is Admission.OUT_OF_STEP:
            self._owner.out_of_step(request.id)
        self._tasks.start(self._answer(request), f"answer {request.method}")

    async def _answer(self, request: Request) -> None:
        try:
            response = Response(request.id, await self._owner.answer(request))
        except KagedError as error:
            detail = error.detail if isinstance(error, RpcError) else None
            response = failure(request.id, number_of_error(error), error.message, detail)
        except Exception as error:  # noqa: BLE001 - request handler boundary: one peer's request
            self._task_failed(f"answer {request.method}", error)
            response = failure(request.id, ErrorCode.INTERNAL_ERROR, "internal error of the host")
        finally:
            self._inbound.answered()
        self._reply(response)

    def _refuse(self, refused: Invalid | Batch | Noise) -> None:
        if isinstance(refused, Invalid):
            call = self._calls.settle_invalid(refused)
            if call is not None:
                self._fail(
                    call,
                    RpcError(
                        f"{self._name} answered {call.method} with a message that is no JSON-RPC "
                        f"response ({refused.reason})",
                        number=ErrorCode.INTERNAL_ERROR,
                    ),
                )
        answer = rejection(refused)
        if answer is not None:
            self._reply(answer)
        self._owner.refused(refused)

    def _slow_down(self) -> None:
        pause_s = self._throttle.took_one()
        if pause_s > 0 and self._reader is not None and not self._ended:
            self._reader.pause_reading()
            self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        if self._reader is not None and not self._ended:
            self._reader.resume_reading()

    # -- writing -------------------------------------------------------------------------------

    def _reply(self, response: Response) -> None:
        if not self.is_open:
            return
        try:
            self._write(response)
        except Unsendable as error:
            self._write(failure(response.id, ErrorCode.INTERNAL_ERROR, error.message))
        except PeerStalled as error:
            self._owner.broke(error)

    def _write(self, message: Outgoing) -> None:
        writer = self._writer
        if writer is None or self._ended or writer.is_closing():
            raise PeerGone(f"{self._name} is not running")
        line = self._framer.encode(encode_message(message))
        if writer.get_write_buffer_size() + len(line) > self._limits.write_buffer_bytes:
            raise PeerStalled(
                f"{self._name} does not read its input; "
                f"{writer.get_write_buffer_size()} bytes wait for it",
                fix="it will be restarted when its calls time out",
            )
        writer.write(line)

    def _say_cancel(self, call_id: int) -> None:
        try:
            self._write(Notification("kaged.cancel", {"id": call_id}))
        except (PeerGone, PeerStalled):
            return  # it is ending or stuck; there is nobody to tell

    # -- deadlines -----------------------------------------------------------------------------

    def _watch(self, call: OpenRequest[Any]) -> None:
        # One timer for all calls, never cancelled when an answer comes: it finds nothing due and
        # sets itself anew. A timer per call would cost more than the rest of the call.
        due_s = cast("float", call.deadline_s)
        if self._deadline is None or due_s < self._deadline.when():
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self._loop.call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        for call in self._calls.expire(self._loop.time()):
            self._fail(call, PeerTimeout(f"{self._name} did not answer {call.method} in time"))
        due_s = self._calls.next_deadline_s()
        if due_s is not None and not self._ended:
            self._deadline = self._loop.call_at(due_s, self._expire)

    def _fail(self, call: OpenRequest[asyncio.Future[JsonValue]], error: KagedError) -> None:
        if not call.waiter.done():
            call.waiter.set_exception(error)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {"message": f"peer {self._name}: {name} failed", "exception": error}
        )


class _WriteSide(asyncio.BaseProtocol):
    """The transport of the peer's stdin reports here when nobody reads it any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.input_closed()


def _settle(call: OpenRequest[asyncio.Future[Any]], response: Response) -> None:
    if call.waiter.done():
        return
    if response.error is not None:
        call.waiter.set_exception(response.error.to_exception())
    else:
        call.waiter.set_result(response)


__all__ = ["WRITE_BUFFER_LIMIT_BYTES", "Connection", "ConnectionLimits", "Owner"]
