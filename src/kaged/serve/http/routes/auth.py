"""`/api/v1/auth`: launch links, browser sessions, who am I, a new token."""

from __future__ import annotations

from typing import Annotated, ClassVar

from fastapi import Depends, FastAPI, Query, Request, Response
from starlette.responses import RedirectResponse

from kaged.audit import AuditEvent
from kaged.base import KagedError, iso_utc
from kaged.kernel.identity import Actor
from kaged.serve.http.access import COOKIE_NAME, LAUNCH_PATH, AccessRequest, cookie_of
from kaged.serve.http.credentials import SESSION_LIFETIME_S
from kaged.serve.http.documented import errors
from kaged.serve.http.models import LaunchOut, TokenRotatedOut, WhoamiOut
from kaged.serve.http.services import HttpServices, actor_of, services_of


class TcpDisabled(KagedError):
    """A browser needs the TCP listener, and this daemon has none open."""

    code: ClassVar[str] = "tcp_disabled"


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/auth/launch",
        issue_launch,
        methods=["POST"],
        tags=["auth"],
        responses=errors(409),
        summary="Make a one-time launch link",
    )
    app.add_api_route(
        f"{prefix}/auth/launch",
        redeem_launch,
        methods=["GET"],
        tags=["auth"],
        responses={
            303: {"description": "The session is open; its cookie comes with this answer."},
            **errors(),
        },
        status_code=303,
        response_class=RedirectResponse,
        summary="Trade a launch link for a browser session",
    )
    app.add_api_route(
        f"{prefix}/auth/session",
        close_session,
        methods=["DELETE"],
        tags=["auth"],
        responses=errors(),
        status_code=204,
        summary="End the browser session",
    )
    app.add_api_route(
        f"{prefix}/auth/whoami",
        whoami,
        methods=["GET"],
        tags=["auth"],
        responses=errors(),
        summary="Who the daemon takes you for",
    )
    app.add_api_route(
        f"{prefix}/auth/token/rotate",
        rotate_token,
        methods=["POST"],
        tags=["auth"],
        responses=errors(),
        summary="Replace the bearer token",
    )


async def issue_launch(
    services: Annotated[HttpServices, Depends(services_of)],
    actor: Annotated[Actor, Depends(actor_of)],
) -> LaunchOut:
    """Make a link that opens one browser session. It works once, within a minute."""
    base = services.base_url()
    if base is None:
        raise TcpDisabled(
            "This daemon listens on its Unix socket only, which browsers cannot use.",
            fix="Set an address in [daemon] bind and restart the daemon.",
        )
    token = services.launch.issue()
    await _record_token(services, "launch_url", token.lifetime_s, actor)
    return LaunchOut(url=f"{base}{LAUNCH_PATH}?token={token.value}", expires_in_s=token.lifetime_s)


async def redeem_launch(
    services: Annotated[HttpServices, Depends(services_of)],
    actor: Annotated[Actor, Depends(actor_of)],
    token: Annotated[str, Query(min_length=1, max_length=128)],
) -> Response:
    """Use a launch token up, set the session cookie and go to the front page."""
    services.launch.redeem(token)
    await _record_token(services, "browser_session", SESSION_LIFETIME_S, actor)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        COOKIE_NAME,
        services.credentials.cookies.open(),
        max_age=int(SESSION_LIFETIME_S),
        path="/",
        httponly=True,
        samesite="strict",
    )
    return response


async def close_session(
    request: Request, services: Annotated[HttpServices, Depends(services_of)]
) -> Response:
    """Sign out: the cookie that came with this request stops working. Others are not touched."""
    access_request = request.state.access_request
    assert isinstance(access_request, AccessRequest)
    cookie = cookie_of(access_request)
    if cookie is not None:
        services.credentials.cookies.close(cookie)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE_NAME, path="/", httponly=True, samesite="strict")
    return response


async def whoami(actor: Annotated[Actor, Depends(actor_of)]) -> WhoamiOut:
    """Return who asks and how they were authenticated."""
    return WhoamiOut(operator_id=actor.person_id, via=actor.vouched_by.value)


async def rotate_token(
    services: Annotated[HttpServices, Depends(services_of)],
    actor: Annotated[Actor, Depends(actor_of)],
) -> TokenRotatedOut:
    """Replace the bearer token and end all browser sessions. The new token stays in its file."""
    await _record_token(services, "bearer", None, actor)
    services.credentials.token.rotate()
    services.credentials.cookies.close_all()
    return TokenRotatedOut(token_file=str(services.credentials.token.path))


async def _record_token(
    services: HttpServices, kind: str, lifetime_s: float | None, actor: Actor
) -> None:
    """Write down that a way in was made; it is given out only once that is on disk."""
    expires_at = None
    if lifetime_s is not None:
        expires_at = iso_utc(services.clock.now_ms() + int(lifetime_s * 1000))
    event = AuditEvent(
        "access.token_issued",
        {"kind": kind, "expires_at": expires_at},
        request_id=actor.request_id,
        caller=actor.label,
    )
    await services.audit.record(event)
