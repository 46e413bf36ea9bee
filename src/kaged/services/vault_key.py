"""`KeyRing`: the keys that credentials are encrypted with, kept away from the database.

The first place that has one counts: a systemd credential, the keyring of the desktop session when
the `keyring` library is installed, a file of mode 0600 beside the database.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, TypeAlias, assert_never

from kaged.audit.keyfile import write_private
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.providers import VaultKeyPlace

KEY_BYTES: Final = 32
KEY_ID_CHARS: Final = 16
RING_LIMIT_BYTES: Final = 64 * 1024
KEYS_LIMIT: Final = 64
CREDENTIAL_NAME: Final = "kaged-vault-key"
KEYRING_SERVICE: Final = "kaged"
PUT_BACK: Final = (
    "Put the key back from your backup and restart the daemon, or link the accounts again."
)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The key that new records are sealed with, and older ones that still open theirs."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)

    def with_keys_of(self, other: KeyRing | None) -> KeyRing:
        """Return a ring that opens what either ring opens; this one's key stays the current one."""
        return self if other is None else KeyRing(self.current, {**other.keys, **self.keys})

    def without(self, key_ids: frozenset[str]) -> KeyRing:
        """Return a ring without some keys, none of them the current one."""
        return KeyRing(self.current, {n: k for n, k in self.keys.items() if n not in key_ids})

    def with_new(self) -> KeyRing:
        """Return a ring with a fresh key in front."""
        fresh = new_ring()
        return KeyRing(fresh.current, {**self.keys, **fresh.keys})

    def only_current(self) -> KeyRing:
        """Return a ring without the older keys."""
        return KeyRing(self.current, {self.current: self.keys[self.current]})

    def to_text(self) -> str:
        """Write the ring as it is kept."""
        keys = {name: key.hex() for name, key in self.keys.items()}
        return json.dumps({"version": 1, "current": self.current, "keys": keys}) + "\n"


def new_ring() -> KeyRing:
    """Make a ring with one random key."""
    name = secrets.token_hex(KEY_ID_CHARS // 2)
    return KeyRing(name, {name: secrets.token_bytes(KEY_BYTES)})


def parse_ring(text: str, place: str) -> KeyRing:
    """Read a ring from its text.

    Raises:
        KagedError: `vault_key_invalid`; it is none; what it holds is not repeated.
    """
    try:
        found = json.loads(text)
        keys = {str(name): bytes.fromhex(key) for name, key in found["keys"].items()}
        ring = KeyRing(str(found["current"]), keys)
        sound = found["version"] == 1 and 0 < len(keys) <= KEYS_LIMIT and ring.current in keys
        lengths = all(len(k) == KEY_BYTES and len(n) == KEY_ID_CHARS for n, k in keys.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        sound, lengths, ring = False, False, new_ring()
    if not (sound and lengths):
        raise key_invalid(f"{place} holds no key of the vault", PUT_BACK, place=place)
    return ring


def key_invalid(message: str, fix: str | None = None, **data: str) -> KagedError:
    """Return the error for a key that cannot be used."""
    return KagedError(message, code="vault_key_invalid", fix=fix, **data)


class FileRing:
    """A file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)

    def load(self) -> KeyRing | None:
        """Read the file; a link, or a file that others can read, is refused."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            fix = "make it a plain file that belongs to the daemon's user"
            raise key_invalid(f"{self._path} cannot be opened: {error.strerror}", fix) from error
        try:
            facts = os.fstat(descriptor)
            # The start has looked at it already; what is judged here is what is read.
            if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077:
                raise key_invalid(
                    f"{self._path} must be a plain file that only its owner can read",
                    f"chmod 600 {self._path}, and think about who could have read it",
                )
            text = os.read(descriptor, RING_LIMIT_BYTES)
        finally:
            os.close(descriptor)
        return parse_ring(text.decode("utf-8", errors="replace"), self.place)

    def save(self, ring: KeyRing) -> None:
        """Write it anew in one step; a crash leaves the old ring or the new one."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._path, ring.to_text().encode(), replace=True)

    def is_there(self) -> bool:
        """Return whether there is anything of this name, readable or not."""
        return os.path.lexists(self._path)

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


class SystemdRing:
    """A credential that systemd hands to the service, decrypted by it; it cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CREDENTIAL_NAME
        self.place = f"the systemd credential {CREDENTIAL_NAME}"

    def load(self) -> KeyRing | None:
        """Read the credential."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise key_invalid(f"{self.place} cannot be read: {error}") from error
        return parse_ring(text[:RING_LIMIT_BYTES], self.place)

    def save(self, ring: KeyRing) -> None:
        """Refuse: systemd owns it."""
        raise key_invalid(
            f"{self.place} cannot be changed by the daemon",
            "put a ring with a new current key in front of the old one there, then restart",
        )


class SessionRing:
    """The keyring of the operator's desktop session, through the optional `keyring` library."""

    place = "the session's keyring"

    def __init__(self, account: str) -> None:
        self._account = account

    def load(self) -> KeyRing | None:
        """Read the entry; None when there is no library, no keyring or no entry."""
        library = _keyring_library()
        if library is None:
            return None
        try:
            text = library.get_password(KEYRING_SERVICE, self._account)
        # Boundary: back ends of the library raise whatever their desktop does.
        except BaseException as error:  # noqa: BLE001 - see above
            raise key_invalid(f"{self.place} does not answer: {type(error).__name__}") from None
        return None if text is None else parse_ring(text, self.place)

    def save(self, ring: KeyRing) -> None:
        """Write the entry."""
        library = _keyring_library()
        if library is None:
            fix = 'set [capabilities] vault_key = "file"'
            raise key_invalid("the keyring library is not installed", fix)
        try:
            library.set_password(KEYRING_SERVICE, self._account, ring.to_text())
        except BaseException as error:  # noqa: BLE001 - as in load
            raise key_invalid(f"{self.place} does not answer: {type(error).__name__}") from None


RingStore: TypeAlias = FileRing | SystemdRing | SessionRing
"""One place that may hold the ring: `place` for people, `load` and `save`.

`load` gives None when there is no ring; both raise `vault_key_invalid`.
"""


def _keyring_library() -> Any | None:
    import importlib  # noqa: PLC0415 - only hosts that use a session keyring need it

    try:
        return importlib.import_module("keyring")
    except ImportError:
        return None


def ring_stores(
    place: VaultKeyPlace, path: Path, environ: Mapping[str, str]
) -> tuple[RingStore, ...]:
    """Return the places to look in, in order; the first ring of all goes to the last one."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    match place:
        case VaultKeyPlace.FILE:
            return (FileRing(path),)
        case VaultKeyPlace.KEYRING:
            return (SessionRing(str(path)),)
        case VaultKeyPlace.SYSTEMD:
            return (SystemdRing(Path(directory or "/run/credentials/none")),)
        case VaultKeyPlace.AUTO:
            systemd = (SystemdRing(Path(directory)),) if directory else ()
            return (*systemd, FileRing(path))
        case _:
            assert_never(place)
