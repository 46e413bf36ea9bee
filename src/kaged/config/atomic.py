"""Writing a file whole or not at all: `replace_file`, `file_lock`.

The new text goes to a temporary file beside the target, is flushed to the disk and takes the
target's name in one step; a failure anywhere leaves the old file as it was. A symbolic link is
followed first: the file it leads to is replaced and the link stays. Mode and owner are kept;
extended attributes and ACLs are not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Final

from kaged.base import KagedError

PRIVATE_MODE: Final = 0o600
_TEMP_PREFIX: Final = ".kaged-tmp-"
_process_lock = threading.Lock()


@contextlib.contextmanager
def file_lock(target: Path) -> Generator[None]:
    """Keep other writers of this file's directory out, in this process and in others.

    Raises:
        KagedError: `config_busy`; another process holds the lock; it is not waited for.
        KagedError: `config_write_failed`; there is no such directory.
    """
    with _process_lock:
        try:
            handle = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise KagedError(
                f"{target.parent} cannot be opened: {error.strerror}",
                code="config_write_failed",
                fix="make the directory",
            ) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise KagedError(
                    f"{target} is being written by another program",
                    code="config_busy",
                    fix="try again",
                ) from error
            yield
        finally:
            os.close(handle)


def replace_file(target: Path, data: bytes, before: os.stat_result | None) -> None:
    """Put `data` in place of the file at `target`, which must be no link.

    `before` is what the file looked like when it was read, None if there was none; a file that
    looks different now is left alone.

    Raises:
        KagedError: `config_changed`; somebody else changed the file meanwhile.
        KagedError: `config_write_failed`; the disk is full, permission is missing and the like.
    """
    # A name that no other writer picks: the lock is held, and leftovers of a crash are replaced.
    temporary = target.with_name(f"{_TEMP_PREFIX}{target.name}-{os.getpid()}")
    try:
        _write(temporary, data, before)
        _require_unchanged(target, before)
        temporary.replace(target)
    except OSError as error:
        raise KagedError(
            f"{target} could not be written: {error.strerror}",
            code="config_write_failed",
            fix="check free space and permissions; the old file is untouched",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    try:
        _sync_directory(target.parent)
    except OSError as error:
        raise KagedError(
            f"{target} was written, but may be the old one again after a power cut: "
            f"{error.strerror}",
            code="config_write_failed",
            fix="check the disk and write again",
        ) from error


def _write(temporary: Path, data: bytes, before: os.stat_result | None) -> None:
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, PRIVATE_MODE)
    try:
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, stat.S_IMODE(before.st_mode))
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _require_unchanged(target: Path, before: os.stat_result | None) -> None:
    try:
        now = os.lstat(target)
    except FileNotFoundError:
        now = None
    if before is None or now is None:
        same = before is None and now is None
    else:
        same = (now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size) == (
            before.st_dev,
            before.st_ino,
            before.st_mtime_ns,
            before.st_size,
        )
    if not same:
        raise KagedError(
            f"{target} was changed by another program meanwhile",
            code="config_changed",
            fix="try again",
        )


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
