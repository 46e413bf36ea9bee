from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base.clock import ManualClock
from kaged.wire.errors import number_of_error
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import (
    TOKEN_LIMIT_CHARS,
    RoutingClaims,
    TokenReason,
    TokenRejected,
    bridge_audience,
    bridge_ttl_s,
    mint_token,
    new_token_id,
    verify_token,
)
from requirements import requirement

_KEY = TokenKey(bytes(range(32)))
_CLOCK = ManualClock()
_NOW = _CLOCK.now_ms() // 1000
_HEADER = {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 1}
_CLAIMS: dict[str, Any] = {"ver": 1, "sub": "alice", "iat": _NOW, "exp": _NOW + 300}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _forge(claims: Any = None, header: Any = None, key: TokenKey = _KEY) -> str:
    """Sign whatever is given with an implementation that shares nothing with ours."""
    parts = [
        item if isinstance(item, bytes) else json.dumps(item).encode()
        for item in (_HEADER if header is None else header, _CLAIMS if claims is None else claims)
    ]
    signed = ".".join(_b64(part) for part in parts)
    return f"{signed}.{_b64(hmac.new(key.secret, signed.encode(), hashlib.sha256).digest())}"


def _reason(token: Any, key: TokenKey = _KEY, **options: Any) -> TokenReason | None:
    try:
        verify_token(key, token, clock=_CLOCK, **options)
    except TokenRejected as error:
        return error.reason
    return None


_FULL = RoutingClaims(
    chat_id="c-1",
    chat_type="private",
    chat_title="Üben",
    provider="kaged",
    session_key="sk",
    thread_id="t",
    source_username="al",
    source_display_name="Alice",
    message_id="m",
    current_user_message="hello",
    timezone="Europe/Berlin",
)


def test_golden_vectors() -> None:
    """Fixed for good: other programs verify these with code of their own."""
    token = mint_token(_KEY, "alice", clock=_CLOCK, token_id="0" * 31 + "1")
    assert token == (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkFTSF9DT05URVhUIiwidmVyIjoxfQ.eyJhdWQiOiJycGMiLCJle"
        "HAiOjE3NjcyMjU5MDAsImlhdCI6MTc2NzIyNTYwMCwianRpIjoiMDAwMDAwMDAwMDAwMDAwMDAwMDAwM"
        "DAwMDAwMDAwMDEiLCJzdWIiOiJhbGljZSIsInZlciI6MX0.owJydaslETFHSuEmZyw081tuTXR84jHhi"
        "f8P9yp6hjE"
    )
    token = mint_token(
        _KEY.for_bridge("gog"),
        "tg:42",
        clock=_CLOCK,
        routing=_FULL,
        audience=bridge_audience("gog"),
        skill="mail",
        caps=("gog.email", "gog.calendar"),
        ttl_s=90,
        token_id="f" * 32,
    )
    assert token == (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkFTSF9DT05URVhUIiwidmVyIjoxfQ.eyJhdWQiOiJicmlkZ2U6Z"
        "29nIiwiY2FwcyI6WyJnb2cuZW1haWwiLCJnb2cuY2FsZW5kYXIiXSwiY2hhdF9pZCI6ImMtMSIsImNoY"
        "XRfdGl0bGUiOiJcdTAwZGNiZW4iLCJjaGF0X3R5cGUiOiJwcml2YXRlIiwiY3VycmVudF91c2VyX21lc"
        "3NhZ2UiOiJoZWxsbyIsImV4cCI6MTc2NzIyNTY5MCwiaWF0IjoxNzY3MjI1NjAwLCJqdGkiOiJmZmZmZ"
        "mZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZiIsIm1lc3NhZ2VfaWQiOiJtIiwicHJvdmlkZXIiOiJrY"
        "WdlZCIsInNlc3Npb25fa2V5Ijoic2siLCJza2lsbCI6Im1haWwiLCJzb3VyY2VfZGlzcGxheV9uYW1lI"
        "joiQWxpY2UiLCJzb3VyY2VfdXNlcm5hbWUiOiJhbCIsInN1YiI6InRnOjQyIiwidGhyZWFkX2lkIjoid"
        "CIsInRpbWV6b25lIjoiRXVyb3BlL0JlcmxpbiIsInZlciI6MX0.meBJ-8c3I3BlLnnufoVid6ayt47C-"
        "GUoZyh6ozjXV4A"
    )


