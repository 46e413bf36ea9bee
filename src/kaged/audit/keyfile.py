"""The two small files beside the database: the key (`audit.key`) and the head (`audit.head`)."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import msgspec

from kaged.audit.chain import GENESIS, KEY_BYTES, Anchor, ChainKey
from kaged.audit.errors import AuditKeyInvalid

KEY_FILE_LIMIT_BYTES = 4096
HEAD_FILE_LIMIT_BYTES = 4096

# Stands for a head file that cannot be read as one; no key holds it.
UNREADABLE = Anchor(0, GENESIS, 0, "", "")


class _HeadRecord(msgspec.Struct):
    version: int
    seq: int
    hash: str
    ts_ms: int
    key_id: str
    mac: str


def open_key(path: Path, *, chain_exists: bool) -> ChainKey:
    """Return the chain's key, made on first use.

    A key is made only for a new chain: with rows in the log and no key file, a fresh key would
    hide that none of the old rows can be checked any more.

    Raises:
        AuditKeyInvalid: missing for an existing chain, readable by others, or no key inside.
    """
    try:
        return load_key(path)
    except FileNotFoundError:
        if chain_exists:
            raise AuditKeyInvalid(
                f"the audit log has entries but its key file {path} is missing",
                fix="restore the key file from your backup; to go on without it, move the database "
                "away as well and a new log begins",
                path=str(path),
            ) from None
    return create_key(path)


def load_key(path: Path) -> ChainKey:
    """Read a key file.

    Raises:
        AuditKeyInvalid: readable by others, not a plain file, or no key inside.
        FileNotFoundError: there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AuditKeyInvalid(
            f"the audit key file {path} cannot be opened: {error.strerror}",
            fix="make it a plain file that belongs to the daemon's user",
            path=str(path),
        ) from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077:
            raise AuditKeyInvalid(
                f"the audit key file {path} must be a plain file that only its owner can read",
                fix=f"chmod 600 {path}, and think about who could have read it",
                path=str(path),
            )
        text = os.read(descriptor, KEY_FILE_LIMIT_BYTES)
    finally:
        os.close(descriptor)
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
        return ChainKey(secret)
    except ValueError as error:
        raise AuditKeyInvalid(
            f"the audit key file {path} holds no key",
            fix=f"restore it from your backup; it is one line of {KEY_BYTES * 2} hex digits",
            path=str(path),
        ) from error


def create_key(path: Path) -> ChainKey:
    """Make a new random key file with mode 0600; an existing file is never overwritten."""
    secret = secrets.token_bytes(KEY_BYTES)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, f"{secret.hex()}\n".encode(), replace=False)
    return ChainKey(secret)


class HeadFile:
    """Where the newest anchor is kept outside the database, so that cutting rows there shows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Anchor | None:
        """Return the anchor, None if there is no file, `UNREADABLE` for one that is no anchor."""
        try:
            with self.path.open("rb") as file:
                text = file.read(HEAD_FILE_LIMIT_BYTES)
            record = msgspec.json.decode(text, type=_HeadRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError):
            return UNREADABLE
        return Anchor(record.seq, record.hash, record.ts_ms, record.key_id, record.mac)

    def write(self, anchor: Anchor) -> None:
        """Replace the file in one step; a crash leaves the old one or the new one."""
        record = _HeadRecord(1, *anchor)
        write_private(self.path, msgspec.json.encode(record) + b"\n", replace=True)


def write_private(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file of mode 0600 that is whole and on disk when this returns.

    Raises:
        FileExistsError: it exists and `replace` is false.
    """
    if not replace and path.exists():
        raise FileExistsError(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike rename, fails when someone else was first
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
