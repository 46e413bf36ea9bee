"""What is remembered between calls: never longer, never for others, never without a bound."""

from __future__ import annotations

from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.services.caller import SEEN_LIMIT, ContextTokens, without_claims
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.params import IDS_LIMIT, capability_param
from kaged.services.sanitize import OutputRefused, harden
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import LEEWAY_S, SANDBOX_TTL_S, RoutingClaims, TokenRejected


def _tokens(clock: ManualClock) -> ContextTokens:
    return ContextTokens(TokenKey(b"k" * 32), clock)


def _minted(tokens: ContextTokens, user: str = "alice") -> str:
    token = tokens.mint(user, routing=RoutingClaims(chat_type="private", chat_id="c"))
    assert token is not None
    return token


def test_a_token_that_was_seen_is_refused_once_it_has_expired(clock: ManualClock) -> None:
    tokens = _tokens(clock)
    token = _minted(tokens)
    assert tokens.caller(token) is tokens.caller(token)
    clock.advance(SANDBOX_TTL_S + LEEWAY_S)
    assert tokens.caller(token).user_id == "alice"
    clock.advance(1)
    for _ in range(2):
        with pytest.raises(TokenRejected):
            tokens.caller(token)
    clock.set_wall(0)  # a clock that went back makes no token valid before its time
    with pytest.raises(TokenRejected):
        tokens.caller(token)


def test_one_letter_of_a_seen_token_makes_it_another(clock: ManualClock) -> None:
    tokens = _tokens(clock)
    token = _minted(tokens)
    tokens.caller(token)
    for at in (0, len(token) // 2, len(token) - 1):
        other = token[:at] + ("A" if token[at] != "A" else "Q") + token[at + 1 :]
        with pytest.raises(TokenRejected):
            tokens.caller(other)


def test_what_one_call_claims_does_not_stick_to_the_next(clock: ManualClock) -> None:
    tokens = _tokens(clock)
    token = _minted(tokens)
    forged: dict[str, Any] = {"context_token": token, "user_id": "bob", "thread_id": "t", "x": 1}
    caller, clean = without_claims(tokens.caller(token), forged)
    assert caller.identity_fields == ("thread_id", "user_id")
    assert clean == {"user_id": "alice", "x": 1}
    plain, clean = without_claims(tokens.caller(token), {"context_token": token, "x": 1})
    assert plain.identity_fields == ()
    assert clean == {"x": 1}
    assert forged["user_id"] == "bob"  # the caller's own parameters stay as they were


def test_seen_tokens_are_of_their_own_user_and_no_more_than_the_limit(clock: ManualClock) -> None:
    tokens = _tokens(clock)
    minted = {f"u{number}": _minted(tokens, f"u{number}") for number in range(SEEN_LIMIT + 10)}
    for _ in range(2):
        for user, token in minted.items():
            assert tokens.caller(token).user_id == user
            assert len(tokens._seen) <= SEEN_LIMIT


def test_an_id_is_read_the_same_way_however_often_it_comes() -> None:
    for _ in range(2):
        assert capability_param({"capability": " gog.email "}).text == "gog.email"
        for wrong in ("email", "gog.", "Gog.email", "gog.email.more", None, 5, "g." + "x" * 500):
            with pytest.raises(CapabilityInvalidInput):
                capability_param({"capability": wrong})
    for number in range(IDS_LIMIT + 10):
        assert capability_param({"capability": f"n{number}.x"}).text == f"n{number}.x"


def test_a_harmless_name_makes_no_header_harmless() -> None:
    """The same keys as before are harmless together, and only together."""
    people = [{"name": "Alice", "address": "alice@example.org"}] * 3
    assert harden({"from": people}).output == {"from": people}
    header = {"name": "Authorization", "value": "Bearer abcdefghijklmnop1"}
    for _ in range(2):
        with pytest.raises(OutputRefused):
            harden({"from": [*people, header]})
    with pytest.raises(OutputRefused):
        harden({"from": {"name": "a", "address": "b", "access_token": "c"}})


def test_a_key_is_judged_wherever_and_beside_whatever_it_stands() -> None:
    for _ in range(2):
        assert harden(
            {"a": [{"name": "x"}, {"value": "y z=1"}], "b": [["tag", "x"], [1, 2]]}
        ).output
        for deep in (
            [{"name": "x", "n": 1}, {"refresh_token": "abc"}],
            [[{"id": 1}], [{"id": 2, "set-cookie": "a=b; c"}]],
            {"x": {"pairs": [["id", "1"], ["Authorization", "Basic abcdef"]]}},
            [{"key": "Cookie", "value": "session=abcdefgh"}],
        ):
            with pytest.raises(OutputRefused):
                harden({"messages": [{"id": n} for n in range(3)], "more": deep})


@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN PRIVATE KEY-----\nabc",
        "Bearer abcdefghijklmnop1",
        "bearer\tabcdefghijklmnop1",
        "Basic\u00a0abcdefghijklmnop1",
        "basic\nabcdefghijklmnop1",
        "eyJhbGciOi.eyJzdWIiOi.sig",
        "ghp_abcdefghijklmnop",
        "github_pat_abcdefghijklmnop",
        "glpat-abcdefghijklmnop",
        "sk-abcdefghijklmnop",
        "xoxb-12345678",
        "xapp-12345678",
        "AKIAABCDEFGHIJKLMNOP",
        "AIza" + "a" * 30,
        "ya29.abcdefghijklmnop",
        "npm_" + "a" * 30,
        "hf_" + "a" * 30,
        "pypi-" + "a" * 30,
        "https://alice:secret@example.org",
    ],
)
def test_every_shape_is_found_whatever_else_there_is(secret: str) -> None:
    assert secret not in str(harden({"x": secret}).output)
    assert secret not in str(harden({"a": "b", "x": [{"y": f"so: {secret}"}]}).output)
