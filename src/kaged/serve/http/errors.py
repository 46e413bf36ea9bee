"""The one error shape of the HTTP edge; `base.error_codes` has the HTTP statuses.

Every answer that is no success looks like this, whatever went wrong and wherever:

    {"error": {"code": "project_not_found", "message": "…", "data": {…}, "request_id": "req_…"}}

`data.fix` tells the reader what to do about it, when something can be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.error_codes import status_of
from kaged.wire.errors import RpcError
from kaged.wire.fastjson import encode_json

MAX_PROBLEMS = 20
MAX_PROBLEM_CHARS = 500
RETRY_AFTER = "retry_after_s"
"""The member of an error's data that also becomes the header Retry-After."""


class InvalidHttpRequest(KagedError):
    """The request does not say what the route needs; `data.problems` lists what is wrong."""

    code = "invalid_request"


class PayloadTooLarge(KagedError):
    """The body is larger than this route takes."""

    code = "payload_too_large"


class DaemonStopping(KagedError):
    """The daemon is on its way out and takes no more work."""

    code = "daemon_stopping"


def error_body(error: KagedError, request_id: str | None) -> JsonObject:
    """Write an error in the one shape; one that came off a wire keeps number and data there."""
    data: JsonObject = dict(error.data)
    if isinstance(error, RpcError):
        data["number"] = error.number
        data["retryable"] = error.retryable
        if error.detail is not None:
            data["detail"] = error.detail
    if error.fix:
        data["fix"] = error.fix
    return error_shape(error.code, error.message, data, request_id)


class _ErrorResponse(JSONResponse):
    def render(self, content: JsonValue) -> bytes:
        # A guest's error may hold megabytes; the framework's encoder takes five times as long.
        return encode_json(content)


def error_response(
    error: KagedError, request_id: str | None, resource_metadata: str | None = None
) -> JSONResponse:
    """Make the HTTP answer for an error.

    `resource_metadata` is where a client learns who gives out tokens (RFC 9728).
    """
    status = status_of(error.code)
    headers: dict[str, str] = {}
    if status == 401:
        where = f' resource_metadata="{resource_metadata}"' if resource_metadata else ""
        headers["WWW-Authenticate"] = f"Bearer{where}"
    retry_s = error.data.get(RETRY_AFTER)
    if isinstance(retry_s, int) and not isinstance(retry_s, bool):
        headers["Retry-After"] = str(retry_s)
    return _ErrorResponse(error_body(error, request_id), status_code=status, headers=headers)


def request_id_of(connection: HTTPConnection) -> str | None:
    """Return the id under which this request is logged."""
    value: object = getattr(connection.state, "request_id", None)
    return value if isinstance(value, str) else None


def invalid_request(errors: Iterable[Mapping[str, Any]]) -> InvalidHttpRequest:
    """Put a validator's findings into the one shape, without the values it was given.

    What the caller sent may hold secrets and may be huge; the place and the reason are enough.
    """
    problems: list[JsonValue] = []
    for found in errors:
        if len(problems) == MAX_PROBLEMS:
            break
        problems.append(
            {
                "where": _place(found.get("loc", ())),
                "message": _reason(found)[:MAX_PROBLEM_CHARS],
            }
        )
    first = problems[0] if problems else None
    detail = f": {first['where']}: {first['message']}" if isinstance(first, dict) else "."
    return InvalidHttpRequest(f"The request is not valid{detail}", problems=problems)


def error_shape(code: str, message: str, data: JsonObject, request_id: str | None) -> JsonObject:
    """Put the parts of an error into the one shape."""
    return {"error": {"code": code, "message": message, "data": data, "request_id": request_id}}


def _reason(found: Mapping[str, Any]) -> str:
    # The validator would show its regular expression, which helps nobody; the OpenAPI page has it.
    if found.get("type") == "string_pattern_mismatch":
        return "does not have the expected form"
    return str(found.get("msg", "is not valid"))


def _place(loc: Sequence[object]) -> str:
    return ".".join(str(part) for part in loc)[:MAX_PROBLEM_CHARS]
