"""`/api/v1/auth`: launch links, browser sessions, who am I, a new token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from kaged.audit import AuditEvent
from kaged.base import KagedError, iso_utc
from kaged.serve.http.access import COOKIE_NAME, LAUNCH_PATH, AccessRequest, cookie_of
from kaged.serve.http.credentials import SESSION_LIFETIME_S
from kaged.serve.http.documented import documented, errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import LaunchOut, TokenRotatedOut, WhoamiOut
from kaged.serve.http.routes.dependencies import API_PREFIX, Services, Who
from kaged.serve.http.sign_in_cookies import end_sign_in, forget_cookies, record_signed_out

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["auth"])


@router.post("/auth/launch", **documented("Make a one-time launch link", 409))
async def issue_launch(services: Services, who: Who) -> LaunchOut:
    """Make a link that opens one browser session. It works once, within a minute."""
    base = services.base_url()
    if base is None:
        raise KagedError(
            "This daemon listens on its Unix socket only, which browsers cannot use.",
            code="tcp_disabled",
            fix="Set an address in [daemon] bind and restart the daemon.",
        )
    token = services.launch.issue()
    await _record_token(services, "launch_url", token.lifetime_s, who)
    return LaunchOut(url=f"{base}{LAUNCH_PATH}?token={token.value}", expires_in_s=token.lifetime_s)


@router.get(
    "/auth/launch",
    responses={
        303: {"description": "The session is open; its cookie comes with this answer."},
        **errors(),
    },
    status_code=303,
    response_class=RedirectResponse,
    summary="Trade a launch link for a browser session",
)
async def redeem_launch(
    services: Services,
    who: Who,
    token: Annotated[str, Query(min_length=1, max_length=128)],
) -> Response:
    """Use a launch token up, set the session cookie and go to the front page."""
    services.launch.redeem(token)
    await _record_token(services, "browser_session", SESSION_LIFETIME_S, who)
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


@router.delete("/auth/session", **documented("End the browser session"), status_code=204)
async def close_session(request: Request, services: Services, who: Who) -> Response:
    """Sign out: the cookie that came with this request stops working. Others are not touched."""
    access_request = request.state.access_request
    assert isinstance(access_request, AccessRequest)
    cookie = cookie_of(access_request)
    if cookie is not None:
        services.credentials.cookies.close(cookie)
    await end_sign_in(request, services, who)
    response = Response(status_code=204)
    forget_cookies(response, services)
    return response


@router.get("/auth/whoami", **documented("Who the daemon takes you for"))
async def whoami(services: Services, who: Who) -> WhoamiOut:
    """Return who asks and how they were authenticated."""
    people = services.rules().people
    leads = people.led_by(who.person_id or "") if who.is_person else frozenset(people.teams)
    return WhoamiOut(
        operator_id=who.person_id,
        via=who.vouched_by.value,
        operator=not who.is_person,
        roles=sorted(who.roles),
        teams=sorted(who.teams),
        leads=sorted(leads),
    )


@router.post("/auth/token/rotate", **documented("Replace the bearer token"))
async def rotate_token(services: Services, who: Who) -> TokenRotatedOut:
    """Replace the bearer token and end all browser sessions. The new token stays in its file."""
    await _record_token(services, "bearer", None, who)
    services.credentials.token.rotate()
    services.credentials.cookies.close_all()
    ended = await services.sign_in.close_all()
    if ended:
        await record_signed_out(services, who, "token_rotated", ended)
    return TokenRotatedOut(token_file=str(services.credentials.token.path))


async def _record_token(services: Services, kind: str, lifetime_s: float | None, who: Who) -> None:
    """Write down that a way in was made; it is given out only once that is on disk."""
    expires_at = None
    if lifetime_s is not None:
        expires_at = iso_utc(services.clock.now_ms() + int(lifetime_s * 1000))
    event = AuditEvent(
        "access.token_issued",
        {"kind": kind, "expires_at": expires_at},
        request_id=who.request_id,
        caller=who.label,
    )
    await services.audit.record(event)
