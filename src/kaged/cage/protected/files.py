"""Files below a folder that a guest may change at any moment: read, replaced and moved away.

Every name on the way is opened without following links, so that a link which is swapped in makes
the step fail instead of leading it out of the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import stat
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass

MAX_KEPT_BYTES: Final = 1024 * 1024
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_RENAME_EXCHANGE: Final = 2
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Content:
    """What a protected file holds; `data` None is one that is too large or no regular file."""

    data: bytes | None
    mode: int
    link: str | None = None


@contextlib.contextmanager
def open_folder(root: str, parts: Sequence[str]) -> Generator[int]:
    """Open a folder below `root`. Raises OSError when it is none, or a link leads there."""
    fd = os.open(root, _FOLDER)
    try:
        for name in parts:
            below = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def read_content(root: str, parts: Sequence[str]) -> Content:
    """Return what lies at a path. Raises OSError."""
    with open_folder(root, parts[:-1]) as folder:
        entry = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(entry.st_mode):
            return Content(None, entry.st_mode, os.readlink(parts[-1], dir_fd=folder))
        if not stat.S_ISREG(entry.st_mode) or entry.st_size > MAX_KEPT_BYTES:
            return Content(None, entry.st_mode)
        fd = os.open(parts[-1], _FILE, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_KEPT_BYTES + 1)
    return Content(data if len(data) <= MAX_KEPT_BYTES else None, mode)


def put_content(root: str, parts: Sequence[str], data: bytes, mode: int) -> None:
    """Put a content in place of whatever lies there, in one step. Raises OSError."""
    with open_folder(root, parts[:-1]) as folder, _fresh_file(folder, data, mode) as name:
        _step_aside(parts[-1], folder)
        os.rename(name, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)


def swap_content(root: str, parts: Sequence[str], data: bytes, mode: int) -> bytes | None:
    """Put a content in place of a file, in one step, and return what the file was then.

    None where there was no plain file, or the file system cannot swap. Raises OSError.
    """
    with open_folder(root, parts[:-1]) as folder, _fresh_file(folder, data, mode) as name:
        if not _exchange(folder, name, parts[-1]):
            _step_aside(parts[-1], folder)
            os.rename(name, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            return None
        try:
            fd = os.open(name, _FILE, dir_fd=folder)
        except OSError:  # a link; or a folder, which is nothing to anybody under this name
            return None
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(MAX_KEPT_BYTES + 1)[:MAX_KEPT_BYTES]


@contextlib.contextmanager
def _fresh_file(folder: int, data: bytes, mode: int) -> Generator[str]:
    """Make a file under a name of its own; what has that name afterwards is removed."""
    owner = os.fstat(folder)
    name = f".kaged-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        yield name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _exchange(folder: int, one: str, other: str) -> bool:
    """Let two names of a folder change places; return whether that could be done."""
    call = getattr(_LIBC, "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    return call is not None and call(folder, names[0], folder, names[1], _RENAME_EXCHANGE) == 0


def move_away(root: str, parts: Sequence[str], floor: int, kept_in: Path | None) -> Path | None:
    """Move a file out of the tree, with the folders above it that are empty then.

    Folders go down to `floor` names below the root. Returns where its content is kept, which it is
    not without a `kept_in`. Raises OSError.
    """
    place = None
    if kept_in is not None:
        content = read_content(root, parts)
        kept_in.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = os.fsencode(parts[-1][:80].lstrip(".")).decode("utf-8", "replace")
        place = kept_in / f"{secrets.token_hex(6)}-{name}"
        text = content.data if content.link is None else os.fsencode(f"a link to {content.link}\n")
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text if text is not None else b"")
    with open_folder(root, parts[:-1]) as folder:
        _step_aside(parts[-1], folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=folder)
    for size in range(len(parts) - 1, floor, -1):
        try:
            with open_folder(root, parts[: size - 1]) as folder:
                os.rmdir(parts[size - 1], dir_fd=folder)
        except OSError:
            break
    return place


def make_folder(root: str, parts: Sequence[str]) -> bool:
    """Make a folder where there is none; return whether it is there now."""
    try:
        with open_folder(root, parts[:-1]) as folder:
            os.mkdir(parts[-1], 0o755, dir_fd=folder)
            if os.geteuid() == 0:
                owner = os.fstat(folder)
                os.chown(
                    parts[-1], owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False
                )
    except OSError:
        return False
    return True


def make_file(root: str, parts: Sequence[str]) -> None:
    """Make an empty file where there is none and a folder for it is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError), open_folder(root, parts[:-1]) as folder:
        owner = os.fstat(folder)
        fd = os.open(parts[-1], flags, 0o644, dir_fd=folder)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, owner.st_uid, owner.st_gid)
        finally:
            os.close(fd)


def forget_oldest(kept_in: Path, most: int) -> None:
    """Keep the newest files of a folder only. Raises OSError."""
    with os.scandir(kept_in) as entries:
        files = [(one.stat().st_mtime_ns, one.path) for one in entries if one.is_file()]
    for _, path in sorted(files)[: max(len(files) - most, 0)]:
        Path(path).unlink(missing_ok=True)


def _step_aside(name: str, folder: int) -> None:
    """Rename a folder that lies where a file belongs to what means nothing to anybody.

    It is not emptied: a guest can nest folders deeper than a process can follow.
    """
    try:
        entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(entry.st_mode):
        aside = f"kaged-moved-{secrets.token_hex(8)}"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
