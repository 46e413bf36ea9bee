"""How errors that leave a route become answers in the one error shape."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kaged.base import KagedError
from kaged.serve.http.errors import (
    error_response,
    error_shape,
    invalid_request,
    request_id_of,
)
from kaged.serve.http.statuses import status_of

_CODE_OF_STATUS: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "invalid_request",
        401: "unauthenticated",
        403: "access_denied",
        404: "not_found",
        405: "method_not_allowed",
        413: "payload_too_large",
        422: "invalid_request",
    }
)


async def on_kaged_error(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer an error of ours."""
    assert isinstance(error, KagedError)
    return error_response(error, request_id_of(request))


async def on_http_exception(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer what the framework itself refuses: unknown path, wrong method, unreadable body."""
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, "internal")
    return JSONResponse(
        error_shape(code, str(error.detail), {}, request_id_of(request)),
        # One status per code: a body that is no JSON is as invalid as one that does not fit.
        status_code=status_of(code),
        headers=dict(error.headers) if error.headers else None,
    )


async def on_validation_error(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer a request whose parts do not fit the route."""
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(error.errors()), request_id_of(request))


class _NoResponse(Response):
    """An answer that is never sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def on_fault(request: HTTPConnection, error: Exception) -> Response:
    """Leave a fault of ours to the layers around the routes, where the framework raises it."""
    del request, error
    return _NoResponse()
