"""`/api/v1/services`: providers of account capabilities, linked accounts, consents. No secrets."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from fastapi import Depends, FastAPI, Path, Query
from pydantic import Field

from kaged.base import KagedError
from kaged.kernel.identity import Actor
from kaged.serve.http.documented import errors
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.services import HttpServices, accounts_of, actor_of, services_of
from kaged.services.account_service import AccountService

MAX_USER_CHARS = 256
MAX_REF_CHARS = 128
MAX_PAGE = 200


class ServicesAbsent(KagedError):
    """The application was built without service capabilities."""

    code: ClassVar[str] = "services_absent"


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
    kind: Literal["first-party", "bridge"]
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


class LinkedAccountsOut(ApiModel):
    """A page of linked accounts."""

    accounts: list[LinkedAccountOut]
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


Who = Annotated[Actor, Depends(actor_of)]
Namespace = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
PlanId = Annotated[str, Path(pattern=r"^plan_[0-9a-f]{1,64}$")]


async def _service(services: Annotated[HttpServices, Depends(services_of)]) -> AccountService:
    found = accounts_of(services)
    if found is None:
        raise ServicesAbsent("This daemon runs without service capabilities.")
    return found


Service = Annotated[AccountService, Depends(_service)]


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    routes: tuple[tuple[str, str, Any, tuple[int, ...], str], ...] = (
        ("GET", "/providers", list_providers, (), "List the providers of account capabilities"),
        (
            "POST",
            "/providers/{namespace}/refresh",
            refresh,
            (403, 404, 422, 502, 503),
            "Ask a provider again what it offers",
        ),
        ("GET", "/accounts", list_accounts, (), "List linked accounts"),
        ("POST", "/accounts/revoke", revoke, (404, 503), "Take an account back"),
        ("GET", "/approvals", list_approvals, (), "List operations that wait for consent"),
        ("POST", "/approvals/{plan_id}", decide, (404, 503), "Consent to an operation, or refuse"),
        ("POST", "/vault/rotate", rotate, (403, 503), "Encrypt all credentials with a fresh key"),
    )
    for method, path, handler, statuses, summary in routes:
        app.add_api_route(
            f"{prefix}/services{path}",
            handler,
            methods=[method],
            tags=["services"],
            responses=errors(*statuses),
            summary=summary,
        )


async def list_providers(service: Service) -> ProvidersOut:
    """Return every provider, how it is doing and what it offers."""
    return ProvidersOut.model_validate({"providers": list(service.providers())})


async def refresh(service: Service, who: Who, namespace: Namespace) -> ProviderOut:
    """Read a provider's definitions anew; a bad answer changes nothing."""
    return ProviderOut.model_validate(await service.refresh(namespace, who))


async def list_accounts(
    service: Service,
    who: Who,
    user_id: Annotated[str | None, Query(max_length=MAX_USER_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> LinkedAccountsOut:
    """Return who has linked which account, a page at a time."""
    found = await service.accounts(user_id, limit, offset, who)
    after = offset + limit if len(found) == limit else None
    return LinkedAccountsOut.model_validate({"accounts": list(found), "next_offset": after})


async def revoke(service: Service, who: Who, body: RevokeIn) -> RevokedOut:
    """Forget an account with its credential; its provider is told if it can be."""
    done = await service.revoke(body.user_id, body.capability, body.account_ref, who)
    return RevokedOut.model_validate(done)


async def list_approvals(service: Service, who: Who) -> ApprovalsOut:
    """Return what waits for consent."""
    return ApprovalsOut.model_validate({"approvals": list(await service.approvals(who))})


async def decide(service: Service, who: Who, plan_id: PlanId, body: DecisionIn) -> ApprovalOut:
    """Take a person's answer; a confirmed operation may be done once, as it was shown."""
    allowed = body.decision == "confirm"
    return ApprovalOut.model_validate(await service.decide(plan_id, allowed=allowed, who=who))


async def rotate(service: Service, who: Who) -> VaultRotatedOut:
    """Make a new key for the vault and forget the old one."""
    return VaultRotatedOut.model_validate(await service.rotate_vault(who))
