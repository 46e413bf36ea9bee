"""Signed context tokens: `mint_token` says who and where a call comes from, `verify_token` checks.

A token is three base64url segments: header, payload and an HMAC-SHA256 over the first two. The
host mints them; the host's sandbox RPC, bridges and sidecars verify them. There is one algorithm
and the key never depends on anything in the token, so a token cannot choose how it is checked.
"""

from __future__ import annotations

import binascii
import hmac
import json
import re
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kaged.base.errors import KagedError
from kaged.wire.strictjson import NotJson, decode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.base.clock import Clock
    from kaged.base.jsonvalue import JsonObject, JsonValue
    from kaged.wire.token_keys import TokenKey

TOKEN_VARIABLE = "ASH_CONTEXT_TOKEN"  # noqa: S105 - the name of a variable, not a secret
RPC_AUDIENCE = "rpc"
SANDBOX_TTL_S = 300
LEEWAY_S = 30
MAX_LIFETIME_S = 900
# A message of the user may be among the claims; an environment variable holds 128 KiB at most.
TOKEN_LIMIT_CHARS = 64 * 1024
SUBJECT_LIMIT_CHARS = 256
CAPS_LIMIT = 256
# 2020-01-01: no clock that issued a real token was earlier.
_EARLIEST_ISSUE_S = 1_577_836_800
_TOKEN_DEPTH = 8

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")
# By the length modulo 4: the last character may stand for 6, 2 or 4 bits of data, and its spare
# bits are zero. No data gives one character beyond a multiple of four.
_LAST_CHARACTERS = (
    frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"),
    frozenset(),
    frozenset("AQgw"),
    frozenset("AEIMQUYcgkosw048"),
)
# What base64 writes as + and / is - and _ in a token; the module `base64` takes thrice as long.
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_DIGITS = re.compile(r"[0-9]{1,12}")
_HEADER: JsonObject = {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 1}


class TokenReason(StrEnum):
    """The step at which a token failed, in the order of the steps."""

    MISSING = "missing"
    FORMAT = "format"
    DECODE = "decode"
    HEADER = "header"
    SIGNATURE = "signature"
    CLAIMS = "claims"


_TEXTS = {
    TokenReason.MISSING: "no token was given",
    TokenReason.FORMAT: "not three segments",
    TokenReason.DECODE: "a segment cannot be decoded",
    TokenReason.HEADER: "unexpected algorithm, type or version",
    TokenReason.SIGNATURE: "the signature does not match",
    TokenReason.CLAIMS: "a claim is absent, malformed, expired or meant for another audience",
}


class TokenRejected(KagedError):
    """The token is not valid; the message names the step and never quotes the token (SC-AMB-05)."""

    code = "invalid_context_token"

    def __init__(self, reason: TokenReason) -> None:
        super().__init__(f"Invalid context token ({reason}): {_TEXTS[reason]}", reason=reason.value)
        self.reason = reason


class RoutingClaims(NamedTuple):
    """The optional text claims: where a call comes from, as far as the host knows.

    A named tuple, as `VerifiedToken` is: made for every token that is checked.
    """

    chat_id: str | None = None
    chat_type: str | None = None
    chat_title: str | None = None
    provider: str | None = None
    session_key: str | None = None
    thread_id: str | None = None
    source_username: str | None = None
    source_display_name: str | None = None
    message_id: str | None = None
    current_user_message: str | None = None
    timezone: str | None = None
    project_id: str | None = None


_ROUTING = RoutingClaims._fields
_NO_ROUTING = RoutingClaims()


class VerifiedToken(NamedTuple):
    """What a valid token says. Identity and routing come from here and nowhere else.

    `caps` is None when no skill restriction is known, which is not the same as an empty list.
    """

    effective_user_id: str
    issued_at: int
    expires_at: int
    token_id: str | None
    routing: RoutingClaims
    audience: str | None
    skill: str | None
    caps: tuple[str, ...] | None


