"""A provider that is down, wrong or missing stops nothing but signing in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.openid import CLIENT_ID, LOCAL, Browser, OpenIdServer, codes


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Yield who starts a daemon with a configuration."""
    made: list[Daemon] = []

    def start(config: str, local: str = LOCAL) -> Daemon:
        made.append(Daemon(tmp_path / f"h{len(made)}", config=config, local=local))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def _login(daemon: Daemon) -> httpx.Response:
    Daemon.spoken += 1
    return httpx.get(f"{daemon.url}/api/v1/auth/login", timeout=PATIENCE_S)


def _row(daemon: Daemon) -> dict[str, Any]:
    rows = daemon.get("/doctor")["rows"]
    found: dict[str, Any] = next(row for row in rows if row["id"] == "sign-in")
    return found


def test_a_provider_that_is_down_keeps_out_only_who_is_not_signed_in_yet(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    daemon = started(provider.config())
    with Browser(provider, daemon) as ann:
        assert ann.sign_in("ann").status_code == 200
        provider.stop()
        daemon.restart()
        try:
            got = _login(daemon)
            assert (got.status_code, codes([got])) == (503, ["sign_in_unavailable"])
            assert "kaged doctor" in got.json()["error"]["data"]["fix"]
            row = _row(daemon)
            assert row["status"] == "fail"
            assert provider.url in row["cause"]
            wait_for(lambda: "sign_in.provider_unavailable" in daemon.log(), "the log's line")
            # Everything else works: the operator, and whoever has a session.
            assert daemon.get("/status")["pid"] == daemon.pid
            host = {"Host": ann.url.partition("//")[2]}
            where, cookies = f"{daemon.url}/api/v1/auth/whoami", dict(ann.daemon.cookies)
            asked = httpx.get(where, cookies=cookies, headers=host, timeout=PATIENCE_S)
            assert asked.json()["operator_id"] == "ann"
            token = provider.signed({"sub": "ann"})
            asked = httpx.get(
                where, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
            )
            assert (asked.status_code, codes([asked])) == (503, ["sign_in_unavailable"])
        finally:
            provider.start()
        wait_for(lambda: _login(daemon).status_code == 303, "the provider's return")
        assert _row(daemon)["status"] == "ok"


def test_a_provider_that_calls_itself_otherwise_is_not_used(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    other = provider.url.replace("127.0.0.1", "localhost")
    daemon = started(provider.config().replace(provider.url, other))
    got = _login(daemon)
    assert (got.status_code, codes([got])) == (503, ["sign_in_unavailable"])
    assert repr(provider.url) in got.json()["error"]["message"]
    assert "issuer" in _row(daemon)["fix"]


def test_a_secret_that_is_missing_is_named_and_a_wrong_one_is_told(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    daemon = started(provider.config(), "[secrets]\n")
    got = _login(daemon)
    assert (got.status_code, codes([got])) == (503, ["sign_in_unavailable"])
    assert "sign-in" in got.json()["error"]["message"]
    wrong = started(provider.config(), '[secrets]\nsign-in = "wrong"\n')
    with Browser(provider, wrong) as ann:
        refused = ann.sign_in("ann")
    assert codes([refused]) == ["sign_in_refused"]
    assert "client_secret" in refused.json()["error"]["data"]["fix"]


def test_a_daemon_without_a_provider_says_that_nobody_signs_in(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    daemon = started("")
    got = [
        httpx.get(f"{daemon.url}{path}", timeout=PATIENCE_S)
        for path in (
            "/api/v1/auth/login",
            "/api/v1/auth/callback?state=x",
            "/api/v1/auth/openid",
            "/.well-known/oauth-protected-resource",
        )
    ]
    got.append(
        httpx.post(f"{daemon.url}/api/v1/auth/backchannel-logout", data={}, timeout=PATIENCE_S)
    )
    assert codes(got) == ["sign_in_disabled"] * 5
    bare = httpx.get(f"{daemon.url}/api/v1/auth/whoami", timeout=PATIENCE_S)
    assert bare.headers["www-authenticate"] == "Bearer"
    assert _row(daemon)["status"] == "ok"
    refused = daemon.cli("login", daemon.url, code=1)
    assert "Nobody can sign in" in refused.err
    assert daemon.cli("login", code=6).err.count("url_invalid") == 1
    assert "https" in daemon.cli("login", "http://kaged.example", code=6).err


def test_what_the_file_no_longer_allows_ends_with_its_reload(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    daemon = started(provider.config())
    with Browser(provider, daemon) as bob, Browser(provider, daemon) as olga:
        assert bob.sign_in("bob").status_code == 200
        assert olga.sign_in("olga").status_code == 200
        assert olga.get("/auth/whoami")["operator"] is True
        text = (daemon.home / "config.toml").read_text(encoding="utf-8")
        text = text.replace('allow_groups = ["staff"]', 'allow_groups = ["ops"]')
        daemon.write("config.toml", text.replace('operator_groups = ["ops"]', "operators = []"))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_for(lambda: olga.get("/auth/whoami")["operator"] is False, "the reload")
        assert bob.refused("GET", "/api/v1/auth/whoami") == (403, "sign_in_not_allowed")
        assert olga.refused("GET", "/api/v1/audit") == (403, "operator_only")


def test_the_file_says_which_claims_count_and_for_how_long(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    config = provider.config().replace('allow_groups = ["staff"]', "session_hours = 1")
    config = config.replace('["kitchen"]', '["chef"]')
    daemon = started(
        config + 'person_claim = "email"\ngroups_claim = "realm.roles"\n'
        'allow_people = ["ann@example.org", "bob@example.org"]\n'
    )
    with Browser(provider, daemon) as ann, Browser(provider, daemon) as bob:
        page = ann.sign_in("ann")
        assert "max-age=3600" in str(page.headers.get_list("set-cookie")).lower()
        who = ann.get("/auth/whoami")
        assert (who["operator_id"], who["roles"]) == ("ann@example.org", ["cook"])
        assert codes([bob.sign_in("bob")]) == ["sign_in_not_allowed"]  # not verified


def test_a_daemon_behind_tls_gives_cookies_that_only_its_host_gets(
    provider: OpenIdServer, started: Callable[..., Daemon]
) -> None:
    daemon = started(provider.config('public_url = "https://kaged.example"\n'))
    host = {"Host": "kaged.example"}
    got = httpx.get(f"{daemon.url}/api/v1/auth/login", headers=host, timeout=PATIENCE_S)
    assert got.status_code == 303
    cookie = got.headers["set-cookie"]
    assert cookie.startswith("__Host-kaged_sign_in=")
    assert {"secure", "httponly", "path=/"} <= set(cookie.lower().split("; "))
    asked = httpx.URL(got.headers["location"]).params
    assert asked["redirect_uri"] == "https://kaged.example/api/v1/auth/callback"
    assert asked["client_id"] == CLIENT_ID
    assert asked["code_challenge_method"] == "S256"
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    refused = httpx.get(f"{daemon.url}/api/v1/auth/whoami", headers=host, timeout=PATIENCE_S)
    assert "https://kaged.example/.well-known/" in refused.headers["www-authenticate"]


def test_a_section_that_lets_nobody_in_is_an_error_of_the_file(tmp_path: Path) -> None:
    config = '[auth.oidc]\nissuer = "https://a.example"\nclient_id = "x"\n'
    daemon = Daemon(tmp_path / "h", config=config)
    said = daemon.start(expect=False)
    assert "lets nobody sign in" in str(said)
    daemon.write("config.toml", config.replace("https", "http") + "allow_everyone = true\n")
    assert "https://" in str(daemon.start(expect=False))
