"""What somebody tries who wants to be signed in as another, or not to be themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from whole.harness.daemon import PATIENCE_S, Daemon
from whole.harness.openid import Browser, OpenIdServer, codes, new_key

LOGIN = "/api/v1/auth/login"
CALLBACK = "/api/v1/auth/callback"
WHOAMI = "/api/v1/auth/whoami"
OUT = (401, "unauthenticated")


@pytest.fixture
def lying(provider: OpenIdServer) -> Iterator[Callable[..., None]]:
    """Yield who makes the provider's ID tokens wrong until the end of the test."""

    def lie(**changes: Any) -> None:
        provider.change(lie=changes)

    yield lie
    provider.change(lie=None)


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/%0d%0aSet-Cookie:x=1\r\n",
        "javascript:alert(1)",
        "/a\\b",
        "evil",
        "",
        "/" + "a" * 1100,
    ],
)
def test_nobody_is_led_to_another_host_after_signing_in(
    browser: Callable[[], Browser], target: str
) -> None:
    got = browser().ask("GET", LOGIN, params={"return_to": target})
    assert (got.status_code, codes([got])) == (422, ["invalid_request"])


def test_a_path_with_markup_is_written_as_text(browser: Callable[[], Browser]) -> None:
    page = browser().sign_in("ann", "?return_to=/%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert page.status_code == 200
    assert "<script>" not in page.text


def test_a_browser_cannot_finish_what_another_began(browser: Callable[[], Browser]) -> None:
    """Eve sends Ann the end of her own sign-in, so that Ann would work as Eve."""
    ann, eve = browser(), browser()
    ready = eve.follow(eve.begin(), "bob")
    ann.begin()
    got = ann.come_back(ready)
    assert (got.status_code, codes([got])) == (400, ["sign_in_refused"])
    assert "kaged_session=" not in str(got.headers)
    assert browser().come_back(ready).status_code == 400
    assert ann.refused("GET", WHOAMI) == OUT
    assert eve.come_back(ready).status_code == 200  # it was good for the one who began


def test_a_state_and_a_code_are_used_once(browser: Callable[[], Browser]) -> None:
    ann = browser()
    ready = ann.follow(ann.begin(), "ann")
    flow = dict(ann.daemon.cookies)
    assert ann.come_back(ready).status_code == 200
    again = httpx.get(ready, cookies=flow, timeout=PATIENCE_S)
    assert (again.status_code, codes([again])) == (400, ["sign_in_refused"])
    # The code of one flow in another flow of the same browser.
    code = parse_qs(urlsplit(ready).query)["code"][0]
    state = parse_qs(urlsplit(ann.begin()).query)["state"][0]
    mixed = ann.come_back(f"{ann.url}{CALLBACK}?code={code}&state={state}")
    assert (mixed.status_code, codes([mixed])) == (400, ["sign_in_refused"])


def test_a_session_that_was_there_before_is_not_the_one_after(
    browser: Callable[[], Browser], person: Callable[[str], Browser]
) -> None:
    """Eve puts her own session into Ann's browser before Ann signs in."""
    eve = person("bob")
    planted = eve.daemon.cookies["kaged_session"]
    ann = browser()
    ann.daemon.cookies.set("kaged_session", planted, domain="127.0.0.1")
    got = ann.sign_in("ann")
    fresh = got.cookies["kaged_session"]
    assert fresh != planted
    asked = httpx.get(f"{ann.url}{WHOAMI}", cookies={"kaged_session": fresh}, timeout=PATIENCE_S)
    assert asked.json()["operator_id"] == "ann"
    assert eve.refused("GET", WHOAMI) == OUT  # the planted one is over, too


def test_another_page_in_the_browser_cannot_use_the_session(
    person: Callable[[str], Browser],
) -> None:
    ann = person("ann")
    evil = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert ann.refused("POST", "/api/v1/auth/logout", headers=evil)[0] == 403
    assert ann.refused("GET", WHOAMI, headers={"Sec-Fetch-Site": "same-site"})[0] == 403
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert ann.refused("GET", WHOAMI, headers=rebound) == (421, "host_not_allowed")
    assert ann.get("/auth/whoami")["operator_id"] == "ann"


LIES: dict[str, dict[str, Any]] = {
    "of another sign-in (nonce)": {"claims": {"nonce": "another"}},
    "without a nonce": {"without": ["nonce"]},
    "for another client (aud)": {"claims": {"aud": "another"}},
    "for another client too (azp)": {"claims": {"aud": ["kaged-web", "x"], "azp": "x"}},
    "for two without azp": {"claims": {"aud": ["kaged-web", "x"]}, "without": ["azp"]},
    "of another issuer": {"claims": {"iss": "https://evil.example"}},
    "that has expired": {"claims": {"exp": 1_000_000_000}},
    "that never expires": {"without": ["exp"]},
    "of the far future": {"claims": {"nbf": 32_503_680_000}},
    "about nobody": {"without": ["sub"]},
    "that nobody signed": {"header": {"alg": "none"}},
    "that somebody else signed": {"key": new_key()},
    "with an unknown key": {"header": {"kid": "made-up"}},
    "with a key of its own": {"header": {"kid": "mine", "jwk": new_key()}},
    "with groups without end": {"claims": {"groups": [f"g{n}" for n in range(1100)]}},
    "that is too long": {"claims": {"pad": "x" * 17000}},
}


@pytest.mark.parametrize("what", LIES)
def test_an_id_token_is_refused(
    browser: Callable[[], Browser], lying: Callable[..., None], what: str
) -> None:
    lying(**LIES[what])
    ann = browser()
    got = ann.sign_in("ann")
    assert got.status_code in (400, 403), got.text
    assert codes([got])[0] in ("sign_in_refused", "sign_in_not_allowed")
    assert ann.refused("GET", WHOAMI) == OUT


def test_an_id_token_that_was_only_written_anew_is_accepted(
    browser: Callable[[], Browser], lying: Callable[..., None]
) -> None:
    """So that the refusals above are for what is wrong with each, and not for the rewriting."""
    lying(claims={"aud": ["kaged-web"]})
    assert browser().sign_in("ann").status_code == 200


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(
    browser: Callable[[], Browser], lying: Callable[..., None]
) -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}
    lying(header={"alg": "HS256"}, key=secret)
    assert codes([browser().sign_in("ann")]) == ["sign_in_refused"]


