"""JSON-RPC 2.0 as the sandbox speaks it: one request per frame, no batches, errors with a code.

Capability errors travel as -32603 with `<code>: <text>` and the code again in `data`, so that
clients of every generation can branch on it (SC-AMB-06).
"""

from __future__ import annotations

from typing import TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityError, CapabilityInternalError
from kaged.wire.fastjson import decode_json, encode_json
from kaged.wire.framing import Unsendable
from kaged.wire.strictjson import NotJson
from kaged.wire.tokens import TokenRejected
from kaged.wire.value_count import holds_more_values

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
UNKNOWN_METHOD = -32601
INVALID_TOKEN = -32602
CAPABILITY_ERROR = -32603

REQUEST_DEPTH = 64
_METHOD_LIMIT_CHARS = 128
_ID_LIMIT_CHARS = 128

RequestId: TypeAlias = str | int | None


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A well-formed request; whether the method exists is not decided yet."""

    id: RequestId
    method: str
    params: JsonObject


class RequestRefused(Exception):
    """The frame holds no request that could be answered otherwise; `answer` is what to send."""

    def __init__(self, request_id: RequestId, number: int, text: str) -> None:
        super().__init__(text)
        self.answer = error_answer(request_id, number, text)


def parse_request(frame: bytes) -> RpcRequest:
    """Read one frame.

    Raises:
        RequestRefused: too much, not JSON, not an object, not JSON-RPC 2.0, or no id or method.
    """
    if holds_more_values(frame):
        raise RequestRefused(None, INVALID_REQUEST, "Invalid request: it holds too many values")
    try:
        value = decode_json(frame, max_depth=REQUEST_DEPTH)
    except NotJson:
        raise RequestRefused(None, PARSE_ERROR, "Parse error") from None
    if not isinstance(value, dict):
        raise RequestRefused(None, INVALID_REQUEST, "Invalid request: one object is expected")
    request_id = _id(value)
    if value.get("jsonrpc") != "2.0":
        raise RequestRefused(request_id, INVALID_REQUEST, 'Invalid request: jsonrpc must be "2.0"')
    if request_id is None:
        raise RequestRefused(None, INVALID_REQUEST, "Invalid request: a text or number is the id")
    method = value.get("method")
    if not isinstance(method, str) or not 0 < len(method) <= _METHOD_LIMIT_CHARS:
        raise RequestRefused(request_id, INVALID_REQUEST, "Invalid request: no method")
    params = value.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RequestRefused(request_id, INVALID_REQUEST, "Invalid request: params is no object")
    return RpcRequest(request_id, method, params)


def result_answer(request_id: RequestId, result: JsonObject) -> bytes:
    """Return the message for a success. Raises Unsendable for a result that JSON cannot hold."""
    return encode_json({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_answer(
    request_id: RequestId, number: int, text: str, data: JsonObject | None = None
) -> bytes:
    """Return the message for a failure."""
    error: JsonObject = {"code": number, "message": text}
    if data is not None:
        error["data"] = data
    return encode_json({"jsonrpc": "2.0", "id": request_id, "error": error})


def refusal_answer(request_id: RequestId, error: TokenRejected | CapabilityError) -> bytes:
    """Return the message for a refused token or a capability call that failed."""
    if isinstance(error, TokenRejected):
        return error_answer(
            request_id,
            INVALID_TOKEN,
            error.message,
            {"code": error.code, "reason": error.reason.value, "retryable": False},
        )
    data: JsonObject = {"code": error.code, "retryable": error.retryable}
    for name in ("retry_after_seconds", "request_id"):
        if name in error.data:
            data[name] = error.data[name]
    try:
        return error_answer(request_id, CAPABILITY_ERROR, f"{error.code}: {error}", data)
    except Unsendable:
        return fault_answer(request_id)


def fault_answer(request_id: RequestId) -> bytes:
    """Return the message for a fault of the host: nothing of what happened is in it."""
    code = CapabilityInternalError.code
    return error_answer(
        request_id, CAPABILITY_ERROR, f"{code}: request failed", {"code": code, "retryable": True}
    )


def _id(value: JsonObject) -> RequestId:
    found: JsonValue = value.get("id")
    if isinstance(found, str) and len(found) <= _ID_LIMIT_CHARS:
        return found
    return found if type(found) is int else None
