"""Authorization servers that publish their addresses, and those that publish somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kaged.base import JsonObject
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.providers.oauth_server import (
    OAuthSettings,
    find_endpoints,
    register_client,
)

ISSUER = "https://login.example/tenant"
RFC8414 = "https://login.example/.well-known/oauth-authorization-server/tenant"
OIDC = "https://login.example/tenant/.well-known/openid-configuration"
RESOURCE = "https://api.example/v1"
RFC9728 = "https://api.example/.well-known/oauth-protected-resource/v1"
METADATA: JsonObject = {
    "issuer": ISSUER,
    "token_endpoint": "https://login.example/token",
    "authorization_endpoint": "https://login.example/auth",
    "registration_endpoint": "https://login.example/register",
    "code_challenge_methods_supported": ["S256"],
}


class Web:
    """Addresses and what they answer."""

    def __init__(self, **pages: JsonObject) -> None:
        self.pages: dict[str, JsonObject] = dict(pages)
        self.asked: list[tuple[str, str, Any]] = []

    async def ask(
        self, method: str, url: str, *, json: JsonObject | None = None
    ) -> tuple[int, JsonObject]:
        self.asked.append((method, url, json))
        found = self.pages.get(url)
        return (404, {}) if found is None else (201 if method == "POST" else 200, found)


def web(pages: dict[str, JsonObject]) -> Web:
    made = Web()
    made.pages = pages
    return made


@pytest.mark.parametrize("place", [RFC8414, OIDC])
async def test_an_issuer_is_asked_at_both_of_its_places(place: str) -> None:
    found = await find_endpoints(OAuthSettings(issuer=ISSUER), web({place: METADATA}).ask)
    assert found.token_url == "https://login.example/token"
    assert found.authorization_url == "https://login.example/auth"
    assert found.revocation_url is None


async def test_a_resource_names_its_issuer_and_the_operators_words_count_first() -> None:
    said: JsonObject = {"resource": RESOURCE, "authorization_servers": [ISSUER]}
    settings = OAuthSettings(resource=RESOURCE, token_url="https://own.example/token")
    found = await find_endpoints(settings, web({RFC9728: said, RFC8414: METADATA}).ask)
    assert found.token_url == "https://own.example/token"
    assert found.registration_url == "https://login.example/register"


async def test_what_is_configured_whole_asks_nobody() -> None:
    nobody = web({})
    settings = OAuthSettings(client_id="k", token_url="https://own.example/token")
    assert (await find_endpoints(settings, nobody.ask)).token_url == "https://own.example/token"
    assert nobody.asked == []


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://evil.example"},
        {"issuer": f"{ISSUER}/other"},
        {"token_endpoint": "http://login.example/token"},
        {"token_endpoint": "https://user@login.example/token"},
        {"token_endpoint": None},
        {"token_endpoint": 7},
        {"code_challenge_methods_supported": ["plain"]},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
async def test_metadata_that_cannot_be_trusted_is_refused(change: JsonObject) -> None:
    pages = {RFC8414: {**METADATA, **change}}
    with pytest.raises(CapabilityBackendUnavailable):
        await find_endpoints(OAuthSettings(issuer=ISSUER), web(pages).ask)


@pytest.mark.parametrize(
    "said",
    [
        {"resource": "https://other.example", "authorization_servers": [ISSUER]},
        {"resource": RESOURCE, "authorization_servers": []},
        {"resource": RESOURCE, "authorization_servers": ["http://login.example/tenant"]},
        {"resource": RESOURCE, "authorization_servers": "x"},
        {"authorization_servers": [ISSUER]},
    ],
)
async def test_a_resource_speaks_for_itself_only(said: JsonObject) -> None:
    pages = {RFC9728: said, RFC8414: METADATA}
    with pytest.raises(CapabilityBackendUnavailable):
        await find_endpoints(OAuthSettings(resource=RESOURCE), web(pages).ask)


async def test_a_client_is_registered_with_what_it_will_do() -> None:
    url = "https://login.example/register"
    server = web({url: {"client_id": "new-1", "client_secret": "s-1", "more": [1]}})
    settings = OAuthSettings(issuer=ISSUER, scopes=("a", "b"))
    made = await register_client(settings, url, server.ask)
    assert made == {"client_id": "new-1", "client_secret": "s-1"}
    [(method, _, body)] = server.asked
    assert method == "POST"
    assert body["redirect_uris"] == [settings.redirect_uri]
    assert body["grant_types"] == ["authorization_code", "refresh_token"]
    assert body["scope"] == "a b"


@pytest.mark.parametrize("answer", [{}, {"client_id": ""}, {"client_id": 7}, {"client_id": "a\n"}])
async def test_a_server_that_registers_nobody_is_named(answer: JsonObject) -> None:
    url = "https://login.example/register"
    with pytest.raises(CapabilityBackendUnavailable):
        await register_client(OAuthSettings(issuer=ISSUER), url, web({url: answer}).ask)
    with pytest.raises(CapabilityBackendUnavailable, match="client_id"):
        await register_client(OAuthSettings(issuer=ISSUER), None, web({}).ask)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"client_id": "k"},
        {"token_url": "https://x.example"},
        {"issuer": "http://login.example"},
        {"resource": "ftp://api.example"},
    ],
)
def test_settings_that_lead_nowhere_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        OAuthSettings(**settings)  # type: ignore[arg-type]  # texts, wrong ones
