"""`TokenVerifier`: tokens of the provider, checked by its keys; the rules are the libraries'.

What is checked is in the standards: OpenID Connect Core 3.1.3.7 for ID tokens, RFC 9068 for access
tokens, OpenID Connect Back-Channel Logout 2.6 for logout tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.serve.signin.errors import SignInRefused
from kaged.serve.signin.provider import OpenIdProvider

if TYPE_CHECKING:
    from joserfc.jwt import Token

MAX_TOKEN_CHARS: Final = 16 * 1024
MAX_TEXT_CHARS: Final = 255
LEEWAY_S: Final = 60
"""How far the provider's clock may be from ours."""
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures with a key that only the provider has; neither `none` nor a shared secret."""

_LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_ACCESS_TYPES: Final = frozenset({"at+jwt", "application/at+jwt"})
_LOGOUT_TYPES: Final = frozenset({"logout+jwt", "application/logout+jwt", "jwt"})


@dataclass(frozen=True, slots=True)
class LogoutOrder:
    """What a logout token says: whose sessions end."""

    subject: str | None
    provider_session: str | None
    token_id: str


class TokenVerifier:
    """Checks tokens for one client of one provider."""

    def __init__(self, provider: OpenIdProvider, client_id: str, clock: Clock) -> None:
        self._provider = provider
        self._client_id = client_id
        self._clock = clock

    async def id_token(self, text: str, *, nonce: str, access_token: str | None) -> JsonObject:
        """Return the claims of an ID token that answers our request.

        Raises:
            SignInRefused: it is not one.
            SignInUnavailable: the provider's keys cannot be had.
        """
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415 - heavy, and rarely needed
        from joserfc.errors import JoseError  # noqa: PLC0415 - as above

        token = await self._decoded(text)
        params = {"nonce": nonce, "client_id": self._client_id, "access_token": access_token}
        claims = CodeIDToken(token.claims, token.header, self._options(self._client_id), params)
        try:
            claims.validate(now=self._now_s, leeway=LEEWAY_S)
        except (JoseError, TypeError, ValueError) as error:
            raise _refused(_reason(error)) from None
        _require_subject(token.claims)
        return dict(token.claims)

    async def access_token(self, text: str, audiences: Sequence[str]) -> JsonObject:
        """Return the claims of an access token for one of these audiences.

        Raises:
            SignInRefused: it is not one.
            SignInUnavailable: the provider's keys cannot be had.
        """
        from authlib.oauth2.rfc9068.claims import (  # noqa: PLC0415 - heavy, and rarely needed
            JWTAccessTokenClaims,
        )
        from joserfc.errors import JoseError  # noqa: PLC0415 - as above

        token = await self._decoded(text)
        if str(token.header.get("typ", "")).lower() not in _ACCESS_TYPES:
            # An ID token has the same issuer and keys, and is no permission to use anything.
            raise _refused("it is not an access token (typ)")
        options = {**self._options(*audiences), "client_id": {"essential": True}}
        try:
            JWTAccessTokenClaims(token.claims, token.header, options).validate(
                now=self._now_s, leeway=LEEWAY_S
            )
        except (JoseError, TypeError, ValueError) as error:
            raise _refused(_reason(error)) from None
        _require_subject(token.claims)
        if token.claims["sub"] == token.claims["client_id"]:
            raise _refused("it stands for a program, not for a person")
        return dict(token.claims)

    async def logout_token(self, text: str) -> LogoutOrder:
        """Return whose sessions a logout token ends.

        Raises:
            SignInRefused: it is not one.
            SignInUnavailable: the provider's keys cannot be had.
        """
        from joserfc.errors import JoseError  # noqa: PLC0415 - heavy, and rarely needed
        from joserfc.jwt import JWTClaimsRegistry  # noqa: PLC0415 - as above

        token = await self._decoded(text)
        claims = token.claims
        if str(token.header.get("typ", "jwt")).lower() not in _LOGOUT_TYPES:
            raise _refused("it is not a logout token (typ)")
        options: Any = {**self._options(self._client_id), "jti": {"essential": True}}
        del options["sub"]
        try:
            registry = JWTClaimsRegistry(now=self._now_s, leeway=LEEWAY_S, **options)
            registry.validate(claims)
        except (JoseError, TypeError, ValueError) as error:
            raise _refused(_reason(error)) from None
        events = claims.get("events")
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict):
            raise _refused("it orders no logout (events)")
        if "nonce" in claims:
            raise _refused("it is an ID token (nonce)")
        subject, session = claims.get("sub"), claims.get("sid")
        if not (_is_text(subject) or _is_text(session)) or not _is_text(claims["jti"]):
            raise _refused("it names neither a person nor a session")
        return LogoutOrder(
            subject if _is_text(subject) else None,
            session if _is_text(session) else None,
            claims["jti"],
        )

    @property
    def _now_s(self) -> int:
        return self._clock.now_ms() // 1000

    def _options(self, *audiences: str) -> dict[str, Any]:
        return {
            "iss": {"essential": True, "value": self._provider.issuer},
            "aud": {"essential": True, "values": list(audiences)},
            "sub": {"essential": True},
            "exp": {"essential": True},
            "iat": {"essential": True},
        }

    async def _decoded(self, text: str) -> Token:
        """Check the signature. Everything that costs nothing is looked at before keys are."""
        from joserfc import jws, jwt  # noqa: PLC0415 - heavy, and rarely needed
        from joserfc.errors import JoseError  # noqa: PLC0415 - as above

        if len(text) > MAX_TOKEN_CHARS or not text.isascii():
            raise _refused("it is too long")
        try:
            header = jws.extract_compact(text.encode("ascii")).headers()
        except (JoseError, ValueError, TypeError):
            raise _refused("it is not a signed token") from None
        key_id = header.get("kid")
        if header.get("alg") not in ALGORITHMS:
            raise _refused("its signature is of a kind that is not accepted (alg)")
        if key_id is not None and not _is_text(key_id):
            raise _refused("it names no key (kid)")
        keys = await self._provider.keys()
        if key_id is not None and all(key.kid != key_id for key in keys):
            keys = await self._provider.keys(newer=True)
        try:
            return jwt.decode(text, keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError, TypeError):
            raise _refused("its signature is not by a key of the provider") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT_CHARS


def _require_subject(claims: JsonObject) -> None:
    if not _is_text(claims.get("sub")):
        raise _refused("it names nobody (sub)")


def _reason(error: Exception) -> str:
    """Return which claim is wrong, in the library's words: they never quote its value."""
    return str(getattr(error, "description", "") or "a claim is malformed")[:200]


def _refused(why: str) -> SignInRefused:
    return SignInRefused(
        f"The token is not accepted: {why.rstrip('.')}.", fix="sign in again to get a new one"
    )
