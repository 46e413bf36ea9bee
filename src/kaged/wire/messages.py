"""JSON-RPC 2.0 as values: what one side sends, and every shape in which the other may answer.

Decoding never raises: whatever arrives becomes a `Request`, `Notification` or `Response`, or one
of the refused forms `Invalid`, `Batch` and `Noise`. How JSON becomes these lives in `classify`;
the two JSON engines (`strictjson`, `fastjson`) share it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.wire.errors import ErrorCode, RpcError, rpc_error

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue

MessageId: TypeAlias = int | str
Params: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | None"

VERSION = "2.0"
NOISE_EXCERPT_CHARS = 200  # PH-WIRE-13

# The three that are made for every message are not frozen: a frozen one takes three times as long
# to make. Nobody changes one.


@dataclass(slots=True, unsafe_hash=True)
class Request:
    """A call that wants an answer with the same id."""

    id: MessageId
    method: str
    params: Params = None


@dataclass(slots=True, unsafe_hash=True)
class Notification:
    """A call that is never answered, not even with an error (PH-WIRE-21)."""

    method: str
    params: Params = None


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """The `error` member of an answer. An absent `data` and a null one are the same."""

    code: int
    message: str
    data: JsonValue = None

    def to_exception(self) -> RpcError:
        """Return the exception for the caller whose request was answered with this."""
        return rpc_error(self.code, self.message, self.data)


@dataclass(slots=True, unsafe_hash=True)
class Response:
    """An answer: a failure when `error` is set, otherwise a success with `result`.

    `id` is None when the other side could not tell which message it answers. `empty` says that
    neither member was on the wire, which counts as a null result for most methods and as a fault
    for `initialize` and `ping` (PH-AMB-59).
    """

    id: MessageId | None
    result: JsonValue = None
    error: ErrorObject | None = None
    empty: bool = False


class InvalidReason(StrEnum):
    """Why JSON is not a JSON-RPC 2.0 message."""

    NOT_OBJECT = "not_object"  # a number, text, true, false or null
    VERSION = "version"  # jsonrpc absent or not "2.0"
    METHOD = "method"  # method is not text
    PARAMS = "params"  # params is neither an object, an array nor null
    ID = "id"  # id is neither an integer nor text (nor null in an answer)
    NO_ID = "no_id"  # neither a method nor an id
    MIXED = "mixed"  # a method together with result or error
    BOTH = "both"  # result and error together
    ERROR = "error"  # error is not {code: integer, message: text}


@dataclass(frozen=True, slots=True)
class Invalid:
    """JSON that is not a valid message.

    `id` is the message's id when it is a well-typed one. `is_answer` tells whose counter it
    belongs to: an answer's id is one of ours, anything else's is the sender's.
    """

    reason: InvalidReason
    id: MessageId | None = None
    is_answer: bool = False

    @property
    def reply_id(self) -> MessageId | None:
        """Return the id to refuse it with.

        Never the id of an answer: it counts in our direction, and the sender could take the
        refusal for the answer to a request of its own with the same number.
        """
        return None if self.is_answer else self.id

    @property
    def open_id(self) -> MessageId | None:
        """Return the id of the request of ours that this was meant to answer (PH-AMB-32)."""
        return self.id if self.is_answer else None


@dataclass(frozen=True, slots=True)
class Batch:
    """A JSON array where a message should be; none of its elements is looked at (PH-WIRE-16)."""

    size: int


class NoiseReason(StrEnum):
    """Why bytes are not JSON."""

    ENCODING = "encoding"  # not UTF-8, a byte order mark, or half a surrogate pair
    SYNTAX = "syntax"
    NUMBER = "number"  # NaN, an infinity, or out of range
    DEPTH = "depth"
    DUPLICATE_KEY = "duplicate_key"  # only where keys must be unique


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is not JSON; to be reported and dropped."""

    line: bytes
    reason: NoiseReason = NoiseReason.SYNTAX

    def excerpt(self, limit_chars: int = NOISE_EXCERPT_CHARS) -> str:
        """Return the start of the line as text for a log or an audit record (PH-WIRE-13)."""
        # A character takes at most four bytes, so this much decodes to enough of them.
        start = self.line[: limit_chars * 4].removesuffix(b"\r")
        return start.decode("utf-8", "backslashreplace")[:limit_chars]