@requirement("SC-AMB-10")
def test_a_minted_token_has_the_format_that_bridges_know() -> None:
    """Header, claims, lifetime; and confusion of algorithm, type or alphabet fails closed."""
    token = mint_token(_KEY, "alice", clock=_CLOCK)
    header_text, payload_text, signature = token.split(".")
    assert "=" not in token
    assert _unb64(header_text) == b'{"alg":"HS256","typ":"ASH_CONTEXT","ver":1}'
    payload = json.loads(_unb64(payload_text))
    assert payload.keys() == {"ver", "sub", "iat", "exp", "jti", "aud"}
    assert (payload["ver"], payload["sub"], payload["aud"]) == (1, "alice", "rpc")
    assert payload["exp"] - payload["iat"] == 300
    assert len(payload["jti"]) == 32
    int(payload["jti"], 16)
    expected = hmac.new(_KEY.secret, f"{header_text}.{payload_text}".encode(), hashlib.sha256)
    assert _unb64(signature) == expected.digest()

    assert _reason(token) is None
    assert _reason(_forge(header={**_HEADER, "alg": "none"})) is TokenReason.HEADER
    assert _reason(_forge(header={**_HEADER, "alg": "HS512"})) is TokenReason.HEADER
    assert _reason(_forge(header={**_HEADER, "typ": "JWT"})) is TokenReason.HEADER
    assert _reason(token[:-1] + "+") is TokenReason.DECODE
    assert _reason(f"{header_text}.{payload_text} .{signature}") is TokenReason.DECODE
    assert _reason(f"{header_text}\n.{payload_text}.{signature}") is TokenReason.DECODE

    clock = ManualClock()
    late = ManualClock(clock.now_ms() + 330_000)
    verify_token(_KEY, token, clock=late)
    with pytest.raises(TokenRejected):
        verify_token(_KEY, token, clock=ManualClock(clock.now_ms() + 331_000))


def test_what_was_minted_is_what_is_verified() -> None:
    token = mint_token(
        _KEY, "a:b:c", clock=_CLOCK, routing=_FULL, skill="mail", caps=(), token_id="1f" * 16
    )
    verified = verify_token(_KEY, token, clock=_CLOCK)
    assert verified.effective_user_id == "a:b:c"
    assert verified.routing == _FULL
    assert (verified.issued_at, verified.expires_at) == (_NOW, _NOW + 300)
    assert (verified.audience, verified.skill, verified.caps) == ("rpc", "mail", ())
    assert verified.token_id == "1f" * 16


def test_blank_routing_claims_are_left_out_and_others_trimmed() -> None:
    token = mint_token(
        _KEY, "alice", clock=_CLOCK, routing=RoutingClaims(chat_id=" c ", chat_type="  ")
    )
    payload = json.loads(_unb64(token.split(".")[1]))
    assert payload["chat_id"] == "c"
    assert "chat_type" not in payload
    # The same on the way in, for tokens of other hosts.
    verified = verify_token(
        _KEY, _forge({**_CLAIMS, "chat_id": " c ", "chat_type": " "}), clock=_CLOCK
    )
    assert verified.routing == RoutingClaims(chat_id="c")


def test_a_token_with_only_the_three_claims_is_enough() -> None:
    """Other hosts write no jti and no aud; what is absent reads as None."""
    token = _forge({"sub": "alice", "iat": _NOW, "exp": _NOW + 300})
    verified = verify_token(_KEY, token, clock=_CLOCK)
    assert verified.effective_user_id == "alice"
    assert verified.routing == RoutingClaims()
    assert verified.token_id is verified.audience is verified.skill is verified.caps is None


@pytest.mark.parametrize("reason", list(TokenReason))
def test_a_refusal_names_its_step_and_travels_as_bad_params(reason: TokenReason) -> None:
    error = TokenRejected(reason)
    assert error.message.startswith(f"Invalid context token ({reason}): ")
    assert error.data == {"reason": reason.value}
    assert number_of_error(error) == -32602


