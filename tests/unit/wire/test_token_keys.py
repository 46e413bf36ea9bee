from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.token_keys import TokenKey, TokenKeyInvalid, parse_key

_KEY = TokenKey(bytes(range(32)))


def test_golden_vector_of_the_derived_keys() -> None:
    """Fixed for good: a change would lock every running bridge out."""
    assert _KEY.for_bridge("gog").export_text() == "DKL7QdpIjJr4DMV6k_FdcNZWD7OsqwOOd0nJAx9NjRs"
    assert _KEY.for_bridge("mail-2").export_text() == "HBNOCZuyifHFjpkAao0TZSCqYdskcVnKp7pz7UGW64E"


def test_each_namespace_and_each_host_has_a_key_of_its_own() -> None:
    keys = {
        _KEY.secret,
        _KEY.for_bridge("gog").secret,
        _KEY.for_bridge("gogs").secret,
        TokenKey(b"x" * 32).for_bridge("gog").secret,
    }
    assert len(keys) == 4


@pytest.mark.parametrize("namespace", ["", "Gog", "gog\n", "a.b", "-a", "ä", "gog "])
def test_a_key_is_derived_for_a_well_formed_namespace_only(namespace: str) -> None:
    with pytest.raises(ValueError, match="not a namespace"):
        _KEY.for_bridge(namespace)


@given(st.binary(min_size=32, max_size=32))
def test_an_exported_key_is_read_back_by_the_rule_of_bridges(secret: bytes) -> None:
    text = TokenKey(secret).export_text()
    assert len(text) == 43
    assert parse_key(text).secret == secret


def test_only_a_key_of_32_bytes_is_exported() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        TokenKey(b"x" * 24).export_text()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("00112233445566778899aAbBcCdDeEfF", bytes.fromhex("00112233445566778899aabbccddeeff")),
        ("  00112233445566778899aabbccddeeff\n", bytes.fromhex("00112233445566778899aabbccddeeff")),
        (base64.urlsafe_b64encode(b"\xfb" * 20).decode(), b"\xfb" * 20),
        (base64.urlsafe_b64encode(b"\xfb" * 20).decode().rstrip("="), b"\xfb" * 20),
        # 35 hex digits are an odd number, so they are base64url
        ("a" * 35, base64.urlsafe_b64decode("a" * 35 + "=")),
        ("ein Schlüssel für Menschen", "ein Schlüssel für Menschen".encode()),
        # foreign characters are dropped by the decoder that bridges use
        ("!aaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!", base64.b64decode("a" * 28)),
        # 25 letters of base64 are not decodable, so the text itself counts
        ("correct horse battery staple", b"correct horse battery staple"),
    ],
)
def test_the_text_of_a_secret_is_read_by_the_one_rule(text: str, secret: bytes) -> None:
    assert parse_key(text).secret == secret


@pytest.mark.parametrize("text", ["", "  ", "short", "00" * 15, "!!!!"])
def test_a_blank_or_short_secret_is_refused(text: str) -> None:
    with pytest.raises(TokenKeyInvalid) as raised:
        parse_key(text)
    assert raised.value.code == "token_key_invalid"
    assert not text.strip() or text not in str(raised.value)


def test_a_key_does_not_show_itself() -> None:
    assert repr(_KEY) == "TokenKey()"
    assert str(_KEY) == "TokenKey()"
