"""`/api/v1/people/invitations`, and where who was invited accepts.

A link opens a page with a button: what only looks at links, as chats do to show what is behind
them, uses nothing up.
"""

from __future__ import annotations

from html import escape
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse

from kaged.base import iso_utc
from kaged.serve.http.access import INVITATION_END_PATH, INVITATION_PATH, INVITATION_TOKEN_PATH
from kaged.serve.http.documented import documented, errors
from kaged.serve.http.errors import InvalidHttpRequest
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.person_access import operator_only
from kaged.serve.http.routes.dependencies import API_PREFIX, Services, Who
from kaged.serve.http.sign_in_cookies import (
    end_sign_in,
    record_signed_out,
    set_session_cookie,
)
from kaged.store.invitation_rows import InvitationRecord

DAY_S: Final = 24 * 3600
MAX_FORM_BYTES: Final = 4096
_CODE: Final = {"type": "string"}

router = APIRouter(tags=["people"])

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Invitation</title>
<meta name="referrer" content="no-referrer"></head>
<body><p>You are invited to kaged as <b>{person}</b>. If that is not you, close this page.</p>
<form method="post" action="{action}"><input type="hidden" name="code" value="{code}">
<button>Come in as {person}</button></form></body></html>
"""


class InvitationIn(RequestBody):
    """A person to invite. What they may use stands in `[people]`, or with a team in `[teams]`."""

    person_id: Annotated[
        str,
        Field(min_length=1, max_length=128, description="Their id; in a team a name of theirs."),
    ]
    team: Annotated[
        str | None,
        Field(max_length=32, description="The team that somebody new is invited into."),
    ] = None
    expires_in_s: Annotated[
        int, Field(ge=1, le=30 * DAY_S, description="How long the invitation can be used.")
    ] = 7 * DAY_S
    access_s: Annotated[
        int, Field(ge=60, le=366 * DAY_S, description="How long they can come in with it.")
    ] = 30 * DAY_S


class InvitationOut(ApiModel):
    """One invitation, without its code."""

    id: str
    person_id: str
    state: Literal["open", "expired", "accepted", "ended", "revoked"]
    created_by: str
    created_at: str
    expires_at: str
    accepted_at: str | None
    access_expires_at: str | None
    revoked_at: str | None


class InvitationMadeOut(InvitationOut):
    """A new invitation."""

    code: Annotated[str, Field(description="Shown this once; the daemon keeps a digest.")]
    url: Annotated[
        str | None, Field(description="Where a browser accepts it; null without a TCP listener.")
    ]


class InvitationsOut(ApiModel):
    """All invitations, the oldest first."""

    items: list[InvitationOut]


class SignedOutOut(ApiModel):
    """What was ended of a person's sign-ins; how many tokens there were is not known."""

    person_id: str
    sessions: Annotated[int, Field(description="Sessions of browsers.")]
    invitations: Annotated[int, Field(description="Accesses that invitations had given.")]


class AccessOut(ApiModel):
    """What a program comes in with."""

    token: Annotated[str, Field(description="Shown this once; the daemon keeps a digest.")]
    person_id: str
    expires_at: str


class EndedOut(ApiModel):
    """Nothing: whether the token counted is told to nobody."""


def _form(field: str) -> dict[str, object]:
    schema = {"type": "object", "required": [field], "properties": {field: _CODE}}
    body = {"required": True, "content": {"application/x-www-form-urlencoded": {"schema": schema}}}
    return {"requestBody": body}


async def _require_lead(services: Services, who: Who) -> None:
    """Refuse people who lead no team, whatever they ask for. Raises `operator_only`."""
    if who.is_person and not services.rules().people.led_by(who.person_id or ""):
        raise operator_only()


@router.post(
    f"{API_PREFIX}/people/invitations",
    **documented("Invite a person", 403, 409, 422, 503),
    status_code=201,
    dependencies=[Depends(_require_lead)],
)
async def create(services: Services, who: Who, body: InvitationIn) -> InvitationMadeOut:
    """Make an invitation, which works once. Who accepts it comes in as this person.

    Leads of a team invite somebody new into it; the answer has the id that they get.
    """
    rules = services.rules()
    if who.is_person or body.team is not None:
        made, code = await services.invitations.create_in_team(
            body.person_id,
            body.team or "",
            people=rules.people,
            expires_in_s=body.expires_in_s,
            access_s=body.access_s,
            who=who,
        )
    else:
        made, code = await services.invitations.create(
            body.person_id,
            people=rules.people,
            operator_id=rules.operator_id,
            expires_in_s=body.expires_in_s,
            access_s=body.access_s,
            who=who,
        )
    base = services.sign_in.public_url or services.base_url()
    url = None if base is None else f"{base.rstrip('/')}{INVITATION_PATH}?code={quote(code)}"
    shown = _out(made, services.clock.now_ms())
    return InvitationMadeOut(**shown.model_dump(), code=code, url=url)


@router.get(
    f"{API_PREFIX}/people/invitations",
    **documented("List the invitations", 403),
    dependencies=[Depends(_require_lead)],
)
async def list_invitations(services: Services, who: Who) -> InvitationsOut:
    """Return all invitations, those that count no more among them; to a lead their own."""
    now_ms = services.clock.now_ms()
    found = services.invitations.list(who, services.rules().people)
    return InvitationsOut(items=[_out(one, now_ms) for one in found])


