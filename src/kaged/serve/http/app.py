"""`create_app`: the routes and their error handlers; `EarlyApp` has the layers in front of them."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kaged import __version__
from kaged.base import KagedError
from kaged.base.error_codes import status_of
from kaged.serve.http.documented import completed
from kaged.serve.http.errors import (
    error_response,
    error_shape,
    invalid_request,
    request_id_of,
)
from kaged.serve.http.routes import audit, auth, events, health, sign_in
from kaged.serve.http.routes.dependencies import API_PREFIX
from kaged.serve.http.services import HttpServices

_CODE_OF_STATUS: Final = {
    400: "invalid_request",
    401: "unauthenticated",
    403: "access_denied",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    422: "invalid_request",
}

_DESCRIPTION = """\
The daemon's interface. Every answer that is no success has one shape:
`{"error": {"code", "message", "data", "request_id"}}`; match on `code`. Lists are paged with
`cursor` and `limit`. `WS /api/v1/events` streams what happens, with resume by sequence number.

Over the Unix socket the peer's uid is the credential. Over TCP send `Authorization: Bearer <token>`
(`kaged daemon token`) or open a browser session with `kaged daemon open`.
"""


def create_app(services: HttpServices) -> FastAPI:
    """Build the routes around the daemon's services.

    A request that reaches one has passed the layers of `EarlyApp`: it has an id, a caller and a
    body within its limits. `add_subsystem_routes` adds the routes of what starts later.
    """
    app = FastAPI(
        title="kaged",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=f"{API_PREFIX}/openapi.json",
        # The interactive pages load scripts from elsewhere, which a daemon of this kind must not.
        docs_url=None,
        redoc_url=None,
        # Nothing about requests leaves this machine, whatever the environment says.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.services = services
    draw = app.openapi
    app.openapi = lambda: completed(draw())
    _add(app, health.router, audit.router, auth.router, sign_in.router, events.router)
    app.add_exception_handler(KagedError, _on_kaged_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_fault)
    return app


def add_subsystem_routes(app: FastAPI) -> None:
    """Add the routes of the subsystems. Loading them costs more than all the rest."""
    from kaged.serve.http.routes import (  # noqa: PLC0415 - see above
        access_grants,
        account_shares,
        credentials,
        doctor,
        inbox,
        interactions,
        invitations,
        issues,
        lsp,
        lua,
        models,
        pipeline,
        plugins,
        projects,
        service_accounts,
        services,
        session_moves,
        session_runs,
        sessions,
        skills,
        status,
        todos,
        tools,
        undo,
        usage,
        workflows,
    )

    _add(
        app,
        status.router,
        projects.router,
        tools.router,
        undo.router,
        lsp.router,
        lua.router,
        models.router,
        issues.router,
        todos.router,
        workflows.router,
        interactions.router,
        inbox.router,
        sessions.router,
        session_moves.router,
        session_runs.router,
        access_grants.router,
        plugins.router,
        services.router,
        account_shares.router,
        service_accounts.router,
        credentials.router,
        invitations.router,
        skills.router,
        usage.router,
        pipeline.router,
        doctor.router,
    )


def _add(app: FastAPI, *routers: APIRouter) -> None:
    """Add the routes of these as they are: `include_router` would build them again."""
    for router in routers:
        app.router.routes.extend(router.routes)
    app.openapi_schema = None  # drawn anew, with everything in it


async def _on_kaged_error(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer an error of ours."""
    assert isinstance(error, KagedError)
    return error_response(error, request_id_of(request))


async def _on_http_exception(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer what the framework itself refuses: unknown path, wrong method, unreadable body."""
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, "internal")
    return JSONResponse(
        error_shape(code, str(error.detail), {}, request_id_of(request)),
        # One status per code: a body that is no JSON is as invalid as one that does not fit.
        status_code=status_of(code),
        headers=dict(error.headers) if error.headers else None,
    )


async def _on_validation_error(request: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer a request whose parts do not fit the route."""
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(error.errors()), request_id_of(request))


class _NoResponse(Response):
    """An answer that is never sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def _on_fault(request: HTTPConnection, error: Exception) -> Response:
    """Leave a fault of ours to the layers around the routes, where the framework raises it."""
    del request, error
    return _NoResponse()