Outgoing: TypeAlias = Request | Notification | Response
Refused: TypeAlias = Invalid | Batch | Noise
Incoming: TypeAlias = Request | Notification | Response | Invalid | Batch | Noise


def classify(value: JsonValue) -> Request | Notification | Response | Invalid | Batch:
    """Return what a decoded JSON value is as a JSON-RPC message. Never raises.

    Extra members are ignored. A null `params` counts as absent, as several language servers
    send it. Ids are integers or text: floats (1.0 included), booleans and structures are not, and
    null is one only in an answer.
    """
    if isinstance(value, dict):
        return _classify_call(value) if "method" in value else _classify_answer(value)
    if isinstance(value, list):
        return Batch(len(value))
    return Invalid(InvalidReason.NOT_OBJECT)


def _classify_answer(value: JsonObject) -> Response | Invalid:
    raw_id = value.get("id")
    # An exact type check: True is an int to Python and must not match request 1.
    message_id = raw_id if type(raw_id) is int or isinstance(raw_id, str) else None
    if value.get("jsonrpc") != VERSION:
        reason = InvalidReason.VERSION
    elif message_id is None and raw_id is not None:
        reason = InvalidReason.ID
    elif "id" not in value:
        reason = InvalidReason.NO_ID
    elif "error" not in value:
        return Response(message_id, value.get("result"), None, "result" not in value)
    elif "result" in value:
        reason = InvalidReason.BOTH
    else:
        error = _error_object(value["error"])
        if error is not None:
            return Response(message_id, None, error)
        reason = InvalidReason.ERROR
    return Invalid(reason, message_id, is_answer=True)


def _classify_call(value: JsonObject) -> Request | Notification | Invalid:
    raw_id = value.get("id")
    message_id = raw_id if type(raw_id) is int or isinstance(raw_id, str) else None
    method = value["method"]
    params = value.get("params")
    if "result" in value or "error" in value:
        # What a plugin sends that adds its result to the request it was given: an answer.
        return Invalid(InvalidReason.MIXED, message_id, is_answer=True)
    if value.get("jsonrpc") != VERSION:
        reason = InvalidReason.VERSION
    elif not isinstance(method, str):
        reason = InvalidReason.METHOD
    elif params is not None and not isinstance(params, dict | list):
        reason = InvalidReason.PARAMS
    elif message_id is not None:
        return Request(message_id, method, params)
    elif "id" in value:
        reason = InvalidReason.ID
    else:
        return Notification(method, params)
    return Invalid(reason, message_id)


def _error_object(value: JsonValue) -> ErrorObject | None:
    if not isinstance(value, dict):
        return None
    code = value.get("code")
    message = value.get("message")
    if type(code) is not int or not isinstance(message, str):
        return None
    return ErrorObject(code, message, value.get("data"))


def to_wire(message: Outgoing) -> JsonObject:
    """Return the JSON object of a message; absent members are left out, not null."""
    if isinstance(message, Response):
        wire: JsonObject = {"jsonrpc": VERSION, "id": message.id}
        if message.error is None:
            wire["result"] = message.result
            return wire
        error: JsonObject = {"code": int(message.error.code), "message": message.error.message}
        if message.error.data is not None:
            error["data"] = message.error.data
        wire["error"] = error
        return wire
    wire = {"jsonrpc": VERSION}
    if isinstance(message, Request):
        wire["id"] = message.id
    wire["method"] = message.method
    if message.params is not None:
        wire["params"] = message.params
    return wire


def failure(
    message_id: MessageId | None, code: int, message: str, data: JsonValue = None
) -> Response:
    """Make the answer that reports an error."""
    return Response(message_id, error=ErrorObject(code, message, data))


def rejection(refused: Refused, *, answer_noise: bool = False) -> Response | None:
    """Make the answer to a refused message, or None when it gets none.

    The host stays silent about noise; a guest that cannot read the host's line answers it with
    -32700 (`answer_noise`, PH-AMB-32). A batch is refused as a whole with a null id (PH-WIRE-16).
    """
    if isinstance(refused, Noise):
        if not answer_noise:
            return None
        return failure(None, ErrorCode.PARSE_ERROR, f"the line is not JSON ({refused.reason})")
    if isinstance(refused, Batch):
        return failure(None, ErrorCode.INVALID_REQUEST, "batches are not supported")
    return failure(
        refused.reply_id,
        ErrorCode.INVALID_REQUEST,
        f"not a JSON-RPC 2.0 message ({refused.reason})",
    )
