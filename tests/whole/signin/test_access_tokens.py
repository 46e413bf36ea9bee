"""Programs with access tokens of the provider: the HTTP API, and MCP clients that find it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from httpx2 import AsyncClient
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.mcp import TOOLS, address
from whole.harness.openid import (
    AGENT_CLIENT,
    AGENT_REDIRECT,
    CLIENT_ID,
    ROOT,
    Browser,
    OpenIdServer,
    codes,
    new_key,
    unsigned,
)
from whole.harness.project import Project

FAR = 32_503_680_000
TS_CLIENT = ROOT / "tests" / "guests" / "mcp_oauth_client.mjs"


@pytest.fixture
def ask(daemon: Daemon) -> Iterator[Callable[..., httpx.Response]]:
    """Yield who asks the daemon with a token."""
    with httpx.Client(base_url=daemon.url, timeout=PATIENCE_S, trust_env=False) as client:

        def send(token: str, path: str = "/auth/whoami", **headers: str) -> httpx.Response:
            Daemon.spoken += 1
            said = {"Authorization": f"Bearer {token}", **headers}
            return client.get(f"/api/v1{path}", headers=said)

        yield send


@pytest.fixture
def claims(provider: OpenIdServer, daemon: Daemon) -> dict[str, Any]:
    """Return the claims of a token that is accepted."""
    return {
        "iss": provider.url, "aud": daemon.url.rstrip("/"), "sub": "ann", "client_id": "x",
        "iat": 1_700_000_000, "exp": FAR, "jti": "t-1", "groups": ["staff", "kitchen"],
    }  # fmt: skip


def test_a_program_acts_for_the_person_who_signed_in_to_it(
    daemon: Daemon, provider: OpenIdServer, project: Project, ask: Callable[..., httpx.Response]
) -> None:
    ann = provider.access_token("ann", daemon.url)
    bob = provider.access_token("bob", daemon.url)
    olga = provider.access_token("olga", daemon.url)
    assert ask(ann).json() == {
        "operator_id": "ann",
        "via": "access_token",
        "operator": False,
        "roles": ["cook"],
        "teams": ["house"],
        "leads": [],
    }
    made = httpx.post(
        f"{daemon.url}/api/v1/projects/{project.id}/sessions",
        json={"title": "Soup"},
        headers={"Authorization": f"Bearer {ann}"},
        timeout=PATIENCE_S,
    ).json()["id"]
    sessions = f"/projects/{project.id}/sessions"
    assert [one["id"] for one in ask(ann, sessions).json()["items"]] == [made]
    assert ask(bob, sessions).json()["items"] == []
    assert ask(bob, f"{sessions}/{made}").status_code == 404
    assert [one["id"] for one in ask(olga, sessions).json()["items"]] == [made]
    assert codes([ask(ann, "/audit")]) == ["operator_only"]
    assert ask(olga, "/audit").status_code == 200
    assert codes([ask(provider.access_token("eve", daemon.url))]) == ["sign_in_not_allowed"]


def test_whoever_comes_without_a_token_is_told_where_to_get_one(
    daemon: Daemon, provider: OpenIdServer, project: Project
) -> None:
    got = httpx.post(f"{daemon.url}/api/v1/projects/{project.id}/mcp", json={}, timeout=PATIENCE_S)
    assert got.status_code == 401
    where = f"{daemon.url.rstrip('/')}/.well-known/oauth-protected-resource"
    assert got.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
    found = httpx.get(where, timeout=PATIENCE_S).json()
    assert found["resource"] == daemon.url.rstrip("/")
    assert found["authorization_servers"] == [provider.url]
    assert found["bearer_methods_supported"] == ["header"]


def test_tokens_that_are_not_for_this_daemon_are_refused(
    daemon: Daemon,
    provider: OpenIdServer,
    claims: dict[str, Any],
    ask: Callable[..., httpx.Response],
) -> None:
    assert ask(provider.signed(claims)).json()["operator_id"] == "ann"

    def but(*without: str, **changed: Any) -> dict[str, Any]:
        kept = {name: value for name, value in claims.items() if name not in without}
        return {**kept, **changed}

    wrong = {
        "of another service": provider.access_token("ann", "http://127.0.0.1/other"),
        "of the browser's client": provider.signed(but(aud=CLIENT_ID)),
        "of a program": provider.robot_token(daemon.url),
        "an ID token": str(provider.agent_tokens("ann", daemon.url)["id_token"]),
        "an ID token with our audience": provider.signed(claims, {"typ": "JWT"}),
        "of no kind": provider.signed(claims, {"typ": None}),
        "of another issuer": provider.signed(but(iss="https://evil.example")),
        "expired": provider.signed(but(exp=1_700_000_001)),
        "without an end": provider.signed(but("exp")),
        "of the future": provider.signed(but(nbf=FAR - 1)),
        "issued in the future": provider.signed(but(iat=FAR - 1)),
        "without an audience": provider.signed(but("aud")),
        "about nobody": provider.signed(but("sub")),
        "about something": provider.signed(but(sub=["ann"])),
        "of no client": provider.signed(but("client_id")),
        "unsigned": unsigned({"alg": "none", "typ": "at+jwt"}, claims),
        "by another key": provider.signed(claims, None, new_key()),
        "by another key under our name": provider.signed(
            claims, {"kid": provider.settings["keys"][0]["kid"]}, new_key()
        ),
        "with odd claims": provider.signed(but(exp="soon")),
        "two dots": "a.b.c",
        "long": "x" * 20_000 + ".y.z",
        "the daemon's own, spoiled": daemon.token[:-1],
    }
    answers = {what: ask(token) for what, token in wrong.items()}
    told = {what: (got.status_code, codes([got])[0]) for what, got in answers.items()}
    assert told == dict.fromkeys(wrong, (401, "unauthenticated"))
    assert ask(daemon.token).json()["operator"] is True


def test_a_token_never_speaks_for_somebody_else(
    provider: OpenIdServer, claims: dict[str, Any], ask: Callable[..., httpx.Response]
) -> None:
    token = provider.signed(claims)
    got = ask(token, **{"X-Kaged-User-Id": "bob", "X-Kaged-Chat-Type": "private"})
    assert got.json()["operator_id"] == "ann"  # no proxy is trusted here
    named = provider.signed({**claims, "sub": "operator"})
    assert codes([ask(named)]) == ["sign_in_not_allowed"]
    odd = provider.signed({**claims, "sub": "a b"})
    assert codes([ask(odd)]) == ["sign_in_not_allowed"]


def test_tokens_with_unknown_keys_do_not_flood_the_provider(
    provider: OpenIdServer, claims: dict[str, Any], ask: Callable[..., httpx.Response]
) -> None:
    assert ask(provider.signed(claims)).is_success
    before = provider.fetches
    stranger = new_key()
    answers = [ask(provider.signed(claims, {"kid": f"k-{n}"}, stranger)) for n in range(60)]
    assert codes(answers) == ["unauthenticated"] * 60
    # One question at most in five seconds, however many tokens come and however slow they are.
    assert provider.fetches - before < 60
    assert ask(provider.signed(claims)).is_success


def test_keys_are_changed_and_withdrawn(
    provider: OpenIdServer, claims: dict[str, Any], ask: Callable[..., httpx.Response]
) -> None:
    old = provider.settings["keys"][0]
    before, fresh = provider.signed(claims), new_key()
    provider.change(keys=[fresh, old])
    after = provider.signed(claims)
    wait_for(lambda: ask(after).is_success, "the new key")
    assert ask(before).is_success
    provider.change(keys=[fresh])
    # What is withdrawn is gone at the next look at the keys, which an unknown key brings about.
    stranger = provider.signed(claims, {"kid": "unknown"}, new_key())
    wait_for(lambda: ask(stranger).is_error and ask(before).status_code == 401, "the old key's end")
    assert ask(after).is_success


# -- MCP clients that find the authorization server by themselves ------------------------------


class _Kept:
    """What the Python SDK keeps: a client that was registered beforehand."""

    def __init__(self, issuer: str) -> None:
        self._client = OAuthClientInformationFull(
            client_id=AGENT_CLIENT,
            redirect_uris=[AnyUrl(AGENT_REDIRECT)],
            token_endpoint_auth_method="none",
            issuer=issuer,
        )
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def _answer(provider: OpenIdServer, url: str, user: str) -> dict[str, list[str]]:
    with Browser(provider) as browser:
        return parse_qs(urlsplit(browser.follow(url, user)).query)


def test_the_python_sdk_finds_the_provider_and_lists_tools(
    daemon: Daemon, provider: OpenIdServer, project: Project
) -> None:
    opened: list[str] = []

    async def redirect(url: str) -> None:
        opened.append(url)

    async def back() -> AuthorizationCodeResult:
        said = await asyncio.to_thread(_answer, provider, opened[-1], "ann")
        return AuthorizationCodeResult(
            code=said["code"][0], state=said["state"][0], iss=said["iss"][0]
        )

    async def talk() -> list[str]:
        auth = OAuthClientProvider(
            address(daemon, project),
            OAuthClientMetadata(redirect_uris=[AnyUrl(AGENT_REDIRECT)], client_name="test"),
            _Kept(provider.url),
            redirect,
            back,
        )
        async with AsyncClient(auth=auth, trust_env=False, timeout=PATIENCE_S) as http:
            where = streamable_http_client(address(daemon, project), http_client=http)
            async with Client(where) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

    Daemon.spoken += 1
    assert "file_read" in asyncio.run(talk())
    assert len(opened) == 1
    _began_for(daemon, project, "ann")


def test_the_typescript_sdk_finds_the_provider_and_lists_tools(
    daemon: Daemon, provider: OpenIdServer, project: Project
) -> None:
    Daemon.spoken += 1
    argv = ["node", str(TS_CLIENT), address(daemon, project), AGENT_CLIENT, AGENT_REDIRECT]
    env = {"PATH": os.environ["PATH"], "MCP_TOOLS": str(TOOLS)}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, encoding="utf-8"
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        code = _answer(provider, client.stdout.readline().strip(), "bob")["code"][0]
        client.stdin.write(f"{code}\n")
        client.stdin.flush()
        assert "file_read" in json.loads(client.stdout.readline())
        assert client.wait(PATIENCE_S) == 0
    _began_for(daemon, project, "bob")


def _began_for(daemon: Daemon, project: Project, person: str) -> None:
    """The record says whose client it was, and how they came in."""
    rows = daemon.audit("mcp.client_came", project_id=project.id)
    assert {(row["data"]["operator_id"], row["data"]["via"]) for row in rows} == {
        (person, "access_token")
    }
