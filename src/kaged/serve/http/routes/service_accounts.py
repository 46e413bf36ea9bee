"""`/api/v1/service-accounts`: tokens for programs, scoped and expiring."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path
from pydantic import Field

from kaged.base import iso_utc
from kaged.kernel.identity import MAX_GROUPS, PersonFacts, PersonGrant
from kaged.projects.loaded import no_usable_project
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX, Services, Who
from kaged.serve.http.service_accounts import person_of
from kaged.store.service_account_rows import ServiceAccountRecord

NAME: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
GROUP: Final = r"^[^\s,]([^,]{0,126}[^\s,])?$"
OPERATION: Final = r"^(\*|[a-z0-9*][a-z0-9_*-]*(\.[A-Za-z0-9_*-]+)+)$"
MAX_LISTED: Final = 200
MAX_LIFETIME_S: Final = 366 * 24 * 3600
DEFAULT_LIFETIME_S: Final = 30 * 24 * 3600

router = APIRouter(
    route_class=LateRoute, prefix=f"{API_PREFIX}/service-accounts", tags=["service accounts"]
)

Group = Annotated[str, Field(pattern=GROUP)]
Project = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Operation = Annotated[str, Field(max_length=256, pattern=OPERATION)]
Name = Annotated[str, Path(pattern=NAME, description="The account's name.")]


class ServiceAccountIn(RequestBody):
    """An account to make. A list of projects or operations that is left out allows every one."""

    name: Annotated[str, Field(pattern=NAME)]
    roles: Annotated[list[Group], Field(max_length=MAX_GROUPS, default_factory=list)]
    teams: Annotated[list[Group], Field(max_length=MAX_GROUPS, default_factory=list)]
    projects: Annotated[
        list[Project] | None,
        Field(max_length=MAX_LISTED, description="Ids or slugs of loaded projects."),
    ] = None
    operations: Annotated[list[Operation] | None, Field(max_length=MAX_LISTED)] = None
    expires_in_s: Annotated[int, Field(ge=1, le=MAX_LIFETIME_S)] = DEFAULT_LIFETIME_S


class ServiceAccountOut(ApiModel):
    """One account, without its token."""

    name: str
    person_id: Annotated[str, Field(description="The id under which it acts.")]
    state: Literal["active", "expired", "revoked"]
    roles: list[str]
    teams: list[str]
    projects: list[str] | None
    operations: list[str] | None
    created_by: str
    created_at: str
    expires_at: str
    revoked_at: str | None


class ServiceAccountMadeOut(ServiceAccountOut):
    """A new account."""

    token: Annotated[str, Field(description="Shown this once; the daemon keeps a digest.")]


class ServiceAccountsOut(ApiModel):
    """All accounts, by name."""

    items: list[ServiceAccountOut]


@router.post("", **documented("Make a service account", 404, 409, 422, 503), status_code=201)
async def create(services: Services, who: Who, body: ServiceAccountIn) -> ServiceAccountMadeOut:
    """Make an account with a token. Projects must be loaded, so that a typing error shows."""
    for project in body.projects or ():
        if not services.subsystems.projects.ids_of({project}):
            raise no_usable_project(project)
    facts = PersonFacts(person_of(body.name), frozenset(body.roles), frozenset(body.teams))
    grant = PersonGrant(
        projects=None if body.projects is None else frozenset(body.projects),
        operations=None if body.operations is None else frozenset(body.operations),
    )
    made, token = await services.service_accounts.create(
        body.name, facts, grant, body.expires_in_s, who
    )
    shown = _out(made, services.clock.now_ms())
    return ServiceAccountMadeOut(**shown.model_dump(), token=token)


@router.get("", **documented("List the service accounts"))
async def list_accounts(services: Services) -> ServiceAccountsOut:
    """Return all accounts, those that have expired or were revoked among them."""
    now_ms = services.clock.now_ms()
    return ServiceAccountsOut(items=[_out(one, now_ms) for one in services.service_accounts.list()])


@router.delete("/{name}", **documented("Revoke a service account", 404, 503))
async def revoke(services: Services, who: Who, name: Name) -> ServiceAccountOut:
    """Let its token count no more, from the next request on. Its name stays taken."""
    services.audit.require_writable()
    revoked = await services.service_accounts.revoke(name, who)
    services.sign_in.tell_change()  # its streams end now, not at their next look
    return _out(revoked, services.clock.now_ms())


def _out(one: ServiceAccountRecord, now_ms: int) -> ServiceAccountOut:
    expired = one.expires_at_ms <= now_ms
    state: Literal["active", "expired", "revoked"] = "expired" if expired else "active"
    return ServiceAccountOut(
        name=one.name,
        person_id=person_of(one.name),
        state=state if one.revoked_at_ms is None else "revoked",
        roles=one.roles,
        teams=one.teams,
        projects=one.projects,
        operations=one.operations,
        created_by=one.created_by,
        created_at=iso_utc(one.created_at_ms),
        expires_at=iso_utc(one.expires_at_ms),
        revoked_at=None if one.revoked_at_ms is None else iso_utc(one.revoked_at_ms),
    )