def test_logout_tokens_that_are_none_end_nothing(
    daemon: Daemon, provider: OpenIdServer, person: Callable[[str], Browser]
) -> None:
    ann = person("ann")
    event = "http://schemas.openid.net/event/backchannel-logout"
    now = 1_000_000_000
    good: dict[str, Any] = {
        "iss": provider.url, "aud": "kaged-web", "sub": "ann", "iat": now, "exp": 32_503_680_000,
        "jti": "l-1", "events": {event: {}},
    }  # fmt: skip
    logout = {"typ": "logout+jwt"}
    wrong = [
        provider.signed({**good, "nonce": "n"}, logout),
        provider.signed({**good, "events": {}}, logout),
        provider.signed({**good, "aud": "another"}, logout),
        provider.signed({**good, "iss": "https://evil.example"}, logout),
        provider.signed({**good, "exp": now}, logout),
        provider.signed({name: good[name] for name in good if name != "sub"}, logout),
        provider.signed({name: good[name] for name in good if name != "jti"}, logout),
        provider.signed(good, {"typ": "at+jwt"}),
        provider.signed(good, logout, new_key()),
        "x.y.z",
    ]
    url = f"{ann.url}/api/v1/auth/backchannel-logout"
    answers = [httpx.post(url, data={"logout_token": one}, timeout=PATIENCE_S) for one in wrong]
    assert codes(answers) == ["sign_in_refused"] * len(wrong)
    assert codes([httpx.post(url, data={}, timeout=PATIENCE_S)]) == ["invalid_request"]
    assert codes([httpx.post(url, data={"logout_token": "x" * 40_000}, timeout=PATIENCE_S)]) == [
        "invalid_request"
    ]
    assert ann.get("/auth/whoami")["operator_id"] == "ann"
    # The same claims in a token of the right kind do end it; a second use ends nothing new.
    token = provider.signed(good, logout)
    assert httpx.post(url, data={"logout_token": token}, timeout=PATIENCE_S).status_code == 200
    assert ann.refused("GET", WHOAMI) == OUT
    later = person("ann")
    assert codes([httpx.post(url, data={"logout_token": token}, timeout=PATIENCE_S)]) == [
        "sign_in_refused"
    ]
    assert later.get("/auth/whoami")["operator_id"] == "ann"
