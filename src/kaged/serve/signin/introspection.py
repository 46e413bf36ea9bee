"""`TokenIntrospection`: whose access token this is, where only the provider can tell (RFC 7662).

An answer is believed for as long as the configuration says, so a token that was taken back counts
for that long at most. Only answers that let somebody in are kept: one that did not is asked again.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kaged.base import Clock, JsonObject
from kaged.config.token_file import digest_secret
from kaged.serve.signin.errors import SignInRefused, SignInUnavailable

MAX_KEPT: Final = 1024
MAX_AT_ONCE: Final = 8
"""How many tokens are asked about at the same time: whoever sends nonsense waits for others."""

_OPAQUE: Final = re.compile(r"[A-Za-z0-9._~+/-]{8,4096}=*")

AskProvider = Callable[[Mapping[str, str]], Awaitable[tuple[int, JsonObject]]]
"""Sends a form to the provider's introspection endpoint, as the client of this daemon."""


def is_signed(token: str) -> bool:
    """Return whether a token has the three parts of one that can be checked without asking."""
    return token.count(".") == 2


class TokenIntrospection:
    """Asks the provider about tokens, and remembers what it said for a while."""

    def __init__(self, ask: AskProvider, issuer: str, kept_s: int, clock: Clock) -> None:
        self._ask = ask
        self._issuer = issuer
        self._kept_s = kept_s
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, JsonObject]] = OrderedDict()
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def access_token(self, token: str, audiences: Sequence[str]) -> JsonObject:
        """Return the claims of a token that counts, for one of these audiences.

        Raises:
            SignInRefused: it does not, or is for something or somebody else.
            SignInUnavailable: the provider cannot be asked.
        """
        if _OPAQUE.fullmatch(token) is None:
            raise _refused("it is no token")
        key = digest_secret(token)
        kept = self._kept.get(key)
        if kept is None or kept[0] <= self._clock.monotonic_s():
            self._kept.pop(key, None)
            # When it is asked counts, not when the answer comes: that may take a while.
            ends_s = self._clock.monotonic_s() + self._kept_s
            self._kept[key] = kept = (ends_s, await self._asked(token))
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        claims = {"iss": self._issuer, **kept[1]}
        self._require(claims, audiences)
        return claims

    async def _asked(self, token: str) -> JsonObject:
        async with self._turns:
            status, body = await self._ask({"token": token, "token_type_hint": "access_token"})
        if status != 200:
            raise SignInUnavailable(
                f"Nobody can sign in now: the provider answers with status {status} when it is "
                "asked about a token.",
                fix="allow the client of [auth.oidc] to use the provider's introspection endpoint",
            )
        if body.get("active") is not True:
            raise _refused("the provider says that it does not count (any more)")
        return body

    def _require(self, claims: JsonObject, audiences: Sequence[str]) -> None:
        """Refuse what is not for this daemon, or not for a person. Raises SignInRefused."""
        said = claims.get("aud")
        named = [said] if isinstance(said, str) else said
        if not isinstance(named, list) or not any(one in audiences for one in named):
            raise _refused("it is for something else (aud)")
        if claims["iss"] != self._issuer:
            raise _refused("another provider gave it (iss)")
        if str(claims.get("token_type", "Bearer")).lower() != "bearer":
            raise _refused("it is bound to a key that was not shown (token_type)")
        ends = claims.get("exp")
        if not isinstance(ends, int) or ends * 1000 <= self._clock.now_ms():
            raise _refused("its time is over (exp)")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise _refused("it names nobody (sub)")
        if subject == claims.get("client_id"):
            raise _refused("it stands for a program, not for a person")


def _refused(why: str) -> SignInRefused:
    return SignInRefused(f"The token is not accepted: {why}.", fix="sign in again to get a new one")
