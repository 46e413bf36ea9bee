"""`/api/v1/services`: providers of account capabilities, linked accounts, consents. No secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX, MAX_PAGE, Who
from kaged.serve.http.routes.subsystems import Accounts

MAX_USER_CHARS = 256
MAX_REF_CHARS = 128

router = APIRouter(route_class=LateRoute, prefix=f"{API_PREFIX}/services", tags=["services"])


class OfferedOut(ApiModel):
    """One capability of a provider."""

    id: str
    description: str
    sensitive: bool
    operations: list[str]


class ProviderOut(ApiModel):
    """One provider of account capabilities."""

    name: str
    namespace: str
    kind: Literal["first-party", "bridge", "sidecar"]
    caged: Annotated[bool | None, Field(description="Null for a provider inside the daemon.")]
    command: list[str]
    available: bool
    reason: Annotated[str | None, Field(description="Why it is not available.")]
    capabilities: list[OfferedOut]


class ProvidersOut(ApiModel):
    """All providers."""

    providers: list[ProviderOut]


class LinkedAccountOut(ApiModel):
    """One linked account; its credential is never shown to anybody."""

    user_id: str
    capability: str
    account_ref: str
    account_name: str | None
    account_email: str | None
    created_at: str
    status: Annotated[
        Literal["active", "expired", "revoked", "unreachable", "locked"],
        Field(
            description="Whether the account works. `expired` and `revoked`: link it again. "
            "`unreachable`: its service does not answer. `locked`: the key of the vault is gone."
        ),
    ]
    status_reason: Annotated[str | None, Field(description="What the last failed call said.")]
    status_since: Annotated[str | None, Field(description="When the status changed last.")]


class LinkedAccountsOut(ApiModel):
    """A page of linked accounts."""

    accounts: list[LinkedAccountOut]
    next_offset: int | None


class CheckedAccountOut(LinkedAccountOut):
    """One linked account after it was tested."""

    checked: Annotated[bool, Field(description="False where its provider cannot test accounts.")]


class CheckedAccountsOut(ApiModel):
    """A page of linked accounts that were tested."""

    accounts: list[CheckedAccountOut]
    next_offset: int | None


class RevokeIn(RequestBody):
    """Which account to take back."""

    user_id: Annotated[str, Field(min_length=1, max_length=MAX_USER_CHARS)]
    capability: Annotated[str, Field(min_length=3, max_length=140)]
    account_ref: Annotated[str, Field(min_length=1, max_length=MAX_REF_CHARS)]


class RevokedOut(ApiModel):
    """An account that is forgotten here; perhaps its provider was told as well."""

    ok: bool
    account_ref: str
    provider_revoked: bool


class ApprovalOut(ApiModel):
    """One operation that waits for consent, or had it."""

    plan_id: str
    user_id: str
    capability: str
    operation: str
    account_ref: str | None
    summary: Annotated[str, Field(description="What would happen, in the call's own words.")]
    status: Literal["presented", "confirmed", "denied", "executed"]
    decided_by: str | None
    created_at: str
    expires_at: str


class ApprovalsOut(ApiModel):
    """Everything that waits, and what was decided lately."""

    approvals: list[ApprovalOut]


class DecisionIn(RequestBody):
    """A person's answer."""

    decision: Literal["confirm", "deny"]


class VaultRotatedOut(ApiModel):
    """What was encrypted anew."""

    ok: bool
    records: int
    flows: int


class LinkIn(RequestBody):
    """What to link."""

    capability: Annotated[str, Field(min_length=3, max_length=140)]
    account_hint: Annotated[str | None, Field(max_length=MAX_REF_CHARS)] = None


class LinkFieldOut(ApiModel):
    """Something that the person may type in."""

    name: str
    label: str
    secret: Annotated[bool, Field(description="Do not show it while it is typed.")]


class LinkOut(ApiModel):
    """A flow that waits for its person."""

    flow_id: str
    capability: str
    account_hint: str | None
    auth_url: Annotated[str, Field(description="The page that the person opens.")]
    expires_at: str
    flow_type: Literal["authorization_code", "device_code"]
    user_code: str | None
    poll_interval_seconds: int | None
    fields: Annotated[
        list[LinkFieldOut], Field(description="May be sent to `complete` instead of a code.")
    ]


class LinkCompleteIn(RequestBody):
    """What the person brought back, or typed in: one of the three."""

    callback_url: Annotated[str | None, Field(max_length=16_384)] = None
    code: Annotated[str | None, Field(max_length=16_384)] = None
    fields: Annotated[
        dict[str, Annotated[str, Field(max_length=512)]] | None, Field(max_length=16)
    ] = None


class LinkedOut(ApiModel):
    """An account that is linked now."""

    status: Literal["linked"] = "linked"
    account_ref: str
    account_name: str | None
    account_email: str | None


class LinkPolledOut(ApiModel):
    """Whether the person has agreed on another device."""

    status: Literal["pending", "linked"]
    retry_after_seconds: int | None = None
    account_ref: str | None = None
    account_name: str | None = None
    account_email: str | None = None


