"""`/api/v1/credentials`: what programs in cages use without seeing it. No answer holds a value."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from pydantic import Field

from kaged.config.credentials_section import MAX_VALUE_CHARS
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX
from kaged.serve.http.routes.subsystems import Credentials

NAME: Final = r"^[a-z][a-z0-9_-]{0,63}$"
MAX_PATH_CHARS: Final = 2000

router = APIRouter(route_class=LateRoute, prefix=f"{API_PREFIX}/credentials", tags=["credentials"])

Name = Annotated[str, Path(pattern=NAME, description="The credential's name.")]


class CredentialValueIn(RequestBody):
    """A value to keep in the vault."""

    value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS, repr=False)]


class CredentialTestIn(RequestBody):
    """What to ask the credential's first host for."""

    path: Annotated[str, Field(pattern=r"^/", max_length=MAX_PATH_CHARS)] = "/"


class CredentialOut(ApiModel):
    """One credential, without its value."""

    name: str
    state: Annotated[
        str,
        Field(description="`set`, `missing`, `locked`, `failed`, `invalid`, or `not asked`."),
    ]
    detail: str = ""
    fix: str = ""
    source: str = ""
    hosts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    granted: Annotated[dict[str, Any], Field(alias="for", default_factory=dict)]
    allows: tuple[dict[str, Any], ...] = ()
    problems: tuple[dict[str, Any], ...] = ()


class CredentialsOut(ApiModel):
    """Every credential, by name."""

    credentials: list[CredentialOut]


class CredentialRemovedOut(ApiModel):
    """Whether the vault held a value."""

    name: str
    removed: bool


class CredentialTestOut(ApiModel):
    """How the host answered, or why it was not asked."""

    name: str
    host: str
    path: str
    ok: bool
    status: int | None
    refused: Annotated[str | None, Field(description="The gate's rule, if it sent nothing.")]
    detail: str


@router.get("", **documented("List the credentials"))
async def list_credentials(service: Credentials) -> CredentialsOut:
    """Return every credential, those that cannot be used as well. No program is started."""
    return CredentialsOut.model_validate({"credentials": await service.list()})


@router.get("/{name}", **documented("Look at a credential", 404))
async def show_credential(service: Credentials, name: Name) -> CredentialOut:
    """Return where it may go, for whom, and whether it has a value."""
    return CredentialOut.model_validate(await service.show(name))


@router.put("/{name}/value", **documented("Set a credential's value", 404, 409, 422, 503))
async def set_value(service: Credentials, name: Name, body: CredentialValueIn) -> CredentialOut:
    """Seal the value in the vault. Cages that run already use it from the next request on."""
    return CredentialOut.model_validate(await service.set_value(name, body.value))


@router.delete("/{name}/value", **documented("Forget a credential's value", 503))
async def remove_value(service: Credentials, name: Name) -> CredentialRemovedOut:
    """Delete what the vault holds under the name, which need not be configured any more."""
    return CredentialRemovedOut(name=name, removed=await service.remove_value(name))


@router.post("/{name}/test", **documented("Ask a credential's host", 404, 422, 502))
async def test_credential(
    service: Credentials, name: Name, body: CredentialTestIn
) -> CredentialTestOut:
    """Send a GET out of a cage, in the way that programs of agents do."""
    return CredentialTestOut.model_validate(await service.test(name, body.path))