def test_a_refusal_never_quotes_the_token() -> None:
    for token in (_forge({**_CLAIMS, "sub": ""}), _forge(key=TokenKey(b"y" * 32)), "marker-text"):
        with pytest.raises(TokenRejected) as raised:
            verify_token(_KEY, token, clock=_CLOCK)
        assert not any(part in str(raised.value) for part in token.split("."))
        assert raised.value.data.keys() == {"reason"}


def test_unknown_claims_and_header_members_are_ignored() -> None:
    token = _forge({**_CLAIMS, "iss": "x", "nested": {"a": [1]}}, {**_HEADER, "kid": "../../key"})
    assert _reason(token) is None
    assert _reason(_forge(header={"alg": "HS256", "typ": "ASH_CONTEXT"})) is None


@pytest.mark.parametrize("token", [None, "", "  \n", 7, True, ["x"], {"a": 1}])
def test_no_token_is_missing(token: Any) -> None:
    assert _reason(token) is TokenReason.MISSING


@pytest.mark.parametrize(
    "token",
    [
        "a",
        "a.b",
        "a.b.c.d",
        "...",
        _forge() + ".",
        "." + _forge(),
        "a" * TOKEN_LIMIT_CHARS + ".b.c",
    ],
)
def test_other_than_three_segments_is_a_fault_of_format(token: str) -> None:
    assert _reason(token) is TokenReason.FORMAT


_H, _P, _S = _forge().split(".")


