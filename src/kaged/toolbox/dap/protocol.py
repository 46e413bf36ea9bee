"""`DapConnection`: requests, answers, events and reverse requests of the Debug Adapter Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, cast

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.wire.content_length import ContentLengthFramer
from kaged.wire.fastjson import decode_json, encode_json
from kaged.wire.framing import FramingError
from kaged.wire.strictjson import NotJson

MESSAGE_LIMIT_BYTES: Final = 32 * 1024 * 1024
WRITE_LIMIT_BYTES: Final = 16 * 1024 * 1024
REQUEST_LIMIT_S: Final = 30.0
MAX_OPEN: Final = 64
MAX_REVERSE: Final = 16

OnEvent: TypeAlias = Callable[[str, JsonObject], None]
OnReverse: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
OnClosed: TypeAlias = Callable[[], None]
Taking: TypeAlias = Callable[[JsonObject], None]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request that is not answered yet."""

    command: str
    answer: asyncio.Future[JsonObject]
    taking: Taking | None


class DapConnection(asyncio.Protocol):
    """One conversation with an adapter, over pipes or a socket.

    Sequence numbers grow from 1. Events are handed on in order, before later answers. Reverse
    requests are answered always, by `on_reverse` or with a refusal.
    """

    def __init__(self, on_event: OnEvent, on_reverse: OnReverse, on_closed: OnClosed) -> None:
        self._on_event = on_event
        self._on_reverse = on_reverse
        self._on_closed = on_closed
        self._framer = ContentLengthFramer(limit_bytes=MESSAGE_LIMIT_BYTES)
        self._seq = 0
        self._open: dict[int, _OpenRequest] = {}
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.BaseTransport | None = None
        self._ended = False
        self._reversing = 0
        self._tasks = Tasks("debug adapter")

    # -- attaching -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the adapter's output, which for a socket is its input too."""
        self._reader = transport
        if isinstance(transport, asyncio.WriteTransport):
            self._writer = transport

    def write_to(self, transport: asyncio.WriteTransport) -> None:
        """Take the transport of the adapter's input."""
        self._writer = transport

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        # One that ended at once closes its input before its output is found to have ended.
        writer = self._writer
        return writer is not None and not self._ended and not writer.is_closing()

    # -- asking ----------------------------------------------------------------------------------

    async def request(
        self,
        command: str,
        arguments: JsonObject | None = None,
        limit_s: float = REQUEST_LIMIT_S,
        taking: Taking | None = None,
    ) -> JsonObject:
        """Ask the adapter and return the body of its answer.

        `taking` gets the body at once, before events that came after it are heard.
        Raises DapRequestFailed and DapSessionEnded.
        """
        if not self.is_open or len(self._open) >= MAX_OPEN:
            raise DapSessionEnded("the debug adapter has ended", fix="launch again")
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._seq += 1
        seq = self._seq
        self._open[seq] = _OpenRequest(command, answer, taking)
        message: JsonObject = {"seq": seq, "type": "request", "command": command}
        if arguments is not None:
            message["arguments"] = arguments
        self._send(message)
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise DapRequestFailed(
                f"the debug adapter did not answer {command} within {limit_s:g} seconds",
                fix="try again, or disconnect",
            ) from None
        finally:
            self._open.pop(seq, None)

    async def close(self) -> None:
        """Close the transports and fail what is open. Safe to call twice."""
        self._end()
        await self._tasks.close()

    # -- hearing ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what the adapter wrote."""
        try:
            bodies = self._framer.feed(data)
        except FramingError as error:
            _log.warning("dap.connection_broken", error=error.message)
            self._lost()
            return
        for body in bodies:
            try:
                message = decode_json(body)
            except NotJson:
                _log.debug("dap.message_invalid", body=body[:200])
                continue
            if isinstance(message, dict):
                self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the adapter's output ended."""
        self._lost()

    def _receive(self, message: JsonObject) -> None:
        match message.get("type"):
            case "response":
                self._settle(message)
            case "event":
                event = message.get("event")
                if isinstance(event, str):
                    self._on_event(event, _object(message.get("body")))
            case "request":
                self._asked(message)
            case _:
                _log.debug("dap.message_invalid", keys=list(message)[:10])

    def _settle(self, message: JsonObject) -> None:
        seq = message.get("request_seq")
        found = self._open.get(seq) if type(seq) is int else None
        if found is None or found.answer.done():
            return  # late, or for nobody
        if message.get("success") is True:
            body = _object(message.get("body"))
            if found.taking is not None:
                # Whoever awaits the answer goes on only after what else is in this packet.
                found.taking(body)
            found.answer.set_result(body)
            return
        text = failure_text(message)
        found.answer.set_exception(
            DapRequestFailed(f"{found.command}: {text}", detail={"message": text})
        )

    def _asked(self, message: JsonObject) -> None:
        seq, command = message.get("seq"), message.get("command")
        if type(seq) is not int or not isinstance(command, str):
            return
        if self._reversing >= MAX_REVERSE:
            self._answer(seq, command, success=False, body={}, text="too many requests")
            return
        self._reversing += 1
        self._tasks.start(
            self._reverse(seq, command, _object(message.get("arguments"))), f"reverse {command}"
        )

    async def _reverse(self, seq: int, command: str, arguments: JsonObject) -> None:
        try:
            body = await self._on_reverse(command, arguments)
        except Exception as error:  # noqa: BLE001 - boundary: the adapter always gets an answer
            _log.info("dap.reverse_refused", command=command, error=repr(error))
            self._answer(seq, command, success=False, body={}, text=str(error)[:500])
        else:
            self._answer(seq, command, success=True, body=body)
        finally:
            self._reversing -= 1

    def _answer(
        self, seq: int, command: str, *, success: bool, body: JsonObject, text: str = ""
    ) -> None:
        self._seq += 1
        message: JsonObject = {
            "seq": self._seq,
            "type": "response",
            "request_seq": seq,
            "command": command,
            "success": success,
            "body": body,
        }
        if text:
            message["message"] = text
        if self.is_open:
            self._send(message)

    # -- own -------------------------------------------------------------------------------------

    def _send(self, message: JsonObject) -> None:
        writer = cast("asyncio.WriteTransport", self._writer)
        if writer.get_write_buffer_size() > WRITE_LIMIT_BYTES:
            self._lost()
            raise DapSessionEnded("the debug adapter does not read any more", fix="launch again")
        writer.write(self._framer.encode(encode_json(message)))

    def _lost(self) -> None:
        if not self._ended:
            self._end()
            self._on_closed()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        for one in self._open.values():
            if not one.answer.done():
                one.answer.set_exception(
                    DapSessionEnded(
                        f"the debug adapter ended before it answered {one.command}",
                        fix="launch again",
                    )
                )
        self._open.clear()


def failure_text(message: JsonObject) -> str:
    """Find the words of a failed answer: the formatted error if there is one."""
    body = message.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("format"), str):
        text = cast("str", error["format"])
        variables = error.get("variables")
        for name, value in variables.items() if isinstance(variables, dict) else ():
            text = text.replace("{" + name + "}", str(value))
        return text[:2000]
    said = message.get("message")
    return said[:2000] if isinstance(said, str) and said else "the adapter gave no reason"


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}
