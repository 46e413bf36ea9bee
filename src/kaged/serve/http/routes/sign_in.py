"""`/api/v1/auth`: signing in with OpenID Connect, and where clients learn how."""

from __future__ import annotations

from html import escape
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse

from kaged.audit import AuditEvent
from kaged.base import iso_utc
from kaged.kernel.identity import VouchedBy
from kaged.serve.http.access import host_of
from kaged.serve.http.documented import documented, errors
from kaged.serve.http.errors import InvalidHttpRequest
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.dependencies import API_PREFIX, Services, Who
from kaged.serve.http.sign_in_cookies import (
    access_request_of,
    end_sign_in,
    flow_cookie_of,
    forget_cookies,
    record_signed_out,
    set_flow_cookie,
    set_session_cookie,
)
from kaged.serve.signin.sign_in import RESOURCE_METADATA_PATH
from kaged.serve.signin.verifier import MAX_TOKEN_CHARS

router = APIRouter(tags=["auth"])

# A page and no redirect: a browser that comes from the provider sends no `Strict` cookie along a
# redirect, but does so for what our own page leads to.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Signed in</title>
<meta http-equiv="refresh" content="0; url={target}"></head>
<body><p>You are signed in. <a href="{target}">Continue</a></p></body></html>
"""


class OpenIdOut(ApiModel):
    """How to sign in to this daemon."""

    issuer: Annotated[str, Field(description="The provider of OpenID Connect.")]
    cli_client_id: Annotated[
        str | None, Field(description="The client for `kaged login`; null when there is none.")
    ]
    scopes: list[str]
    resource: Annotated[str, Field(description="What access tokens must be for (RFC 8707).")]


class ResourceMetadataOut(ApiModel):
    """What RFC 9728 says about a protected resource."""

    resource: str
    authorization_servers: list[str]
    scopes_supported: list[str]
    bearer_methods_supported: list[str]
    resource_name: str


@router.get(
    f"{API_PREFIX}/auth/login",
    responses={303: {"description": "To the provider's page."}, **errors(404, 409)},
    status_code=303,
    response_class=RedirectResponse,
    summary="Sign in with OpenID Connect",
)
async def login(
    request: Request,
    services: Services,
    return_to: Annotated[
        str, Query(max_length=1000, description="A path of this daemon to go to afterwards.")
    ] = "/",
) -> Response:
    """Send the browser to the provider (authorization code with PKCE, state and nonce)."""
    begun = await services.sign_in.begin(return_to, host_of(access_request_of(request)))
    response = RedirectResponse(begun.url, status_code=303)
    set_flow_cookie(response, services, begun.cookie)
    return response


@router.get(
    f"{API_PREFIX}/auth/callback",
    responses={
        200: {"description": "Signed in; the session's cookie comes with this page."},
        **errors(400, 404, 409),
    },
    response_class=HTMLResponse,
    summary="Come back from the provider",
)
async def callback(
    request: Request,
    services: Services,
    who: Who,
    state: Annotated[str, Query(max_length=256)],
    code: Annotated[str | None, Query(max_length=4096)] = None,
    error: Annotated[str | None, Query(max_length=256)] = None,
    iss: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Trade the provider's code for a browser session of whoever signed in."""
    session = await services.sign_in.complete(
        code=code,
        state=state,
        error=error,
        issuer=iss,
        cookie=flow_cookie_of(request, services),
        host=host_of(access_request_of(request)),
    )
    # Whatever session this browser had before is over, so that nobody goes on in another's.
    await end_sign_in(request, services, who)
    await services.audit.record(
        AuditEvent(
            "access.signed_in",
            {
                "issuer": session.issuer,
                "operator": session.signed_in.operator,
                "expires_at": iso_utc(session.expires_at_ms),
            },
            request_id=who.request_id,
            caller=session.signed_in.facts.person_id,
        )
    )
    response = HTMLResponse(_PAGE.format(target=escape(session.return_to, quote=True)))
    set_session_cookie(response, services, session.cookie, session.lifetime_s)
    return response


@router.post(
    f"{API_PREFIX}/auth/logout",
    responses={303: {"description": "Signed out here; on to the provider."}, **errors()},
    status_code=303,
    response_class=RedirectResponse,
    summary="Sign out here and at the provider",
)
async def logout(request: Request, services: Services, who: Who) -> Response:
    """End the browser's session, then lead it to where the provider ends its own.

    A program's access token counts no more, though the provider would let it count.
    """
    await end_sign_in(request, services, who)
    if who.vouched_by is VouchedBy.ACCESS_TOKEN:
        shown = access_request_of(request).single(b"authorization") or ""
        await services.sign_in.end_token(shown.partition(" ")[2].strip())
        await record_signed_out(services, who, "asked", 0)
    response = RedirectResponse(await services.sign_in.logout_url() or "/", status_code=303)
    forget_cookies(response, services)
    return response


@router.post(
    f"{API_PREFIX}/auth/backchannel-logout",
    **documented("End the sessions that the provider says are over", 400, 404),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-www-form-urlencoded": {
                    "schema": {
                        "type": "object",
                        "required": ["logout_token"],
                        "properties": {"logout_token": {"type": "string"}},
                    }
                }
            },
        }
    },
)
async def back_channel_logout(request: Request, services: Services, who: Who) -> Response:
    """Take a logout token of the provider (OpenID Connect Back-Channel Logout)."""
    services.sign_in.require_section()
    body = await request.body()
    if len(body) > MAX_TOKEN_CHARS * 2:
        raise InvalidHttpRequest("The form is too long for a logout token.")
    fields = parse_qs(body.decode("ascii", "replace"), max_num_fields=10)
    given = fields.get("logout_token", [])
    if len(given) != 1:
        raise InvalidHttpRequest("The form has to hold one logout_token.")
    ended = await services.sign_in.end_by(given[0])
    await record_signed_out(services, who, "provider", ended)
    return Response(status_code=200)


@router.get(f"{API_PREFIX}/auth/openid", **documented("How to sign in to this daemon", 404, 409))
async def openid(services: Services) -> OpenIdOut:
    """Return what a client needs to know to sign somebody in."""
    section = services.sign_in.require_section()
    metadata = services.sign_in.resource_metadata()
    return OpenIdOut(
        issuer=section.issuer,
        cli_client_id=section.cli_client_id,
        scopes=list(section.scopes),
        resource=str(metadata["resource"]),
    )


@router.get(
    RESOURCE_METADATA_PATH,
    **documented("Where tokens for this daemon come from (RFC 9728)", 404, 409),
)
async def resource_metadata(services: Services) -> ResourceMetadataOut:
    """Return the metadata of a protected resource, as MCP clients look for it."""
    return ResourceMetadataOut.model_validate(services.sign_in.resource_metadata())
