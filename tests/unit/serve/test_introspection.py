"""Tokens that only the provider can tell about: what it says, for how long, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kaged.base import JsonObject, ManualClock
from kaged.serve.signin.introspection import MAX_KEPT, TokenIntrospection, is_signed
from raising import raises_code

ISSUER, URL = "https://login.example", "https://desk.example"
GOOD: dict[str, Any] = {
    "active": True, "sub": "ann", "aud": URL, "exp": 2**40, "iat": 1, "client_id": "c",
    "token_type": "Bearer",
}  # fmt: skip
TOKEN = "an-opaque-token"


class Provider:
    """Answers what it is told to, and counts."""

    def __init__(self, clock: ManualClock) -> None:
        self.says: dict[str, Any] = dict(GOOD)
        self.status = 200
        self.asked: list[str] = []
        self.tokens = TokenIntrospection(self._ask, ISSUER, 10, clock)

    async def _ask(self, form: Mapping[str, str]) -> tuple[int, JsonObject]:
        self.asked.append(form["token"])
        return self.status, dict(self.says)

    async def look(self, token: str = TOKEN) -> JsonObject:
        return await self.tokens.access_token(token, [URL, f"{URL}/"])


@pytest.fixture
def provider(clock: ManualClock) -> Provider:
    return Provider(clock)


async def test_an_answer_is_believed_for_its_time_and_not_longer(
    provider: Provider, clock: ManualClock
) -> None:
    assert (await provider.look())["sub"] == "ann"
    clock.advance(9.9)
    provider.says = {"active": False}
    assert (await provider.look())["iss"] == ISSUER
    assert len(provider.asked) == 1
    clock.advance(0.1)
    for _ in range(2):  # what was refused is not kept
        with raises_code("sign_in_refused"):
            await provider.look()
    assert len(provider.asked) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"active": "true"}, {"active": None}, {"aud": "https://other.example"}, {"aud": None},
        {"aud": [7]}, {"iss": "https://evil.example"}, {"exp": 1}, {"exp": None}, {"exp": "soon"},
        {"sub": ""}, {"sub": ["ann"]}, {"sub": "c"}, {"token_type": "DPoP"},
    ],
)  # fmt: skip
async def test_what_is_not_for_a_person_here_and_now_is_refused(
    provider: Provider, wrong: dict[str, Any]
) -> None:
    provider.says = {**GOOD, **wrong}
    with raises_code("sign_in_refused"):
        await provider.look()


async def test_a_token_that_ends_meanwhile_is_refused_though_its_answer_is_kept(
    provider: Provider, clock: ManualClock
) -> None:
    provider.says["exp"] = clock.now_ms() // 1000 + 3
    await provider.look()
    clock.advance(4)
    with raises_code("sign_in_refused"):
        await provider.look()


@pytest.mark.parametrize("token", ["", "short", "a b c d e f g", "ümlaut-token", "x" * 5000])
async def test_what_is_no_token_is_not_asked_about(provider: Provider, token: str) -> None:
    with raises_code("sign_in_refused"):
        await provider.look(token)
    assert provider.asked == []


async def test_a_provider_that_does_not_answer_is_no_refusal_and_answers_are_bounded(
    provider: Provider,
) -> None:
    provider.status = 403
    with raises_code("sign_in_unavailable"):
        await provider.look()
    provider.status = 200
    for n in range(MAX_KEPT + 1):
        await provider.look(f"{TOKEN}-{n}")
    asked = len(provider.asked)
    await provider.look(f"{TOKEN}-{MAX_KEPT}")
    assert len(provider.asked) == asked
    await provider.look(f"{TOKEN}-0")
    assert len(provider.asked) == asked + 1


def test_signed_tokens_are_told_from_others() -> None:
    assert is_signed("a.b.c")
    assert not is_signed("a.b")