def bridge_audience(namespace: str) -> str:
    """Return the audience of tokens for one bridge."""
    return f"bridge:{namespace}"


def bridge_ttl_s(timeout_s: int) -> int:
    """Return the lifetime of a token for one bridge call: the call and a minute, at most 300 s."""
    return min(SANDBOX_TTL_S, timeout_s + 60)


def new_token_id(random_bits: Callable[[int], int] = secrets.randbits) -> str:
    """Make a `jti`: 128 random bits in hex."""
    return f"{random_bits(128):032x}"


def mint_token(
    key: TokenKey,
    user_id: str,
    *,
    clock: Clock,
    routing: RoutingClaims = _NO_ROUTING,
    audience: str = RPC_AUDIENCE,
    skill: str | None = None,
    caps: tuple[str, ...] | None = None,
    ttl_s: int = SANDBOX_TTL_S,
    token_id: str | None = None,
) -> str:
    """Make a signed token for a user the host has verified.

    Routing texts are trimmed and blank ones left out.

    Raises:
        ValueError: there is no user, the lifetime is not between 1 and 900 s, or the token would
            be one that `verify_token` refuses for its size. No token is ever made for nobody.
    """
    if not user_id.strip() or len(user_id) > SUBJECT_LIMIT_CHARS:
        raise ValueError("a context token needs a user id of 1 to 256 characters")
    if not 1 <= ttl_s <= MAX_LIFETIME_S:
        raise ValueError(f"a context token lives 1 to {MAX_LIFETIME_S} seconds, not {ttl_s}")
    if caps is not None and len(caps) > CAPS_LIMIT:
        raise ValueError(f"a context token names at most {CAPS_LIMIT} capabilities")
    issued_at = clock.now_ms() // 1000
    payload: JsonObject = {
        "ver": 1,
        "sub": user_id,
        "iat": issued_at,
        "exp": issued_at + ttl_s,
        "jti": token_id or new_token_id(),
        "aud": audience,
    }
    for name in _ROUTING:
        text: str | None = getattr(routing, name)
        if text is not None and text.strip():
            payload[name] = text.strip()
    if skill is not None:
        payload["skill"] = skill
    if caps is not None:
        payload["caps"] = list(caps)
    signed = f"{_HEADER_SEGMENT}.{_segment(_compact(payload))}"
    token = f"{signed}.{_segment(key.sign(signed.encode('ascii')))}"
    if len(token) > TOKEN_LIMIT_CHARS:
        raise ValueError(f"the context token would be longer than {TOKEN_LIMIT_CHARS} characters")
    return token