@pytest.mark.parametrize(
    "token",
    [
        "..",
        f".{_P}.{_S}",
        f"{_H}..{_S}",
        f" {_H}.{_P}.{_S}",
        f"{_H}.{_P}.{_S} ",
        f"{_H}.{_P}.{_S}\n",
        f"{_H}.{_P}.{_S}=",
        f"{_H}=.{_P}.{_S}",
        f"{_H}.{_P[:-1]}ä.{_S}",
        f"{_H}.{_P}.{_S[:-1]}٣",
        f"{_H}.{_P}.\ud800",
        f"{_H}.{_P}.{_S[:8]}!!!!{_S[8:]}",  # the standard decoder would skip these
        f"{_H}.{_P}.A",  # no byte has one character
        _forge(b"\xff\xfe"),
        _forge(b"{"),
        _forge(b"[]"),
        _forge(b'"alice"'),
        _forge(b"null"),
        _forge(b""),
        _forge(b'{"sub":"alice","sub":"bob"}'),
        _forge(b'{"sub":NaN}'),
        _forge(b'{"sub":"\\ud800"}'),
        _forge(b"\xef\xbb\xbf{}"),
        _forge(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"),
        _forge(header=b"[]"),
        _forge(header=b'{"alg":"HS256","alg":"none","typ":"ASH_CONTEXT"}'),
    ],
)
def test_a_segment_that_is_not_canonical_is_a_fault_of_decoding(token: str) -> None:
    assert _reason(token) is TokenReason.DECODE


def test_spare_bits_at_the_end_of_a_segment_are_not_a_second_spelling() -> None:
    """43 characters carry 258 bits for 256: four spellings decode to the same 32 bytes."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(_S[-1])
    twins = [_S[:-1] + alphabet[last ^ bit] for bit in (1, 2, 3)]
    assert all(_unb64(twin) == _unb64(_S) for twin in twins)
    assert {_reason(f"{_H}.{_P}.{twin}") for twin in twins} == {TokenReason.DECODE}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {**_HEADER, "alg": "none"},
        {**_HEADER, "alg": "None"},
        {**_HEADER, "alg": "hs256"},
        {**_HEADER, "alg": "HS256 "},
        {**_HEADER, "alg": "RS256"},
        {**_HEADER, "alg": ["HS256"]},
        {**_HEADER, "alg": None},
        {**_HEADER, "typ": "JWT"},
        {**_HEADER, "typ": "ash_context"},
        {**_HEADER, "ver": 2},
        {**_HEADER, "ver": True},
        {**_HEADER, "ver": 1.0},
        {**_HEADER, "ver": "1"},
        {**_HEADER, "ver": None},
        {"typ": "ASH_CONTEXT"},
    ],
)
def test_another_algorithm_type_or_version_is_a_fault_of_the_header(header: Any) -> None:
    assert _reason(_forge(header=header)) is TokenReason.HEADER


def test_alg_none_without_a_signature_is_refused() -> None:
    header = _b64(json.dumps({**_HEADER, "alg": "none"}).encode())
    assert _reason(f"{header}.{_P}.") is TokenReason.HEADER
    assert _reason(f"{_H}.{_P}.") is TokenReason.SIGNATURE


def test_a_signature_with_any_other_key_is_refused() -> None:
    foreign = TokenKey(b"y" * 32)
    bridge = _KEY.for_bridge("gog")
    other_bridge = _KEY.for_bridge("mail")
    assert _reason(_forge(key=foreign)) is TokenReason.SIGNATURE
    assert _reason(_forge(key=bridge)) is TokenReason.SIGNATURE
    assert _reason(_forge(), key=bridge) is TokenReason.SIGNATURE
    assert _reason(_forge(key=bridge), key=other_bridge) is TokenReason.SIGNATURE
    # the text of the key instead of its bytes, and the key of the empty string
    exported = TokenKey(_KEY.export_text().encode())
    assert _reason(_forge(key=exported)) is TokenReason.SIGNATURE


@pytest.mark.parametrize("size", [0, 1, 16, 31, 33, 64])
def test_a_signature_of_another_length_is_refused(size: int) -> None:
    signature = _b64((_unb64(_S) * 2)[:size])
    assert _reason(f"{_H}.{_P}.{signature}") is TokenReason.SIGNATURE


def test_segments_of_two_good_tokens_do_not_mix() -> None:
    _, other_payload, other_signature = _forge({**_CLAIMS, "sub": "bob"}).split(".")
    assert _reason(f"{_H}.{other_payload}.{_S}") is TokenReason.SIGNATURE
    assert _reason(f"{_H}.{_P}.{other_signature}") is TokenReason.SIGNATURE


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_one_changed_byte_anywhere_is_refused(position: int, change: int) -> None:
    token = bytearray(_forge().encode())
    token[position % len(token)] ^= change
    assert _reason(token.decode("latin-1")) is not None


@given(st.one_of(st.text(), st.lists(st.sampled_from([_H, _P, _S, ".", "=", "x"])).map("".join)))
def test_arbitrary_text_is_rejected_and_nothing_else_is_raised(text: str) -> None:
    assert text == _forge() or _reason(text) is not None


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _CLAIMS.items() if key != name}


@pytest.mark.parametrize(
    "claims",
    [
        {},
        _without("iat"),
        _without("exp"),
        _without("sub"),
        {**_CLAIMS, "iat": None},
        {**_CLAIMS, "iat": True},
        {**_CLAIMS, "iat": float(_NOW)},
        {**_CLAIMS, "iat": f" {_NOW}"},
        {**_CLAIMS, "iat": f"+{_NOW}"},
        {**_CLAIMS, "iat": f"{_NOW}\n"},
        {**_CLAIMS, "iat": "".join(chr(0x0660 + int(digit)) for digit in str(_NOW))},
        {**_CLAIMS, "exp": "9" * 13},
        {**_CLAIMS, "exp": [_NOW + 300]},
        {**_CLAIMS, "iat": _NOW + 31, "exp": _NOW + 300},
        {**_CLAIMS, "iat": _NOW - 331, "exp": _NOW - 31},
        {**_CLAIMS, "exp": _NOW},  # not after its issue
        {**_CLAIMS, "exp": _NOW - 1},
        {**_CLAIMS, "exp": _NOW + 901},
        {**_CLAIMS, "exp": 10**40},
        {**_CLAIMS, "iat": 0, "exp": 300},
        {**_CLAIMS, "iat": -1},
        {**_CLAIMS, "sub": ""},
        {**_CLAIMS, "sub": " "},
        {**_CLAIMS, "sub": 7},
        {**_CLAIMS, "sub": None},
        {**_CLAIMS, "sub": ["alice"]},
        {**_CLAIMS, "sub": "a" * 257},
        {**_CLAIMS, "ver": 2},
        {**_CLAIMS, "ver": True},
        {**_CLAIMS, "ver": "1"},
        {**_CLAIMS, "jti": 5},
        {**_CLAIMS, "chat_id": 5},
        {**_CLAIMS, "chat_type": ["private"]},
        {**_CLAIMS, "aud": "bridge:gog"},
        {**_CLAIMS, "aud": ["rpc"]},
        {**_CLAIMS, "aud": "RPC"},
        {**_CLAIMS, "skill": {}},
        {**_CLAIMS, "caps": "gog.email"},
        {**_CLAIMS, "caps": ["gog.email", 1]},
        {**_CLAIMS, "caps": ["x"] * 257},
    ],
)
def test_a_bad_claim_is_refused_in_spite_of_a_good_signature(claims: dict[str, Any]) -> None:
    assert _reason(_forge(claims)) is TokenReason.CLAIMS


@pytest.mark.parametrize(
    "claims",
    [
        {**_CLAIMS, "iat": str(_NOW), "exp": str(_NOW + 300)},
        {**_CLAIMS, "iat": _NOW + 30},
        {**_CLAIMS, "iat": _NOW - 330, "exp": _NOW - 30},
        {**_CLAIMS, "exp": _NOW + 900},
        {**_CLAIMS, "aud": "rpc"},
        {**_CLAIMS, "sub": " alice "},
        {**_CLAIMS, "sub": "a" * 256},
        {**_CLAIMS, "caps": ["x"] * 256},
    ],
)
def test_the_edges_of_each_rule_pass(claims: dict[str, Any]) -> None:
    verified = verify_token(_KEY, _forge(claims), clock=_CLOCK)
    assert verified.effective_user_id == claims["sub"]  # exactly, never trimmed into another user


def test_a_token_from_before_there_were_any_is_refused_even_by_a_clock_that_agrees() -> None:
    wrong = ManualClock(now_ms=1_262_304_000_000)  # 2010: a machine without a battery
    token = mint_token(_KEY, "alice", clock=wrong)
    with pytest.raises(TokenRejected) as raised:
        verify_token(_KEY, token, clock=wrong)
    assert raised.value.reason is TokenReason.CLAIMS


def test_an_audience_can_be_required() -> None:
    bridge = _KEY.for_bridge("gog")
    token = mint_token(bridge, "alice", clock=_CLOCK, audience=bridge_audience("gog"))
    assert _reason(token, key=bridge, audience="bridge:gog", audience_required=True) is None
    assert _reason(token, key=bridge, audience="bridge:mail") is TokenReason.CLAIMS
    assert _reason(token, key=bridge) is TokenReason.CLAIMS  # the host's RPC refuses it
    assert _reason(_forge(), audience_required=True) is TokenReason.CLAIMS


def test_a_lifetime_over_the_configured_maximum_is_refused() -> None:
    token = mint_token(_KEY, "alice", clock=_CLOCK, ttl_s=601)
    assert _reason(token) is None
    assert _reason(token, max_lifetime_s=600) is TokenReason.CLAIMS


@pytest.mark.parametrize(
    ("user_id", "options"),
    [
        ("", {}),
        ("  ", {}),
        ("a" * 257, {}),
        ("alice", {"ttl_s": 0}),
        ("alice", {"ttl_s": 901}),
        ("alice", {"caps": ("x",) * 257}),
        ("alice", {"routing": RoutingClaims(current_user_message="x" * TOKEN_LIMIT_CHARS)}),
    ],
)
def test_no_token_is_made_that_nobody_could_use(user_id: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="context token"):
        mint_token(_KEY, user_id, clock=_CLOCK, **options)


def test_token_ids_are_128_bits_of_the_given_source() -> None:
    assert new_token_id(lambda bits: bits) == f"{128:032x}"
    assert len({new_token_id() for _ in range(1000)}) == 1000


def test_a_bridge_token_lives_as_long_as_the_call_and_a_minute() -> None:
    assert [bridge_ttl_s(timeout) for timeout in (1, 30, 240, 300)] == [61, 90, 300, 300]