class LinkCanceledOut(ApiModel):
    """A flow that was given up."""

    ok: bool
    flow_id: str


FlowId = Annotated[str, Path(pattern=r"^caf_[0-9a-f]{1,64}$")]
Namespace = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
PlanId = Annotated[str, Path(pattern=r"^plan_[0-9a-f]{1,64}$")]


@router.get("/providers", **documented("List the providers of account capabilities"))
async def list_providers(service: Accounts) -> ProvidersOut:
    """Return every provider, how it is doing and what it offers."""
    return ProvidersOut.model_validate({"providers": list(service.providers())})


@router.post(
    "/providers/{namespace}/refresh",
    **documented("Ask a provider again what it offers", 403, 404, 422, 502, 503),
)
async def refresh(service: Accounts, who: Who, namespace: Namespace) -> ProviderOut:
    """Read a provider's definitions anew; a bad answer changes nothing."""
    return ProviderOut.model_validate(await service.refresh(namespace, who))


@router.get("/accounts", **documented("List linked accounts"))
async def list_accounts(
    service: Accounts,
    who: Who,
    user_id: Annotated[str | None, Query(max_length=MAX_USER_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> LinkedAccountsOut:
    """Return who has linked which account, a page at a time."""
    found = await service.accounts(user_id, limit, offset, who)
    after = offset + limit if len(found) == limit else None
    return LinkedAccountsOut.model_validate({"accounts": list(found), "next_offset": after})


@router.post("/accounts/check", **documented("Test linked accounts at their services", 503))
async def check_accounts(
    service: Accounts,
    who: Who,
    user_id: Annotated[str | None, Query(max_length=MAX_USER_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> CheckedAccountsOut:
    """Test accounts, a page at a time, and return their status; people test their own."""
    found = await service.check(user_id, limit, offset, who)
    after = offset + limit if len(found) == limit else None
    return CheckedAccountsOut.model_validate({"accounts": list(found), "next_offset": after})


@router.post("/accounts/revoke", **documented("Take an account back", 404, 503))
async def revoke(service: Accounts, who: Who, body: RevokeIn) -> RevokedOut:
    """Forget an account with its credential; its provider is told if it can be."""
    done = await service.revoke(body.user_id, body.capability, body.account_ref, who)
    return RevokedOut.model_validate(done)


_LINK_FAULTS = (403, 404, 409, 410, 422, 429, 502, 503)


@router.post("/links", **documented("Begin to link an account of one's own", *_LINK_FAULTS))
async def begin_link(service: Accounts, who: Who, body: LinkIn) -> LinkOut:
    """Start a flow for the person who asks, or return the one that waits."""
    begun = await service.links.begin(body.capability, body.account_hint, who)
    return LinkOut.model_validate(begun)


@router.post("/links/{flow_id}/complete", **documented("Finish linking", *_LINK_FAULTS))
async def complete_link(
    service: Accounts, who: Who, flow_id: FlowId, body: LinkCompleteIn
) -> LinkedOut:
    """Link the account with a code, the address of the callback, or the filled fields."""
    if body.fields is not None:
        done = await service.links.submit(flow_id, body.fields, who)
    else:
        done = await service.links.complete(flow_id, body.callback_url, body.code, who)
    return LinkedOut.model_validate(done)


@router.post("/links/{flow_id}/poll", **documented("Ask whether it is agreed", *_LINK_FAULTS))
async def poll_link(service: Accounts, who: Who, flow_id: FlowId) -> LinkPolledOut:
    """Ask whether the person has agreed on another device, no more often than is allowed."""
    return LinkPolledOut.model_validate(await service.links.poll(flow_id, who))


@router.delete("/links/{flow_id}", **documented("Give a link up", 403, 404, 503))
async def cancel_link(service: Accounts, who: Who, flow_id: FlowId) -> LinkCanceledOut:
    """End a flow of the person who asks."""
    return LinkCanceledOut.model_validate(await service.links.cancel(flow_id, who))


@router.get("/approvals", **documented("List operations that wait for consent"))
async def list_approvals(service: Accounts, who: Who) -> ApprovalsOut:
    """Return what waits for consent."""
    return ApprovalsOut.model_validate({"approvals": list(await service.approvals(who))})


@router.post("/approvals/{plan_id}", **documented("Consent to an operation, or refuse", 404, 503))
async def decide(service: Accounts, who: Who, plan_id: PlanId, body: DecisionIn) -> ApprovalOut:
    """Take a person's answer; a confirmed operation may be done once, as it was shown."""
    allowed = body.decision == "confirm"
    return ApprovalOut.model_validate(await service.decide(plan_id, allowed=allowed, who=who))


@router.post("/vault/rotate", **documented("Encrypt all credentials with a fresh key", 403, 503))
async def rotate(service: Accounts, who: Who) -> VaultRotatedOut:
    """Make a new key for the vault and forget the old one."""
    return VaultRotatedOut.model_validate(await service.rotate_vault(who))
