"""`FileContent`: a file's bytes with their hash and identity; `read_content`, `FileIdentity`."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final

from kaged.base.file_stamp import Stamp, stamp_of
from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.errors import FileTooLarge, WrongKind
from kaged.workspace.guard import PathGuard, kind_of
from kaged.workspace.path import ProjectPath

CHUNK_BYTES: Final = 1024 * 1024
MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is taken into memory whole, to edit or overwrite it."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells one state of one file from another without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> FileIdentity:
        """Take the identity out of a stat result."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FileContent:
    """The whole content of a regular file."""

    data: bytes
    sha256: str
    mode: int
    size: int
    identity: FileIdentity
    stamp: Stamp | None = None
    """What it is known by until it changes; None if it had changed just before it was read."""


def sha256_of(data: bytes) -> str:
    """Return the hash that read log and writer compare contents by."""
    return hashlib.sha256(data).hexdigest()


def read_content(
    guard: PathGuard, path: ProjectPath, limit_bytes: int = MAX_TEXT_BYTES
) -> FileContent:
    """Read a regular file whole. Blocks on the disk.

    Raises:
        FileMissing, PathRefused, FileUnreadable: as `PathGuard.open_read`.
        WrongKind: it is a directory or no file at all.
        FileTooLarge: it has more than `limit_bytes`.
    """
    handle = guard.open_read(path)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise WrongKind(path.relative, kind_of(info.st_mode), fix="name a file")
        if info.st_size > limit_bytes:
            raise FileTooLarge(path.relative, info.st_size, limit_bytes)
        stamp = stamp_of(info)
        data = _read_all(handle, info.st_size, limit_bytes)
        if len(data) > limit_bytes:
            raise FileTooLarge(path.relative, len(data), limit_bytes)
    finally:
        os.close(handle)
    # The identity from before the reading: if somebody writes meanwhile, the writer will notice.
    identity = FileIdentity.of(info)
    mode = stat.S_IMODE(info.st_mode)
    return FileContent(data, sha256_of(data), mode, len(data), identity, stamp)


def _read_all(handle: int, expected: int, limit_bytes: int) -> bytes:
    # One byte more than expected: the usual file is read with two system calls.
    first = os.read(handle, min(expected + 1, limit_bytes + 1))
    if len(first) == expected:
        return first
    chunks = [first]
    total = len(first)
    while total <= limit_bytes and (chunk := os.read(handle, CHUNK_BYTES)):
        chunks.append(chunk)
        total += len(chunk)
    return b"".join(chunks)