@router.delete(
    f"{API_PREFIX}/people/invitations/{{invitation_id}}",
    **documented("Revoke an invitation", 403, 404, 503),
    dependencies=[Depends(_require_lead)],
)
async def revoke(
    services: Services,
    who: Who,
    invitation_id: Annotated[str, Path(max_length=64, description="The invitation's id.")],
) -> InvitationOut:
    """Let it count no more. Who has accepted it is out from the next request on."""
    services.audit.require_writable()
    revoked = await services.invitations.revoke(invitation_id, who, services.rules().people)
    services.sign_in.tell_change()  # streams of the person end now, not at their next look
    return _out(revoked, services.clock.now_ms())


@router.delete(
    f"{API_PREFIX}/people/{{person_id}}/sign-ins", **documented("Sign a person out", 503)
)
async def sign_out(
    services: Services,
    who: Who,
    person_id: Annotated[str, Path(max_length=128, description="The person's id.")],
) -> SignedOutOut:
    """End a person's sign-ins: browsers, accepted invitations, and tokens given before now.

    It does not keep them from signing in again; `[people]` and `[auth.oidc]` do.
    """
    services.audit.require_writable()
    sessions = 0
    if services.sign_in.section is not None:
        sessions = await services.sign_in.end_person(person_id)
    ended = await services.invitations.end_access_of(person_id, who)
    await record_signed_out(services, who, "operator", sessions, person_id)
    services.sign_in.tell_change()
    return SignedOutOut(person_id=person_id, sessions=sessions, invitations=ended)


@router.get(
    INVITATION_PATH,
    responses={200: {"description": "A page that asks whether to accept."}, **errors(403)},
    response_class=HTMLResponse,
    summary="Look at an invitation",
)
async def look(
    services: Services, code: Annotated[str, Query(min_length=1, max_length=128)]
) -> Response:
    """Show for whom the invitation is. Looking uses nothing up."""
    found = services.invitations.look(code)
    page = _PAGE.format(
        person=escape(found.person_id), action=INVITATION_PATH, code=escape(code, quote=True)
    )
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(page, headers=headers)


@router.post(
    INVITATION_PATH,
    responses={
        303: {"description": "Accepted; the session's cookie comes with this answer."},
        **errors(400, 403, 503),
    },
    status_code=303,
    response_class=RedirectResponse,
    summary="Accept an invitation with a browser",
    openapi_extra=_form("code"),
)
async def accept(request: Request, services: Services, who: Who) -> Response:
    """Use an invitation up and open a browser session of the person who was invited."""
    used, token = await services.invitations.accept(await _field(request, "code"), who.request_id)
    # Whatever session this browser had before is over, so that nobody goes on in another's.
    await end_sign_in(request, services, who)
    response = RedirectResponse("/", status_code=303)
    set_session_cookie(response, services, token, used.access_s)
    return response


@router.post(
    INVITATION_TOKEN_PATH,
    **documented("Accept an invitation with a program", 400, 403, 503),
    openapi_extra=_form("code"),
)
async def accept_with_program(request: Request, services: Services, who: Who) -> AccessOut:
    """Use an invitation up and return a bearer token of the person who was invited."""
    used, token = await services.invitations.accept(await _field(request, "code"), who.request_id)
    ends = used.access_expires_at_ms or used.expires_at_ms
    return AccessOut(token=token, person_id=used.person_id, expires_at=iso_utc(ends))


@router.post(
    INVITATION_END_PATH,
    **documented("Give a token of an invitation back", 400, 503),
    openapi_extra=_form("token"),
)
async def end(request: Request, services: Services, who: Who) -> EndedOut:
    """End the access of whoever has the token. Any other text changes nothing (RFC 7009)."""
    if await services.invitations.give_up(await _field(request, "token"), who.request_id):
        services.sign_in.tell_change()
    return EndedOut()


async def _field(request: Request, name: str) -> str:
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise InvalidHttpRequest("The form is too long.")
    given = parse_qs(body.decode("ascii", "replace"), max_num_fields=10).get(name, [])
    if len(given) != 1:
        raise InvalidHttpRequest(f"The form has to hold one {name}.")
    return given[0]


def _out(one: InvitationRecord, now_ms: int) -> InvitationOut:
    state: Literal["open", "expired", "accepted", "ended", "revoked"]
    if one.revoked_at_ms is not None:
        state = "revoked"
    elif one.used_at_ms is None:
        state = "open" if one.is_open(now_ms) else "expired"
    else:
        state = "accepted" if one.gives_access(now_ms) else "ended"
    return InvitationOut(
        id=one.id,
        person_id=one.person_id,
        state=state,
        created_by=one.created_by,
        created_at=iso_utc(one.created_at_ms),
        expires_at=iso_utc(one.expires_at_ms),
        accepted_at=_moment(one.used_at_ms),
        access_expires_at=_moment(one.access_expires_at_ms),
        revoked_at=_moment(one.revoked_at_ms),
    )


def _moment(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso_utc(at_ms)
