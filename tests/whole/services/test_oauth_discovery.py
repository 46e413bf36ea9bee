"""OAuth without addresses: what servers publish, and a client that is registered for an account."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from whole.harness.account_servers import Api
from whole.harness.oauth import CLIENT_ID, CLIENT_SECRET, REDIRECT, OAuthServer
from whole.harness.services import Bridge, Desk, Person, provider_toml, somebody

DESCRIPTION = """\
description = "A tracker"
[operations.me]
description = "Say who it is."
path = "/me"
"""
SCOPES = ["openid", "email", "issues"]


@pytest.fixture(scope="module")
def oauth(module_path: Path) -> Iterator[OAuthServer]:
    with contextlib.closing(OAuthServer(module_path)) as made:
        yield made


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path, oauth: OAuthServer) -> Iterator[Desk]:
    with contextlib.closing(Api(oauth)) as api:
        known: dict[str, Any] = {"client_id": CLIENT_ID, "redirect_uri": REDIRECT}
        kinds = {
            "issuer": {"issuer": oauth.url, **known},
            "resource": {"resource": api.url, **known},
            "fresh": {"resource": api.url},
            "wrong": {"issuer": api.url},
        }
        more = ""
        for name, settings in kinds.items():
            more += provider_toml(
                name,
                type="rest",
                env={"OAUTH_CLIENT_SECRET": CLIENT_SECRET} if "client_id" in settings else {},
                settings={
                    "description": "api.toml",
                    "base_url": api.url,
                    "check_path": "/me",
                    "oauth": {**settings, "scopes": SCOPES},
                },
            )
        made = desks(Bridge(module_path, "post"), more=more)
        made.daemon.write("api.toml", DESCRIPTION)
        yield made.open()


def link(desk: Desk, oauth: OAuthServer, person: Person, name: str) -> str:
    """Link an account in a browser; returns the id of the client that it was linked with."""
    flow = desk.ask(person, "auth.begin", capability=f"{name}.api", account_hint="work")
    back = oauth.visit(flow["auth_url"], person.user)
    desk.ask(person, "auth.complete", flow_id=flow["flow_id"], callback_url=back)
    return parse_qs(urlsplit(flow["auth_url"]).query)["client_id"][0]


@pytest.mark.parametrize("name", ["issuer", "resource", "fresh"])
def test_an_account_is_linked_with_what_servers_publish(
    desk: Desk, oauth: OAuthServer, name: str
) -> None:
    ann, bob = somebody(), somebody()
    clients = [link(desk, oauth, person, name) for person in (ann, bob)]
    if name == "fresh":  # each account has a client of its own
        assert len({*clients, CLIENT_ID}) == 3
    else:
        assert clients == [CLIENT_ID, CLIENT_ID]
    for person in (ann, bob):
        assert desk.invoke(person, f"{name}.api", "me")["data"]["user"] == person.user
    # Renewed with the client that it was linked with, also by the next daemon.
    desk.reopen()
    for person in (ann, bob):
        checked = desk.daemon.cli("account", "check", "--user", person.user, "--json").json
        assert [(one["status"], one["checked"]) for one in checked] == [("active", True)]
        assert desk.accounts(person.user)[0]["account_email"] == f"{person.user}@example.org"
    done = desk.ask(ann, "auth.revoke", capability=f"{name}.api", account_ref="acct_work")
    assert done["provider_revoked"] is True


def test_an_issuer_that_publishes_nothing_is_named(desk: Desk) -> None:
    error = desk.refusal(somebody(), "auth.begin", capability="wrong.api")
    assert error["data"]["code"] == "capability_backend_unavailable"
    assert "publishes no metadata" in error["message"]
