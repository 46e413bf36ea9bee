"""Tokens of a provider and time: keys are asked for rarely, and clocks may differ a little."""

from __future__ import annotations

from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from kaged.base import JsonObject, ManualClock
from kaged.serve.signin.errors import SignInRefused, SignInUnavailable
from kaged.serve.signin.flow import FLOW_LIFETIME_S, FlowSealer, SignInFlow
from kaged.serve.signin.provider import KEYS_FRESH_S, PAUSE_S, STALE_S, OpenIdProvider
from kaged.serve.signin.verifier import LEEWAY_S, TokenVerifier

ISSUER = "https://login.example"
URL = "https://kaged.example"
DOCUMENT: JsonObject = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
}


def _key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"use": "sig", "kid": name})


KEY, OTHER = _key("one"), _key("two")


class Provider(OpenIdProvider):
    """A provider whose answers the test decides; the questions are counted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(ISSUER, clock, None)
        self.keys_now: list[Any] = [KEY.as_dict(private=False)]
        self.document = dict(DOCUMENT)
        self.down = False
        self.asked: list[str] = []

    async def _ask(self, method: str, url: str, **request: Any) -> tuple[int, JsonObject]:
        self.asked.append(url)
        if self.down:
            raise SignInUnavailable("Down.")
        return 200, {"keys": self.keys_now} if url.endswith("/jwks") else self.document


@pytest.fixture
def provider(clock: ManualClock) -> Provider:
    return Provider(clock)


@pytest.fixture
def verifier(provider: Provider, clock: ManualClock) -> TokenVerifier:
    return TokenVerifier(provider, "kaged", clock)


def _token(clock: ManualClock, key: RSAKey = KEY, **changes: Any) -> str:
    now_s = clock.now_ms() // 1000
    claims = {
        "iss": ISSUER, "aud": URL, "sub": "ann", "client_id": "x", "iat": now_s, "exp": now_s + 100,
        **changes,
    }  # fmt: skip
    return jwt.encode({"alg": "RS256", "kid": key.kid, "typ": "at+jwt"}, claims, key)


async def test_clocks_may_differ_by_a_minute_and_no_more(
    verifier: TokenVerifier, clock: ManualClock
) -> None:
    now_s = clock.now_ms() // 1000
    for changes in (
        {"exp": now_s - LEEWAY_S + 1},
        {"nbf": now_s + LEEWAY_S},
        {"iat": now_s + LEEWAY_S},
    ):
        assert (await verifier.access_token(_token(clock, KEY, **changes), [URL]))["sub"] == "ann"
    for changes in (
        {"exp": now_s - LEEWAY_S},
        {"nbf": now_s + LEEWAY_S + 1},
        {"iat": now_s + LEEWAY_S + 1},
    ):
        with pytest.raises(SignInRefused):
            await verifier.access_token(_token(clock, KEY, **changes), [URL])


async def test_a_token_ends_as_the_clock_moves(verifier: TokenVerifier, clock: ManualClock) -> None:
    token = _token(clock)
    await verifier.access_token(token, [URL])
    clock.advance(100 + LEEWAY_S)
    with pytest.raises(SignInRefused, match="expired"):
        await verifier.access_token(token, [URL])


async def test_unknown_keys_make_one_question_in_five_seconds(
    provider: Provider, verifier: TokenVerifier, clock: ManualClock
) -> None:
    await verifier.access_token(_token(clock), [URL])
    clock.advance(PAUSE_S)
    provider.asked.clear()
    stranger = _key("made-up")
    for _ in range(50):
        with pytest.raises(SignInRefused):
            await verifier.access_token(_token(clock, stranger), [URL])
    assert provider.asked == [f"{ISSUER}/jwks"]
    clock.advance(PAUSE_S)
    with pytest.raises(SignInRefused):
        await verifier.access_token(_token(clock, stranger), [URL])
    assert provider.asked == [f"{ISSUER}/jwks"] * 2


async def test_a_new_key_is_found_and_an_old_one_is_gone_in_time(
    provider: Provider, verifier: TokenVerifier, clock: ManualClock
) -> None:
    await verifier.access_token(_token(clock), [URL])
    provider.keys_now = [OTHER.as_dict(private=False)]
    clock.advance(PAUSE_S)
    await verifier.access_token(_token(clock, OTHER), [URL])
    with pytest.raises(SignInRefused):
        await verifier.access_token(_token(clock), [URL])
    # Without any unknown key it is noticed when the known ones are old.
    provider.keys_now = [KEY.as_dict(private=False)]
    clock.advance(KEYS_FRESH_S)
    with pytest.raises(SignInRefused):
        await verifier.access_token(_token(clock, OTHER), [URL])


async def test_known_keys_last_an_hour_without_the_provider_and_then_nobody_comes_in(
    provider: Provider, verifier: TokenVerifier, clock: ManualClock
) -> None:
    await verifier.access_token(_token(clock), [URL])
    provider.down = True
    clock.advance(KEYS_FRESH_S + STALE_S - 1)
    await verifier.access_token(_token(clock), [URL])
    clock.advance(PAUSE_S)
    with pytest.raises(SignInUnavailable):
        await verifier.access_token(_token(clock), [URL])
    # While it is down, it is not asked at every request.
    asked = len(provider.asked)
    for _ in range(10):
        with pytest.raises(SignInUnavailable):
            await verifier.access_token(_token(clock), [URL])
    assert len(provider.asked) == asked
    provider.down = False
    clock.advance(PAUSE_S)
    await verifier.access_token(_token(clock), [URL])


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [{"kty": "oct", "k": "AAAA", "kid": "one"}],
        [{"kty": "RSA", "kid": "one", "n": "!", "e": "!"}],
        [{**KEY.as_dict(private=False), "use": "enc"}],
        "keys",
        [7] * 101,
    ],
)
async def test_a_provider_without_a_usable_key_lets_nobody_in(
    provider: Provider, verifier: TokenVerifier, clock: ManualClock, keys: Any
) -> None:
    provider.keys_now = keys
    with pytest.raises(SignInUnavailable):
        await verifier.access_token(_token(clock), [URL])


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": f"{ISSUER}/"},
        {"issuer": None},
        {"token_endpoint": "http://login.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": 7},
        {"authorization_endpoint": f"{ISSUER}/{'x' * 2000}"},
    ],
)
async def test_a_document_that_is_not_the_providers_is_not_used(
    provider: Provider, changes: JsonObject
) -> None:
    provider.document.update(changes)
    with pytest.raises(SignInUnavailable, match="Nobody can sign in now"):
        await provider.metadata()


def test_a_flow_is_opened_once_by_the_browser_that_began_it_within_ten_minutes(
    clock: ManualClock,
) -> None:
    sealer = FlowSealer(clock)

    def begin() -> tuple[SignInFlow, str]:
        flow = SignInFlow.new(clock, "/", "h", f"{URL}/callback")
        return flow, sealer.seal(flow)

    flow, cookie = begin()
    assert flow.verifier not in cookie
    other, other_cookie = begin()
    assert sealer.open(cookie, other.state, "h") is None
    assert sealer.open(other_cookie, flow.state, "h") is None
    assert sealer.open(None, flow.state, "h") is None
    assert sealer.open(cookie[:-2], flow.state, "h") is None
    assert sealer.open(cookie, flow.state, "another") is None
    assert FlowSealer(clock).open(cookie, flow.state, "h") is None
    assert sealer.open(cookie, flow.state, "h") == flow
    assert sealer.open(cookie, flow.state, "h") is None
    clock.advance(FLOW_LIFETIME_S)
    assert sealer.open(other_cookie, other.state, "h") is None
