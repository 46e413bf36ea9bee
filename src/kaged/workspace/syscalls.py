"""Two system calls that Python does not offer: `openat2` without links, `renameat2` with flags."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from functools import cache
from typing import Final

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
_RESOLVE_NO_SYMLINKS: Final = 0x04
_SYS_OPENAT2: Final = 437  # the same number on every architecture that Python runs on
_AT_FDCWD: Final = -100
_PLACE: Final = os.O_PATH | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def has_openat2() -> bool:
    """Return whether the kernel offers `openat2` (Linux 5.6) and nothing filters it away."""
    try:
        os.close(_openat2("/", _PLACE))
    except OSError:
        return False
    return True


def open_place(path: str) -> int:
    """Open the place that an absolute path names, following no link in any component.

    The descriptor says which inode it is and serves as `dir_fd`; nothing can be read from it, and
    a device or FIFO is not opened by it.

    Raises:
        OSError: ELOOP when a component is a link; otherwise as `open`.
    """
    if has_openat2():
        return _openat2(path, _PLACE)
    return walk_place(path)


def walk_place(path: str) -> int:
    """Do as `open_place`, one component at a time, for kernels without `openat2`."""
    here = os.open("/", _PLACE | os.O_DIRECTORY)
    try:
        for part in path.split("/"):
            if part in {"", "."}:
                continue
            if part == "..":
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            below = os.open(part, _PLACE | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    except BaseException:
        os.close(here)
        raise
    return here


def _openat2(path: str, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_NO_SYMLINKS)
    raw = os.fsencode(path)
    handle = _libc().syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(raw),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(handle)


def rename_with(flags: int, old: str, old_dir: int, new: str, new_dir: int) -> None:
    """Rename with `RENAME_NOREPLACE` or `RENAME_EXCHANGE`, both names relative to directories.

    Raises:
        OSError: EEXIST for a taken name; EINVAL or ENOSYS where the file system has no such thing.
    """
    call = getattr(_libc(), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), new)
    done = call(
        ctypes.c_int(old_dir),
        ctypes.c_char_p(os.fsencode(old)),
        ctypes.c_int(new_dir),
        ctypes.c_char_p(os.fsencode(new)),
        ctypes.c_uint(flags),
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


def sync_filesystem(path: str) -> None:
    """Flush everything that is not on the disk yet of the file system that `path` is on.

    Raises:
        OSError: the disk reports an error.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc().syncfs(ctypes.c_int(handle)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)
