"""Credentials of the TCP listener: the bearer `TokenFile`, `LaunchTokens` and `CookieSessions`.

Nothing here keeps a secret in clear longer than needed: what is remembered is a digest, what is
compared is two digests in constant time, and what expires is measured on the monotonic clock, so a
jump of wall time neither ends nor prolongs anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kaged.base import Clock, KagedError

TOKEN_BYTES = 32
MIN_TOKEN_CHARS = 32
MAX_TOKEN_CHARS = 512
LAUNCH_LIFETIME_S = 60.0
MAX_LAUNCH_TOKENS = 16
SESSION_LIFETIME_S = 12 * 3600.0
MAX_COOKIE_SESSIONS = 64


class TokenFileUnusable(KagedError):
    """The bearer token file cannot be trusted or read; nobody gets in over TCP with it."""

    code: ClassVar[str] = "token_file_unusable"


class LaunchTokenInvalid(KagedError):
    """The launch token is unknown, used or expired. Callers cannot tell which."""

    code: ClassVar[str] = "launch_token_invalid"


class TokenFile:
    """The operator's bearer token: a 0600 file that the CLI shows and the daemon compares with."""

    def __init__(self, path: Path, digest: bytes) -> None:
        self.path = path
        self._digest = digest

    @classmethod
    def open(cls, path: Path, owner_uid: int) -> TokenFile:
        """Read the token, or make one when there is none.

        Raises:
            TokenFileUnusable: the file is not a plain file of `owner_uid` that only they can read,
                holds no usable token, or cannot be read or written.
        """
        try:
            if not os.path.lexists(path):
                write_secret(path, secrets.token_urlsafe(TOKEN_BYTES))
            return cls(path, _digest(read_token(path, owner_uid)))
        except OSError as error:
            raise TokenFileUnusable(
                f"Cannot use the token file {path}: {error.strerror}.",
                fix=f"Make {path} readable and writable for the user who runs the daemon.",
                path=str(path),
            ) from error

    def matches(self, token: str) -> bool:
        """Return whether `token` is the operator's, in constant time."""
        return hmac.compare_digest(_digest(token), self._digest)

    def rotate(self) -> str:
        """Replace the token; the old one stops working with this call. Gives the new one."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            write_secret(self.path, token)
        except OSError as error:
            raise TokenFileUnusable(
                f"Cannot write the token file {self.path}: {error.strerror}.",
                fix=f"Make {self.path.parent} writable for the user who runs the daemon.",
                path=str(self.path),
            ) from error
        self._digest = _digest(token)
        return token


def read_token(path: Path, owner_uid: int) -> str:
    """Read the bearer token out of its file.

    Raises:
        TokenFileUnusable: see `TokenFile.open`.
        OSError: the file cannot be opened.
    """
    # O_NOFOLLOW and fstat on the open descriptor: what is judged is what is read.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise _unusable(path, "is not a plain file", f"Remove {path}; a new one is made.")
        if info.st_uid != owner_uid:
            raise _unusable(
                path, f"belongs to uid {info.st_uid}", f"chown {owner_uid} {path} or remove it."
            )
        if info.st_mode & 0o077:
            raise _unusable(
                path,
                f"can be read by others (mode {stat.S_IMODE(info.st_mode):04o})",
                f"chmod 600 {path}, then rotate it with `kaged daemon token --rotate`.",
            )
        raw = file.read(MAX_TOKEN_CHARS + 2)
    try:
        token = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS or not token.isprintable():
        raise _unusable(path, "holds no usable token", f"Remove {path}; a new one is made.")
    return token


def write_secret(path: Path, text: str) -> None:
    """Put `text` into a 0600 file in one step: readers see the old content or the new, no mix."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one worth telling
            fresh.unlink()
        raise


@dataclass(frozen=True, slots=True)
class LaunchToken:
    """A fresh launch token in clear, for the one URL it goes into."""

    value: str
    lifetime_s: float


class LaunchTokens:
    """One-time tokens for the launch URL: each opens one browser session, within a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expiry: dict[bytes, float] = {}

    def issue(self) -> LaunchToken:
        """Make a token. The oldest unused one ends when there are too many."""
        _drop_expired(self._expiry, self._clock)
        while len(self._expiry) >= MAX_LAUNCH_TOKENS:
            self._expiry.pop(next(iter(self._expiry)))
        value = secrets.token_urlsafe(TOKEN_BYTES)
        self._expiry[_digest(value)] = self._clock.monotonic_s() + LAUNCH_LIFETIME_S
        return LaunchToken(value, LAUNCH_LIFETIME_S)

    def redeem(self, value: str) -> None:
        """Use a token up. Raises LaunchTokenInvalid unless it was fresh."""
        expiry = self._expiry.pop(_digest(value), None)
        if expiry is None or self._clock.monotonic_s() >= expiry:
            raise LaunchTokenInvalid(
                "This launch link was used already, is too old, or was never given out.",
                fix="Ask for a new one with `kaged daemon open`.",
            )


class CookieSessions:
    """Browser sessions: the cookie's value is a random key, remembered by its digest only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expiry: dict[bytes, float] = {}

    def open(self) -> str:
        """Start a session and return the cookie value."""
        _drop_expired(self._expiry, self._clock)
        while len(self._expiry) >= MAX_COOKIE_SESSIONS:
            self._expiry.pop(next(iter(self._expiry)))
        value = secrets.token_urlsafe(TOKEN_BYTES)
        self._expiry[_digest(value)] = self._clock.monotonic_s() + SESSION_LIFETIME_S
        return value

    def valid(self, value: str) -> bool:
        """Return whether `value` names a session that still lives."""
        expiry = self._expiry.get(_digest(value))
        return expiry is not None and self._clock.monotonic_s() < expiry

    def close(self, value: str) -> None:
        """End a session; unknown values are no error, so that signing out twice is fine."""
        self._expiry.pop(_digest(value), None)

    def close_all(self) -> None:
        """End every session, as rotating the token does."""
        self._expiry.clear()


def _drop_expired(expiry: dict[bytes, float], clock: Clock) -> None:
    now = clock.monotonic_s()
    for key in [key for key, ends in expiry.items() if now >= ends]:
        del expiry[key]


def _digest(value: str) -> bytes:
    # Values are 256 random bits, so a plain hash is enough: there is nothing to guess offline.
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def _unusable(path: Path, why: str, fix: str) -> TokenFileUnusable:
    return TokenFileUnusable(f"The token file {path} {why}.", fix=fix, path=str(path))
