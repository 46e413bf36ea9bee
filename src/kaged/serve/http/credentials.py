"""Credentials of browsers on the TCP listener: `LaunchTokens` and `CookieSessions`.

Nothing here keeps a secret in clear longer than needed: what is remembered is a digest, what is
compared is two digests in constant time, and what expires is measured on the monotonic clock, so a
jump of wall time neither ends nor prolongs anything.
"""

from __future__ import annotations

import secrets
from typing import ClassVar

from kaged.base import Clock, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.token_file import TOKEN_BYTES, digest_secret

LAUNCH_LIFETIME_S = 60.0
MAX_LAUNCH_TOKENS = 16
SESSION_LIFETIME_S = 12 * 3600.0
MAX_COOKIE_SESSIONS = 64


class _ExpiringKeys:
    """Random keys that end by themselves; only their digests are remembered."""

    lifetime_s: ClassVar[float]
    limit: ClassVar[int]

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expiry: dict[bytes, float] = {}

    def open(self) -> str:
        """Make a key. The oldest one ends when there are too many."""
        now = self._clock.monotonic_s()
        for key in [key for key, ends in self._expiry.items() if now >= ends]:
            del self._expiry[key]
        while len(self._expiry) >= self.limit:
            self._expiry.pop(next(iter(self._expiry)))
        value = secrets.token_urlsafe(TOKEN_BYTES)
        self._expiry[digest_secret(value)] = now + self.lifetime_s
        return value

    def valid(self, value: str) -> bool:
        """Return whether `value` is a key that has not ended."""
        expiry = self._expiry.get(digest_secret(value))
        return expiry is not None and self._clock.monotonic_s() < expiry

    def close(self, value: str) -> None:
        """End a key; unknown values are no error, so that signing out twice is fine."""
        self._expiry.pop(digest_secret(value), None)

    def close_all(self) -> None:
        """End every key, as rotating the token does."""
        self._expiry.clear()


class CookieSessions(_ExpiringKeys):
    """Browser sessions: the cookie's value is the key."""

    lifetime_s = SESSION_LIFETIME_S
    limit = MAX_COOKIE_SESSIONS


@dataclass(frozen=True, slots=True)
class LaunchToken:
    """A fresh launch token in clear, for the one URL it goes into."""

    value: str
    lifetime_s: float


class LaunchTokens(_ExpiringKeys):
    """One-time tokens for the launch URL: each opens one browser session, within a minute."""

    lifetime_s = LAUNCH_LIFETIME_S
    limit = MAX_LAUNCH_TOKENS

    def issue(self) -> LaunchToken:
        """Make a token. The oldest unused one ends when there are too many."""
        return LaunchToken(self.open(), self.lifetime_s)

    def redeem(self, value: str) -> None:
        """Use a token up. Raises `launch_token_invalid` unless it was fresh."""
        fresh = self.valid(value)
        self.close(value)
        if not fresh:
            raise KagedError(
                "This launch link was used already, is too old, or was never given out.",
                code="launch_token_invalid",
                fix="Ask for a new one with `kaged daemon open`.",
            )
