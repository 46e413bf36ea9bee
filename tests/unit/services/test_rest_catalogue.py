"""Ways to show an API whose call it is, and the catalogue of well-known services."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.config.problems import Origin
from kaged.config.providers import Provider, ProviderSection, ProviderType
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.providers.first_party import FirstPartyProviders
from kaged.services.providers.http_rest import HttpRest
from kaged.services.providers.rest_auth import RestAuth, RestCredentials
from kaged.services.providers.rest_catalogue import CATALOGUE, catalogue_names
from kaged.services.providers.rest_description import load_description

HELD = {"username": "ann", "password": "s3cret", "access_token": "t0ken"}


def made(tmp_path: Path, **settings: Any) -> HttpRest:
    """Return a provider as its section makes it."""
    section = ProviderSection(type=ProviderType.REST, settings=settings)
    origin = Origin("config.toml", None)
    planned = Provider("here", "here", (), 30.0, {}, None, origin, section)
    provider = FirstPartyProviders(ManualClock(), tmp_path, AsyncExitStack())(planned)
    assert isinstance(provider, HttpRest)
    return provider


@pytest.mark.parametrize(
    ("credentials", "headers", "query"),
    [
        (RestCredentials(RestAuth.TOKEN), {"Authorization": "Bearer s3cret"}, []),
        (RestCredentials(RestAuth.OAUTH), {"Authorization": "Bearer t0ken"}, []),
        (RestCredentials(RestAuth.HEADER, "X-Api-Key"), {"X-Api-Key": "s3cret"}, []),
        (
            RestCredentials(RestAuth.HEADER, "Authorization", "Token token="),
            {"Authorization": "Token token=s3cret"},
            [],
        ),
        (RestCredentials(RestAuth.QUERY, query="appid"), {}, [("appid", "s3cret")]),
        (RestCredentials(RestAuth.BASIC), {"Authorization": "Basic YW5uOnMzY3JldA=="}, []),
        (RestCredentials(RestAuth.NONE), {}, []),
    ],
)
def test_a_credential_goes_where_the_api_looks_for_it(
    credentials: RestCredentials, headers: dict[str, str], query: list[tuple[str, str]]
) -> None:
    assert credentials.parts(dict(HELD)) == (headers, query)


@pytest.mark.parametrize(
    ("auth", "more"),
    [
        (RestAuth.HEADER, {}),
        (RestAuth.QUERY, {}),
        (RestAuth.TOKEN, {"header": "X-Key"}),
        (RestAuth.TOKEN, {"query": "key"}),
        (RestAuth.TOKEN, {"prefix": "Bot "}),
        (RestAuth.HEADER, {"header": "Host"}),
        (RestAuth.HEADER, {"header": "cookie"}),
        (RestAuth.HEADER, {"header": "X Key"}),
        (RestAuth.HEADER, {"header": "X-Key\r\nHost: other"}),
        (RestAuth.HEADER, {"header": "X-Key", "prefix": "a\r\nb"}),
        (RestAuth.QUERY, {"query": "key&other"}),
    ],
)
def test_what_would_change_the_request_otherwise_is_refused(
    auth: RestAuth, more: dict[str, str]
) -> None:
    with pytest.raises(CapabilityInvalidInput):
        RestCredentials(auth, **more)


def test_the_catalogue_has_what_its_page_lists() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/link-an-account.md").read_text("utf-8")
    assert len(catalogue_names()) >= 8
    for name in catalogue_names():
        assert f"| `{name}` |" in page, name


@pytest.mark.parametrize("name", catalogue_names())
def test_every_service_of_the_catalogue_passes_the_checks_of_a_description(
    tmp_path: Path, name: str
) -> None:
    own = {"base_url": "https://site.example.org"} if name == "jira" else {}
    api = load_description(CATALOGUE / f"{name}.toml", base_url=own.get("base_url"))
    assert api.base_url.startswith("https://")
    provider = made(tmp_path, service=name, **own)
    [offered] = asyncio.run(provider.definitions())
    assert offered.id == "here.api"
    assert offered.sensitive
    assert set(offered.operations) == set(api.operations)
    # A way to test an account comes with each, and reads do not count as changes.
    assert provider.settings.check_path is not None
    for one in api.operations.values():
        assert one.mutating is (one.method != "GET" and one.name != "search"), one.name


def test_an_operator_says_it_otherwise(tmp_path: Path) -> None:
    provider = made(
        tmp_path,
        service="gitlab",
        base_url="https://git.example.org/api/v4",
        name="code",
        operations=["me"],
        auth="token",
    )
    assert provider.settings.api.base_url == "https://git.example.org/api/v4"
    assert set(provider.settings.api.operations) == {"me"}
    assert provider.settings.auth is RestAuth.TOKEN
    assert provider.settings.check_path == "/user"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"service": "github", "description": "api.toml"},
        {"service": "nothing-such"},
        {"service": "../github"},
        {"service": "jira"},  # each site has an address of its own
        {"service": "github", "auth": "header"},
        {"service": "github", "headers": {"Host": "evil.example"}},
    ],
)
def test_a_section_that_makes_no_sense_is_refused(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(CapabilityInvalidInput):
        made(tmp_path, **settings)
