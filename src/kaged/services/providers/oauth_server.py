"""The authorization server of an OAuth client: configured, or found out from what it publishes.

An `issuer` publishes its addresses (RFC 8414, or OpenID Connect's form of the same); a `resource`
publishes its issuer (RFC 9728). A server where nobody has registered this daemon may take it as a
new client (RFC 7591). What is published counts only for the address that was asked for it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityInvalidInput
from kaged.services.providers.rest_description import require_base_url

ShortText = Annotated[str, Field(min_length=1, max_length=1000)]
CLIENT_NAME: Final = "kaged"
_ID_CHARS: Final = 1000


class OAuthSettings(BaseModel):
    """An authorization server and the client that this daemon is there, without its secret.

    Without `device_url` a person pastes the callback URL or its code; with it, they type a code
    on another device. `userinfo_url` tells the address of an account. With `issuer` or `resource`
    addresses are looked up that are not here, and without a `client_id` a client is registered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    client_id: ShortText | None = None
    issuer: ShortText | None = None
    resource: ShortText | None = None
    token_url: ShortText | None = None
    authorization_url: ShortText | None = None
    device_url: ShortText | None = None
    revocation_url: ShortText | None = None
    userinfo_url: ShortText | None = None
    redirect_uri: ShortText = "http://127.0.0.1/callback"
    scopes: tuple[ShortText, ...] = ()

    @field_validator(
        "issuer",
        "resource",
        "token_url",
        "authorization_url",
        "device_url",
        "revocation_url",
        "userinfo_url",
    )
    @classmethod
    def _secure(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                require_base_url(value.partition("?")[0])
            except CapabilityInvalidInput:
                raise ValueError("must start with https:// (http:// on loopback only)") from None
        return value

    @model_validator(mode="after")
    def _complete(self) -> OAuthSettings:
        published = self.issuer is not None or self.resource is not None
        if not published and (self.token_url is None or self.client_id is None):
            raise ValueError("needs client_id and token_url, or an issuer or a resource")
        return self


@dataclass(frozen=True, slots=True)
class OAuthEndpoints:
    """Where an authorization server is asked for what."""

    token_url: str
    authorization_url: str | None = None
    revocation_url: str | None = None
    userinfo_url: str | None = None
    registration_url: str | None = None


class AskServer(Protocol):
    """Asks for a small JSON object, and returns the status with it."""

    def __call__(
        self, method: str, url: str, *, json: JsonObject | None = None
    ) -> Awaitable[tuple[int, JsonObject]]:
        """Send one request."""
        ...


async def find_endpoints(settings: OAuthSettings, ask: AskServer) -> OAuthEndpoints:
    """Return the addresses of an authorization server; what the operator configured counts first.

    Raises:
        CapabilityBackendUnavailable: it publishes none, or those of somebody else.
    """
    found: JsonObject = {}
    if settings.issuer is not None or settings.resource is not None:
        issuer = settings.issuer or await _issuer_of(str(settings.resource), ask)
        found = await _metadata(issuer, ask)
    token_url = settings.token_url or _address(found, "token_endpoint")
    if token_url is None:
        raise _unusable("it names no token endpoint")
    return OAuthEndpoints(
        token_url,
        settings.authorization_url or _address(found, "authorization_endpoint"),
        settings.revocation_url or _address(found, "revocation_endpoint"),
        settings.userinfo_url or _address(found, "userinfo_endpoint"),
        _address(found, "registration_endpoint"),
    )


async def register_client(settings: OAuthSettings, url: str | None, ask: AskServer) -> JsonObject:
    """Register this daemon as a new client; returns its id, and its secret if it was given one.

    Raises:
        CapabilityBackendUnavailable: the server takes no new clients.
    """
    if url is None:
        raise _unusable("it takes no new clients, so a client_id is needed")
    device = settings.device_url is not None
    grant = "urn:ietf:params:oauth:grant-type:device_code" if device else "authorization_code"
    loopback = urlsplit(settings.redirect_uri).hostname in {"127.0.0.1", "localhost", "::1"}
    wanted: JsonObject = {
        "client_name": CLIENT_NAME,
        "application_type": "native" if loopback else "web",
        "redirect_uris": [settings.redirect_uri],
        "grant_types": [grant, "refresh_token"],
        "response_types": [] if device else ["code"],
        "token_endpoint_auth_method": "none",
    }
    if settings.scopes:
        wanted["scope"] = " ".join(settings.scopes)
    status, said = await ask("POST", url, json=wanted)
    client_id, secret = said.get("client_id"), said.get("client_secret")
    if status not in {200, 201} or not _is_id(client_id):
        raise _unusable("it did not register this client")
    client: JsonObject = {"client_id": client_id}
    if _is_id(secret):
        client["client_secret"] = secret
    return client


async def _issuer_of(resource: str, ask: AskServer) -> str:
    parts = urlsplit(resource)
    path = parts.path.rstrip("/")
    url = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{path}"
    status, said = await ask("GET", url)
    servers = said.get("authorization_servers")
    # Metadata of another resource may not choose where its tokens come from (RFC 9728, 3.3).
    own = str(said.get("resource", "")).rstrip("/") == resource.rstrip("/")
    first = servers[0] if isinstance(servers, list) and servers else None
    if status != 200 or not own or not isinstance(first, str):
        raise _unusable("the resource does not say which one it trusts")
    return _required(first)


async def _metadata(issuer: str, ask: AskServer) -> JsonObject:
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    for url in (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ):
        status, said = await ask("GET", url)
        if status != 200:
            continue
        if str(said.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
            raise _unusable("its metadata is that of another issuer")
        methods = said.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:
            raise _unusable("it does not support PKCE with S256")
        return said
    raise _unusable("it publishes no metadata")


def _address(found: JsonObject, name: str) -> str | None:
    value = found.get(name)
    return _required(value) if isinstance(value, str) else None


def _required(url: str) -> str:
    try:
        require_base_url(url.partition("?")[0])
    except CapabilityInvalidInput:
        raise _unusable("it names an address without https") from None
    return url


def _is_id(value: JsonValue) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _ID_CHARS and value.isprintable()


def _unusable(why: str) -> CapabilityBackendUnavailable:
    return CapabilityBackendUnavailable(f"the authorization server cannot be used: {why}")
