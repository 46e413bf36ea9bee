"""`ReadinessMiddleware`: holds requests for subsystems that have not started yet.

The daemon answers as soon as its audit log, its listeners and its store are there. Projects,
plugins and tools start right behind that; a request for them waits meanwhile, instead of being
refused.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from kaged.serve.http.errors import error_response
from kaged.serve.http.services import DaemonStarting, ReadinessGate

EARLY: Final = (
    "/healthz",
    "/metrics",
    "/api/v1/audit",
    "/api/v1/auth",
    "/api/v1/events",
)
"""Where nothing is needed but what is there from the first request on."""


class ReadinessMiddleware:
    """ASGI layer that lets a request through once what it asks for can be there."""

    def __init__(self, app: ASGIApp, *, readiness: ReadinessGate) -> None:
        self._app = app
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the rest of the application, now or a moment later."""
        if scope["type"] in ("http", "websocket") and not self._readiness.is_open:
            path: str = scope["path"]
            if not any(path == early or path.startswith(f"{early}/") for early in EARLY):
                try:
                    await self._readiness.wait()
                except DaemonStarting as error:
                    request_id = scope["state"]["request_id"]
                    await error_response(error, request_id)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