def verify_token(
    key: TokenKey,
    token: JsonValue,
    *,
    clock: Clock,
    audience: str = RPC_AUDIENCE,
    audience_required: bool = False,
    max_lifetime_s: int = MAX_LIFETIME_S,
) -> VerifiedToken:
    """Check a token and return what it says.

    `token` is taken as it came in a request, whatever its type. A token without an `aud` claim
    passes unless `audience_required`: hosts and bridges of the first generations do not write it,
    and keys keep the audiences apart in any case.

    Raises:
        TokenRejected: always with the first step that failed; nothing else is ever raised.
    """
    if not isinstance(token, str) or not token.strip():
        _reject(TokenReason.MISSING)
    segments = token.split(".") if len(token) <= TOKEN_LIMIT_CHARS else ()
    if len(segments) != 3:
        _reject(TokenReason.FORMAT)
    header_text, payload_text, signature_text = segments
    # Our own header needs no decoding, and nearly every token has it.
    header = _HEADER if header_text == _HEADER_SEGMENT else _decode_object(header_text)
    payload = _decode_object(payload_text)
    _require_segment(signature_text)
    if header.get("alg") != "HS256" or header.get("typ") != "ASH_CONTEXT":
        _reject(TokenReason.HEADER)
    if "ver" in header and not _is_version_1(header["ver"]):
        _reject(TokenReason.HEADER)
    # Texts are compared and not bytes: there is one spelling of each.
    expected = _segment(key.sign(f"{header_text}.{payload_text}".encode("ascii")))
    if not hmac.compare_digest(expected, signature_text):
        _reject(TokenReason.SIGNATURE)
    verified = _read_claims(payload)
    _require_time(verified, clock.now_ms() // 1000, max_lifetime_s)
    if verified.audience != audience and (audience_required or verified.audience is not None):
        _reject(TokenReason.CLAIMS)
    return verified


def _read_claims(payload: JsonObject) -> VerifiedToken:
    """Read the payload of a token with a good signature."""
    issued_at, expires_at = _seconds(payload.get("iat")), _seconds(payload.get("exp"))
    if "ver" in payload and not _is_version_1(payload["ver"]):
        _reject(TokenReason.CLAIMS)
    subject = payload.get("sub")
    if not isinstance(subject, str) or not subject.strip():
        _reject(TokenReason.CLAIMS)
    if len(subject) > SUBJECT_LIMIT_CHARS:
        _reject(TokenReason.CLAIMS)
    said = [name for name in _ROUTING if name in payload]
    return VerifiedToken(
        subject,
        issued_at,
        expires_at,
        _text(payload.get("jti")),
        RoutingClaims(**{name: _text(payload[name]) for name in said}) if said else _NO_ROUTING,
        _text(payload.get("aud")),
        _text(payload.get("skill")),
        _caps(payload.get("caps")),
    )


def _require_time(token: VerifiedToken, now_s: int, max_lifetime_s: int) -> None:
    issued_at, expires_at = token.issued_at, token.expires_at
    if (
        issued_at < _EARLIEST_ISSUE_S
        or issued_at > now_s + LEEWAY_S
        or expires_at < now_s - LEEWAY_S
        or not 0 < expires_at - issued_at <= max_lifetime_s
    ):
        _reject(TokenReason.CLAIMS)


def _text(value: JsonValue) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        _reject(TokenReason.CLAIMS)
    return value.strip() or None


def _caps(value: JsonValue) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > CAPS_LIMIT:
        _reject(TokenReason.CLAIMS)
    caps = tuple(item for item in value if isinstance(item, str))
    if len(caps) != len(value):
        _reject(TokenReason.CLAIMS)
    return caps


def _reject(reason: TokenReason) -> NoReturn:
    raise TokenRejected(reason)


def _seconds(value: JsonValue) -> int:
    """Read a time claim: an integer, or plain ASCII digits as text; True and 1.0 are neither."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if type(value) is not int:
        _reject(TokenReason.CLAIMS)
    return value


def _is_version_1(value: JsonValue) -> bool:
    return type(value) is int and value == 1


def _require_segment(text: str) -> None:
    """Refuse what is not base64url in its one canonical spelling.

    Python's decoder skips foreign characters and ignores spare bits at the end, which would give
    one token many spellings.
    """
    if _ALPHABET.fullmatch(text) is None or (
        text and text[-1] not in _LAST_CHARACTERS[len(text) % 4]
    ):
        _reject(TokenReason.DECODE)


def _decode_object(text: str) -> JsonObject:
    _require_segment(text)
    padded = text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4)
    data = binascii.a2b_base64(padded)
    try:
        value = decode_json(data, max_depth=_TOKEN_DEPTH, unique_keys=True)
    except NotJson:
        _reject(TokenReason.DECODE)
    if not isinstance(value, dict):
        _reject(TokenReason.DECODE)
    return value


def _compact(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")


def _segment(data: bytes) -> str:
    text = binascii.b2a_base64(data, newline=False).translate(_TO_URL)
    return text.rstrip(b"=").decode("ascii")


_HEADER_SEGMENT = _segment(_compact(_HEADER))
