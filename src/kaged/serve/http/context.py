"""The outermost layer of a request: its id, its log line, its number, and the last resort.

Nothing that goes wrong further in leaves here in any other form than the one error shape.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaged.base import Clock, Ids, KagedError
from kaged.base.log import get_logger, load_structlog
from kaged.serve.http.errors import error_response
from kaged.serve.http.metrics import Metrics

_log = get_logger("kaged.http")

# What every answer carries. The API shows no pages, so nothing may be loaded, framed or guessed;
# the web pages bring a policy of their own.
SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
UNMATCHED = "unmatched"


class RequestContext:
    """ASGI layer that gives each request its id and makes sure that it gets an answer."""

    def __init__(self, app: ASGIApp, *, clock: Clock, ids: Ids, metrics: Metrics) -> None:
        self._app = app
        self._clock = clock
        self._ids = ids
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the rest of the application for one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = self._ids.tagged("req")
        scope.setdefault("state", {})["request_id"] = request_id
        started = self._clock.monotonic_s()
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.close" and status == 0:
                # The framework hangs up on a path that it does not know; say so instead.
                answer = error_response(
                    KagedError("There is no such stream.", code="not_found"), request_id
                )
                await answer(scope, receive, send_marked)
                return
            await send(message)

        with load_structlog().contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_marked)
            except Exception as error:  # noqa: BLE001  # boundary: request handler; all is answered
                _log.exception("request.failed", path=scope["path"], error=type(error).__name__)
                if status == 0:
                    await self._answer_500(scope, receive, send_marked, request_id)
            finally:
                self._count(scope, status, self._clock.monotonic_s() - started)

    async def _answer_500(
        self, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        error = KagedError(
            "Something went wrong inside the daemon.",
            code="internal",
            fix="The daemon's log has the details under this request id.",
        )
        await error_response(error, request_id)(scope, receive, send)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope.get("method", "WEBSOCKET")
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._metrics.answered(method, route, status, seconds)
        # The query is not logged: a launch link carries its token there.
        _log.debug(
            "request.answered",
            method=method,
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
        )
