"""The cookies of people who sign in, and what ends their sessions."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kaged.audit import AuditEvent
from kaged.base import JsonObject
from kaged.kernel.identity import Actor
from kaged.serve.http.access import COOKIE_NAME, AccessRequest, cookie_of
from kaged.serve.http.services import HttpServices
from kaged.serve.signin.flow import FLOW_LIFETIME_S

FLOW_COOKIE: Final = "kaged_sign_in"


def access_request_of(request: Request) -> AccessRequest:
    """Return the request as the access layer saw it."""
    found: object = request.state.access_request
    assert isinstance(found, AccessRequest)
    return found


def flow_cookie_of(request: Request, services: HttpServices) -> str | None:
    """Return the sealed flow that this browser began."""
    return cookie_of(access_request_of(request), services.rules().cookie_name(FLOW_COOKIE))


def set_flow_cookie(response: Response, services: HttpServices, value: str) -> None:
    """Set the cookie of a flow. `Lax`: the provider's page leads back here."""
    response.set_cookie(
        services.rules().cookie_name(FLOW_COOKIE),
        value,
        max_age=FLOW_LIFETIME_S,
        path="/",
        httponly=True,
        samesite="lax",
        secure=services.sign_in.secure,
    )


def set_session_cookie(
    response: Response, services: HttpServices, value: str, lifetime_s: int
) -> None:
    """Set the cookie of a session and delete that of its flow."""
    name, secure = services.rules().cookie_name(FLOW_COOKIE), services.sign_in.secure
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=secure)
    response.set_cookie(
        services.rules().cookie_name(),
        value,
        max_age=lifetime_s,
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def forget_cookies(response: Response, services: HttpServices) -> None:
    """Let a browser forget its session, whichever kind it has."""
    secure = services.sign_in.secure
    for name in dict.fromkeys((COOKIE_NAME, services.rules().cookie_name())):
        response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=secure)


async def end_sign_in(request: Request, services: HttpServices, who: Actor) -> None:
    """End the session of the cookie that came with a request, if it was one of a sign-in."""
    value = cookie_of(access_request_of(request), services.rules().cookie_name())
    if value is None:
        return
    if await services.invitations.give_up(value, who.request_id):
        services.sign_in.tell_change()
    elif await services.sign_in.close(value):
        await record_signed_out(services, who, "asked", 1)


async def record_signed_out(
    services: HttpServices, who: Actor, reason: str, sessions: int, person_id: str | None = None
) -> None:
    """Put the end of sessions on record; `person_id` is whose, where others ended them."""
    data: JsonObject = {"reason": reason, "sessions": sessions}
    if person_id is not None:
        data["person_id"] = person_id
    await services.audit.record(
        AuditEvent(
            "access.signed_out",
            data,
            request_id=who.request_id,
            caller=who.label,
        )
    )
