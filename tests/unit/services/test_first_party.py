"""Config sections of the providers that come with kaged, good and bad."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kaged.base import SystemClock
from kaged.config.problems import Origin
from kaged.config.providers import Provider, ProviderSection, ProviderType
from kaged.config.secret import Secret
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.providers.first_party import FirstPartyProviders

OAUTH = {"client_id": "k", "token_url": "https://login.example/token"}


def planned(kind: ProviderType, settings: dict[str, Any], **env: str) -> Provider:
    return Provider(
        name="x",
        namespace="x",
        command=(),
        timeout_s=30,
        env={name: Secret(value) for name, value in env.items()},
        cage=None,
        origin=Origin("config.toml", None),
        section=ProviderSection(type=kind, settings=settings),
    )


@pytest.fixture
def make(tmp_path: Path) -> FirstPartyProviders:
    (tmp_path / "api.toml").write_text(
        'base_url = "https://api.example"\n[operations.ping]\ndescription = "x"\npath = "/ping"\n',
        encoding="utf-8",
    )
    return FirstPartyProviders(SystemClock(), tmp_path, AsyncExitStack())


@pytest.mark.parametrize(
    ("kind", "settings", "capability"),
    [
        (ProviderType.IMAP, {"imap": "imap.example"}, "x.email"),
        (ProviderType.IMAP, {"imap": "[::1]:143", "security": "plain"}, "x.email"),
        (ProviderType.IMAP, {"imap": "i.example:993", "oauth": OAUTH}, "x.email"),
        (ProviderType.CALDAV, {"url": "https://dav.example/"}, "x.calendar"),
        (ProviderType.REST, {"description": "api.toml", "auth": "none"}, "x.api"),
        (ProviderType.REST, {"description": "api.toml", "oauth": OAUTH, "name": "n"}, "x.n"),
    ],
)
async def test_good_sections_make_providers(
    make: FirstPartyProviders, kind: ProviderType, settings: dict[str, Any], capability: str
) -> None:
    provider = make(planned(kind, settings, OAUTH_CLIENT_SECRET="hidden-secret"))
    (definition,) = await provider.definitions()
    assert definition.id == capability
    assert "hidden-secret" not in repr(vars(provider))


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        (ProviderType.IMAP, {}, "imap"),
        (ProviderType.IMAP, {"imap": "i.example", "security": "plain"}, "loopback"),
        (ProviderType.IMAP, {"imap": "i.example:99999"}, "host and port"),
        (ProviderType.IMAP, {"imap": "i.example", "pasword": "x"}, "pasword"),
        (
            ProviderType.IMAP,
            {"imap": "i", "oauth": {**OAUTH, "token_url": "http://x.example"}},
            "tok",
        ),
        (ProviderType.CALDAV, {"url": "http://dav.example/"}, "https"),
        (ProviderType.CALDAV, {"url": "https://u:p@dav.example/"}, "user"),
        (ProviderType.REST, {"description": "missing.toml", "auth": "none"}, "missing.toml"),
        (ProviderType.REST, {"description": "api.toml"}, "OAuth"),
        (ProviderType.REST, {"description": "api.toml", "auth": "magic"}, "auth"),
        (
            ProviderType.REST,
            {"description": "api.toml", "auth": "none", "operations": ["no"]},
            "no",
        ),
        (ProviderType.BRIDGE, {}, "bridge"),
    ],
)
def test_bad_sections_say_which_key(
    make: FirstPartyProviders, kind: ProviderType, settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(CapabilityInvalidInput) as caught:
        make(planned(kind, settings))
    assert word in str(caught.value)
