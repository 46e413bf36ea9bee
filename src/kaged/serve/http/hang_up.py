"""`HangUpMiddleware`: a client that leaves is no error, whatever was under way for it.

Between the moment in which a connection closes and the moment in which a route hears of it, writing
to it fails, in uvloop with a RuntimeError. Such failures come from anywhere in an application; only
the connection itself can tell them from faults of ours.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaged.base.log import get_logger
from kaged.serve.http.connection import STATE_KEY, PeerConnection

_log = get_logger("kaged.http")


class HangUpMiddleware:
    """ASGI layer around all others: what fails because the client left ends quietly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request or stream to its end, or to the end of its client."""
        connection = scope.get("state", {}).get(STATE_KEY)
        if not isinstance(connection, PeerConnection):
            await self._app(scope, receive, send)
            return
        gone = False

        async def send_while_there(message: Message) -> None:
            nonlocal gone
            try:
                await send(message)
            except (RuntimeError, OSError):
                if not connection.closing():
                    raise
                gone = True

        try:
            await self._app(scope, receive, send_while_there)
        except Exception as error:
            if not (gone or connection.closing()):
                raise
            gone = True
            _log.debug("request.client_left", error=type(error).__name__)
        if scope["type"] == "http":
            # Until uvicorn knows as well, it would take an answer that was cut for our mistake.
            while gone and (await receive())["type"] != "http.disconnect":
                pass
