"""`Connection`: JSON-RPC in both directions over two pipes of one peer.

The bytes move here; what they mean is decided in `kaged.wire` and by the owner. Everything the
peer can do to us is bounded: the line, the unread output we hold for it, the requests it may have
open, and how many unasked messages it gets handled per second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias, cast

from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock, Tasks
from kaged.cage.pipe_end import PipeEnd, connect_read_end, connect_write_end
from kaged.peer.errors import PeerGone, PeerStalled, PeerTimeout
from kaged.peer.outbox import Outbox
from kaged.peer.owner import ConnectionLimits, Owner
from kaged.peer.throttle import Throttle
from kaged.wire.correlator import Admission, Correlator, Inbound, OpenRequest
from kaged.wire.errors import ErrorCode, RpcError, number_of_error
from kaged.wire.fastjson import decode_message, encode_call, encode_message
from kaged.wire.framing import Framer, FramingError, OversizeMessage, Unsendable
from kaged.wire.lines import LineFramer
from kaged.wire.messages import (
    Batch,
    Invalid,
    Noise,
    Notification,
    Request,
    Response,
    failure,
    rejection,
)
from kaged.wire.value_count import BYTES_PER_VALUE, ValueCounter, holds_more_values

# The share of unasked messages is counted in turns as short as this: what a peer may have handled
# in one go is what everybody else on the event loop has to wait for.
TURN_S = 0.05

_Call: TypeAlias = OpenRequest["asyncio.Future[Response]"]


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
        self._calls: Correlator[asyncio.Future[Response]] = Correlator(
            open_limit=self._limits.open_calls
        )
        self._inbound = Inbound(open_limit=self._limits.open_requests)
        share = max(1, int(self._limits.unasked_per_s * TURN_S))
        self._throttle = Throttle(share, self._clock, TURN_S)
        self._backlog: deque[bytes] = deque()  # never more than one read of the pipe
        self._resting = False
        self._long_bytes = self._limits.values * BYTES_PER_VALUE  # below it no count is needed
        self._counted: bytes | None = None  # a long message whose values are being counted
        self._tasks = Tasks(f"peer {name}", self._task_failed)
        self._reader: asyncio.ReadTransport | None = None
        self._outbox: Outbox | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = False
        self._broken = False  # by its framing: nothing that comes after can be understood

    async def attach(self, stdout: PipeEnd, stdin: PipeEnd) -> None:
        """Start talking on the peer's stdout and stdin.

        Both are owned from here on, also when this is cancelled half-way.
        """
        try:
            write_pipe = await connect_write_end(stdin, lambda: _WriteSide(self))
        except BaseException:
            stdout.close()  # nobody else knows it yet
            raise
        self._outbox = Outbox(self._loop, write_pipe[0], self._limits.write_buffer_bytes)
        try:
            read_pipe = await connect_read_end(stdout, lambda: self)
        except BaseException:
            self._end()
            raise
        self._reader = read_pipe[0]

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._outbox is not None and not self._ended and not self._broken

    @property
    def open_calls(self) -> int:
        """Count our requests that have no answer yet."""
        return len(self._calls)

    # -- asking --------------------------------------------------------------------------------

    async def request(
        self, method: str, params: JsonObject | None, timeout_s: float, *, cancel: bool = False
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
        call = self._ask(method, params, timeout_s)
        try:
            return (await call.waiter).result
        except (asyncio.CancelledError, PeerTimeout):
            self._give_up(call.id, cancel=cancel)
            raise

    async def exchange(
        self, method: str, params: JsonObject | None, timeout_s: float, *, cancel: bool = False
    ) -> Response:
        """Do as `request` does, but give the whole response: `empty` matters to some methods."""
        call = self._ask(method, params, timeout_s)
        try:
            return await call.waiter
        except (asyncio.CancelledError, PeerTimeout):
            self._give_up(call.id, cancel=cancel)
            raise

    def notify(self, method: str, params: JsonObject) -> None:
        """Send the peer a notification. Raises as `request` does."""
        self._write(self._framer.encode(encode_message(Notification(method, params))), alone=True)

    def _ask(self, method: str, params: JsonObject | None, timeout_s: float) -> _Call:
        """Send a request; its waiter gets the response."""
        loop, calls = self._loop, self._calls
        call = calls.open(method, loop.create_future(), loop.time() + timeout_s)
        try:
            line = self._framer.encode(encode_call(call.id, method, params))
            self._write(line, alone=len(calls) == 1)
        except KagedError:
            calls.give_up(call.id)
            raise
        self._watch(call)
        return call

    def _give_up(self, call_id: int, *, cancel: bool) -> None:
        self._calls.give_up(call_id)
        if cancel and self.is_open:
            self._say_cancel(call_id)

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
        if self._reader is not None:
            self._reader.close()
        if self._outbox is not None:
            self._outbox.close()
        for call in self._calls.reset():
            self._fail(call, PeerGone(f"{self._name} ended before it answered {call.method}"))

    def input_closed(self) -> None:
        """Called by the transport when the peer closed its input: nothing more can be sent."""
        if not self._ended:
            self._owner.broke(PeerGone(f"{self._name} closed its input"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport when the peer's output ended."""
        if not self._ended:
            self._reader = None  # its descriptor may belong to somebody else by now
            self._catch_up()
            self._end()
            self._owner.closed()

    # -- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what the peer wrote."""
        if self._broken:
            return
        try:
            lines = self._framer.feed(data)
        except FramingError as error:
            self._backlog.extend(error.complete)
            self._catch_up()
            self._break_off(error)
            return
        if self._resting:
            self._backlog.extend(lines)
        else:
            self._work_off(iter(lines))

    def _break_off(self, error: FramingError) -> None:
        """Fail what is open now: no answer can come any more, however long somebody waits."""
        self._broken = True
        for call in self._calls.reset():
            why = f"{self._name} broke off in its answer to {call.method}: {error.message}"
            self._fail(call, PeerGone(why, fix=error.fix))
        self._owner.broke(error)

    def _work_off(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            if len(line) > self._long_bytes:
                self._rest()
                self._counted = line
                self._tasks.start(self._receive_long(line), "count values")
            elif line:
                self._receive(line)
            if self._resting:
                self._backlog = deque(lines)
                return

    async def _receive_long(self, line: bytes) -> None:
        """Count the values of a long message in turns of the loop; only then is it decoded."""
        counter = ValueCounter(line, self._limits.values)
        more = True
        while more:
            if self._counted is not line or self._ended:
                return  # `_catch_up` took it, as nothing more can come
            more = counter.step()
            if more:
                await asyncio.sleep(0)
        self._counted = None
        self._resting = False
        if counter.is_over:
            self._break_off(self._too_many_values())
            return
        self._receive(line)
        if not self._resting:
            self._resume()

    def _too_many_values(self) -> OversizeMessage:
        limit = self._limits.values
        return OversizeMessage(
            f"one message holds more than {limit} values",
            fix="send less in one message, or large data as one text",
            limit_values=limit,
        )

    def _catch_up(self) -> None:
        """Take what is left of the last read at once: nothing more will come."""
        backlog, self._backlog = self._backlog, deque()
        if self._counted is not None:
            backlog.appendleft(self._counted)
            self._counted = None
        for line in backlog:
            if holds_more_values(line, self._limits.values):
                self._break_off(self._too_many_values())
                return
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
        if pause_s > 0 and self._reader is not None and not self._ended and not self._resting:
            self._rest()
            self._loop.call_later(pause_s, self._resume)

    def _rest(self) -> None:
        self._resting = True
        if self._reader is not None and not self._ended:
            self._reader.pause_reading()

    def _resume(self) -> None:
        self._resting = False
        if self._reader is not None and not self._ended:
            self._work_off(iter(self._backlog))
            if not self._resting:
                self._backlog = deque()
                self._reader.resume_reading()

    # -- writing -------------------------------------------------------------------------------

    def _reply(self, response: Response) -> None:
        if not self.is_open:
            return
        frame = self._framer.encode
        try:
            line = frame(encode_message(response))
        except Unsendable as error:
            refusal = failure(response.id, ErrorCode.INTERNAL_ERROR, error.message)
            line = frame(encode_message(refusal))
        try:
            self._write(line, alone=len(self._inbound) == 0 and len(self._calls) <= 1)
        except PeerStalled as error:
            self._owner.broke(error)
        except PeerGone:
            return  # its input is closing: nobody waits for this answer

    def _write(self, line: bytes, *, alone: bool) -> None:
        outbox = self._outbox
        if outbox is None or self._ended or not outbox.is_open:
            raise PeerGone(f"{self._name} is not running")
        if not outbox.put(line, alone=alone):
            raise PeerStalled(
                f"{self._name} does not read its input; {outbox.waiting_bytes} bytes wait for it",
                fix="it will be restarted when its calls time out",
            )

    def _say_cancel(self, call_id: int) -> None:
        try:
            self.notify("kaged.cancel", {"id": call_id})
        except (PeerGone, PeerStalled):
            return  # it is ending or stuck; there is nobody to tell

    # -- deadlines -----------------------------------------------------------------------------

    def _watch(self, call: _Call) -> None:
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

    def _fail(self, call: _Call, error: KagedError) -> None:
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


def _settle(call: _Call, response: Response) -> None:
    if call.waiter.done():
        return
    if response.error is not None:
        call.waiter.set_exception(response.error.to_exception())
    else:
        call.waiter.set_result(response)
