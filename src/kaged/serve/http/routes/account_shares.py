"""`/api/v1/services/shares`: accounts that their owners let others use, for named operations."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from kaged.kernel.identity import PERSON_ID
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX, MAX_PAGE, Who
from kaged.serve.http.routes.subsystems import Accounts
from kaged.services.account_sharing import ShareDraft

MAX_OPERATIONS: Final = 64
MAX_LIFETIME_S: Final = 366 * 24 * 3600
TEAM: Final = r"^[^\s,]([^,]{0,126}[^\s,])?$"

router = APIRouter(route_class=LateRoute, prefix=f"{API_PREFIX}/services/shares", tags=["services"])


class ShareIn(RequestBody):
    """An account of one's own, and who may do what with it: one person, or one team."""

    capability: Annotated[str, Field(min_length=3, max_length=140)]
    account_ref: Annotated[str, Field(min_length=1, max_length=128)]
    person: Annotated[str | None, Field(pattern=f"^(?:{PERSON_ID})$", max_length=256)] = None
    team: Annotated[str | None, Field(pattern=TEAM)] = None
    operations: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=128)]],
        Field(min_length=1, max_length=MAX_OPERATIONS, description="Names, not patterns."),
    ]
    expires_in_s: Annotated[int | None, Field(ge=1, le=MAX_LIFETIME_S)] = None


class ShareOut(ApiModel):
    """One share. Whom it names uses the account by the name `share_id`."""

    share_id: str
    owner: str
    capability: str
    account_ref: Annotated[str, Field(description="What its owner calls the account.")]
    person: str | None
    team: str | None
    operations: list[str]
    state: Annotated[
        Literal["active", "expired", "off"],
        Field(description="`off`: the operator does not allow that accounts are shared."),
    ]
    created_at: str
    expires_at: str | None
    last_used_at: Annotated[str | None, Field(description="For its owner and the operator.")]
    last_used_by: Annotated[str | None, Field(description="For its owner and the operator.")]


class SharesOut(ApiModel):
    """A page of shares."""

    shares: list[ShareOut]
    next_offset: int | None


ShareId = Annotated[str, Path(pattern=r"^shr_[0-9a-f]{1,60}$")]


@router.get("", **documented("List shares of accounts"))
async def list_shares(
    service: Accounts,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> SharesOut:
    """Return the shares that the person who asks gave or was given; the operator sees all."""
    found = await service.shares(limit, offset, who)
    after = offset + limit if len(found) == limit else None
    return SharesOut.model_validate({"shares": list(found), "next_offset": after})


@router.post(
    "", **documented("Share an account of one's own", 403, 404, 409, 422, 503), status_code=201
)
async def share(service: Accounts, who: Who, body: ShareIn) -> ShareOut:
    """Let a person or a team use an account for some operations; its credential stays here."""
    draft = ShareDraft(
        body.capability,
        body.account_ref,
        body.person,
        body.team,
        tuple(body.operations),
        body.expires_in_s,
    )
    return ShareOut.model_validate(await service.share(draft, who))


@router.delete("/{share_id}", **documented("End a share", 404, 503))
async def unshare(service: Accounts, who: Who, share_id: ShareId) -> ShareOut:
    """End a share that one gave; the operator ends any."""
    return ShareOut.model_validate(await service.unshare(share_id, who))
