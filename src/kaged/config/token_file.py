"""`TokenFile`: the operator's bearer token, kept in a file that only they can read.

What is remembered is a digest, and what is compared is two digests in constant time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from kaged.base import KagedError
from kaged.config.locations import Locations

TOKEN_BYTES = 32
MIN_TOKEN_CHARS = 32
MAX_TOKEN_CHARS = 512


class TokenFile:
    """The operator's bearer token: a 0600 file that the CLI shows and the daemon compares with."""

    def __init__(self, path: Path, digest: bytes) -> None:
        self.path = path
        self._digest = digest

    @classmethod
    def open(cls, path: Path, owner_uid: int) -> TokenFile:
        """Read the token, or make one when there is none.

        Raises:
            KagedError: `token_file_unusable`; the file is not a plain file of `owner_uid` that
                only they can read,
                holds no usable token, or cannot be read or written.
        """
        try:
            if not os.path.lexists(path):
                write_secret(path, secrets.token_urlsafe(TOKEN_BYTES))
            return cls(path, digest_secret(read_token(path, owner_uid)))
        except OSError as error:
            raise KagedError(
                f"Cannot use the token file {path}: {error.strerror}.",
                code="token_file_unusable",
                fix=f"Make {path} readable and writable for the user who runs the daemon.",
                path=str(path),
            ) from error

    def matches(self, token: str) -> bool:
        """Return whether `token` is the operator's, in constant time."""
        return hmac.compare_digest(digest_secret(token), self._digest)

    def rotate(self) -> str:
        """Replace the token; the old one stops working with this call. Gives the new one."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            write_secret(self.path, token)
        except OSError as error:
            raise KagedError(
                f"Cannot write the token file {self.path}: {error.strerror}.",
                code="token_file_unusable",
                fix=f"Make {self.path.parent} writable for the user who runs the daemon.",
                path=str(self.path),
            ) from error
        self._digest = digest_secret(token)
        return token


def read_token(path: Path, owner_uid: int) -> str:
    """Read the bearer token out of its file.

    Raises:
        KagedError: `token_file_unusable`; see `TokenFile.open`.
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


def digest_secret(value: str) -> bytes:
    """Return what is kept of a token in place of it."""
    # Values are 256 random bits, so a plain hash is enough: there is nothing to guess offline.
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def _unusable(path: Path, why: str, fix: str) -> KagedError:
    return KagedError(
        f"The token file {path} {why}.", code="token_file_unusable", fix=fix, path=str(path)
    )


def token_file(places: Locations) -> Path:
    """The bearer token's file. It does not move with `[daemon] home`, so the CLI finds it."""
    return places.state_dir / "http-token"
