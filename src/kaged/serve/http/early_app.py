"""`EarlyApp`: the application as the sockets see it; its layers stand before the routes are loaded.

Loading the web framework and the routes takes as long as the rest of a start. So this app is there
first: it tells who may come in and whether all is well, and lets requests through to the routes as
soon as these are loaded.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from kaged.base.lazy_dataclass import dataclass
from kaged.serve.http.context import RequestContext
from kaged.serve.http.errors import error_response
from kaged.serve.http.hang_up import HangUpMiddleware
from kaged.serve.http.middleware import (
    AccessMiddleware,
    LimitsMiddleware,
    ProjectsMiddleware,
    Refusals,
)
from kaged.serve.http.services import DaemonStarting, HttpServices, ReadinessGate

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH: Final = "/healthz"
EARLY: Final = (
    "/healthz",
    "/metrics",
    "/api/v1/audit",
    "/api/v1/auth",
    "/api/v1/events",
    "/.well-known",
)
"""Where nothing is needed but what is there from the first request on."""


@dataclass(frozen=True, slots=True)
class _EarlyRoute:
    """What stands for a route in the numbers, for a request that was answered without one."""

    path: str


class EarlyApp:
    """ASGI application: layers for context, access, limits and readiness, then the routes.

    A request that reaches a route has an id, a caller and a body within its limits.
    """

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._routes: FastAPI | None = None
        self._loading = asyncio.Lock()
        app: ASGIApp = ProjectsMiddleware(
            self._enter,
            ids_of=services.project_ids,
            refusals=Refusals(services.metrics, services.audit),
        )
        app = ReadinessMiddleware(app, readiness=services.readiness)
        app = LimitsMiddleware(app, stopping=services.stopping)
        app = AccessMiddleware(
            app,
            rules=services.rules,
            credentials=services.credentials,
            sign_in=services.sign_in,
            metrics=services.metrics,
            audit=services.audit,
        )
        self._layers = RequestContext(
            HangUpMiddleware(app),
            clock=services.clock,
            ids=services.ids,
            metrics=services.metrics,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._layers(scope, receive, send)

    async def routes(self) -> FastAPI:
        """Return the routes, loaded on first use."""
        if self._routes is None:
            async with self._loading:
                if self._routes is None:
                    self._routes = await asyncio.to_thread(_load, self._services)
        return self._routes

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._routes is None and scope["path"] == HEALTH and scope.get("method") == "GET":
            scope["route"] = _EarlyRoute(HEALTH)
            status, word = self._services.health()
            await JSONResponse({"status": word}, status)(scope, receive, send)
            return
        routes = self._routes or await self.routes()
        await routes(scope, receive, send)


class ReadinessMiddleware:
    """ASGI layer that lets a request through once what it asks for can be there.

    Projects, plugins and tools start right behind the audit log, the listeners and the store; a
    request for them waits meanwhile, instead of being refused.
    """

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


def _load(services: HttpServices) -> FastAPI:
    _load_framework()
    from kaged.serve.http.app import create_app  # noqa: PLC0415 - the point of this module

    return create_app(services)


def _load_framework() -> None:
    """Load FastAPI, its models of the OpenAPI document unbuilt until somebody asks for that.

    Building them is a third of loading it. Models inherit the configuration of their base, which
    is set for as long as the framework's own are declared.
    """
    from pydantic import BaseModel, ConfigDict  # noqa: PLC0415 - see above

    usual = BaseModel.model_config
    BaseModel.model_config = ConfigDict(defer_build=True)
    try:
        importlib.import_module("fastapi.openapi.models")
    finally:
        BaseModel.model_config = usual
