"""`Logins`: what `kaged login` keeps, for this user only, one entry for each daemon's URL."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, field
from typing import Any, Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.private_file import require_private
from kaged.config.locations import Locations, ensure_private_dir

FILE: Final = "logins.json"
_MODE: Final = 0o600
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SavedLogin:
    """A sign-in at a provider, with the tokens that it gave for one daemon."""

    issuer: str
    client_id: str
    token_endpoint: str
    revocation_endpoint: str | None
    resource: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    expires_at_ms: int


class Logins:
    """The sign-ins of this user, in one private file."""

    def __init__(self, places: Locations) -> None:
        self.path = places.state_dir / FILE

    def get(self, url: str) -> SavedLogin | None:
        """Return the sign-in for a daemon.

        Raises:
            KagedError: `logins_invalid`; the file is not one of ours, or others can read it.
        """
        kept = self._read().get(url)
        try:
            return None if kept is None else SavedLogin(**kept)
        except TypeError:
            raise self._invalid() from None

    def put(self, url: str, login: SavedLogin | None) -> None:
        """Keep a sign-in in place of the one before; None forgets it."""
        found = self._read()
        if login is None:
            found.pop(url, None)
        else:
            found[url] = asdict(login)
        fresh = self.path.with_suffix(".new")
        with os.fdopen(os.open(fresh, _FLAGS, _MODE), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), _MODE)
            json.dump(found, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other commands of this user out: a refresh token is used once."""
        ensure_private_dir(self.path.parent)
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _read(self) -> dict[str, Any]:
        require_private(self.path, "logins_invalid")
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, OSError):
            raise self._invalid() from None
        if not isinstance(found, dict):
            raise self._invalid()
        return found

    def _invalid(self) -> KagedError:
        return KagedError(
            f"{self.path} cannot be read.",
            code="logins_invalid",
            fix=f"Delete {self.path} and sign in again with `kaged login`.",
        )
