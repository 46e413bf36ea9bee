"""A new content on its way to its name: `stage`, `put`, `take_back`, `discard`.

The bytes go to a temporary file in the directory of the target. `put` gives it the target's name
in one step and keeps the old file under the temporary name, so that `take_back` needs no space and
cannot fail for want of it. All names are relative to a directory that is held open.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.base.plain_files import write_over
from kaged.workspace.content import FileIdentity
from kaged.workspace.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, rename_with

TEMP_PREFIX: Final = ".kaged-tmp-"
LOCK: Final = ".lock"
LOCK_TRIES: Final = 20
LOCK_PAUSE_S: Final = 0.01
READ_BYTES: Final = 1024 * 1024
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BOTH_WAYS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KEPT_BITS: Final = 0o1777  # never setuid or setgid: the new content is the agent's
_NO_SUCH_RENAME: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_NAME_TRIES: Final = 100
_numbers = itertools.count()


class Displaced(Exception):
    """The file that was to be replaced is not the one that was looked at; it is back in place."""


class Locked(Exception):
    """Somebody else has the file locked, as git does it, and did not let go in time."""


@dataclass(slots=True)
class Staged:
    """One file of a change. `temp` is the name of the new content, later of the old one."""

    name: str
    temp: str | None
    expected: FileIdentity | None
    """What has to be there: None for nothing at all."""
    exact: bool = True
    """Whether the file to be replaced must be in the very state of `expected`."""
    in_place: bool = False
    """Whether the old file stays and gets the new content; `temp` then holds the old one."""
    done: bool = False


def stage(
    directory: int,
    name: str,
    data: bytes,
    like: os.stat_result | None,
    *,
    mode: int | None = None,
    flush: bool = True,
) -> str:
    """Write the new content beside its target, with mode and owner of `like`; return its name.

    `mode` stands in place of the mode that `like` has, or that a new file would get.

    Raises:
        OSError: the disk is full, permission is missing and the like; nothing is left behind.
    """
    handle, temp = _new_file(directory, 0o600 if like is not None else 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if like is not None:
            _dress(handle, like, directory, name)
        if mode is not None:
            os.fchmod(handle, mode & _KEPT_BITS)
        if flush:
            os.fsync(handle)
    except BaseException:
        discard(directory, temp)
        raise
    finally:
        os.close(handle)
    return temp


def put(directory: int, item: Staged) -> None:
    """Rename the staged content to its name, or remove the file when there is no content.

    Raises:
        Displaced: somebody changed, removed or made the file meanwhile.
        Locked: the file is to keep its place, and somebody has it locked.
        OSError: the system does not let us; the target is as it was.
    """
    if item.expected is None:
        _put_new(directory, item)
    elif item.temp is None:
        _take_away(directory, item)
    elif item.in_place:
        _exchange_contents(directory, item, item.temp, checked=True)
    else:
        _put_over(directory, item, item.temp)
    item.done = True


def take_back(directory: int, item: Staged) -> None:
    """Undo `put`: the old file has its name again, the new content is gone or staged.

    Raises:
        OSError: the system does not let us.
    """
    if item.expected is None:
        os.unlink(item.name, dir_fd=directory)
        item.temp = None
    else:
        assert item.temp is not None
        if item.in_place and _is_there(directory, item.name):
            _exchange_contents(directory, item, item.temp, checked=False)
            discard(directory, item.temp)
        else:
            os.rename(item.temp, item.name, src_dir_fd=directory, dst_dir_fd=directory)
        item.temp = None
    item.done = False


def discard(directory: int, temp: str) -> None:
    """Remove a temporary file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temp, dir_fd=directory)


def _new_file(directory: int, mode: int) -> tuple[int, str]:
    for _ in range(_NAME_TRIES):
        temp = f"{TEMP_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            return os.open(temp, _NEW, mode, dir_fd=directory), temp
        except FileExistsError:
            continue  # left over by a process of the same number that was killed
    raise FileExistsError(errno.EEXIST, "no free temporary name")


def _free_name(directory: int) -> str:
    handle, temp = _new_file(directory, 0o600)
    os.close(handle)
    return temp


def _dress(handle: int, like: os.stat_result, directory: int, name: str) -> None:
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(handle, like.st_uid, like.st_gid)
    os.fchmod(handle, stat.S_IMODE(like.st_mode) & _KEPT_BITS)
    source = f"/proc/self/fd/{directory}/{name}"
    for key in _attributes(source):
        if key.startswith("user.") or key == "system.posix_acl_access":
            with contextlib.suppress(OSError):  # gone meanwhile, or not kept by this file system
                os.setxattr(handle, key, os.getxattr(source, key, follow_symlinks=False))


def _attributes(source: str) -> list[str]:
    try:
        return os.listxattr(source, follow_symlinks=False)
    except OSError:
        return []  # the file system has none


def _put_new(directory: int, item: Staged) -> None:
    assert item.temp is not None
    try:
        try:
            rename_with(RENAME_NOREPLACE, item.temp, directory, item.name, directory)
        except OSError as error:
            if error.errno not in _NO_SUCH_RENAME:
                raise
            os.link(item.temp, item.name, src_dir_fd=directory, dst_dir_fd=directory)
            os.unlink(item.temp, dir_fd=directory)
    except FileExistsError as error:
        raise Displaced from error
    item.temp = None


def _exchange_contents(directory: int, item: Staged, temp: str, *, checked: bool) -> None:
    """Let a file and its temporary one change contents, each staying what it is."""
    with contextlib.ExitStack() as stack:
        fds: list[int] = []
        for name in (item.name, temp):
            try:
                fd = os.open(name, _BOTH_WAYS, dir_fd=directory)
            except FileNotFoundError as error:
                raise Displaced from error
            stack.callback(os.close, fd)
            fds.append(fd)
        new = _read_whole(fds[1])
        lock = _lock(directory, item.name, new)
        try:
            # Only now nobody else writes it.
            if checked and not _is_expected(directory, item.name, item):
                raise Displaced
            old = _read_whole(fds[0])
            write_over(fds[0], old, new)
            os.fsync(fds[0])
            write_over(fds[1], new, old)
        finally:
            discard(directory, lock)


def _lock(directory: int, name: str, data: bytes) -> str:
    """Lock a file as git does, with the new content in the lock should we be killed."""
    lock = f"{name}{LOCK}"
    for left in reversed(range(LOCK_TRIES)):
        try:
            with os.fdopen(os.open(lock, _NEW, 0o600, dir_fd=directory), "wb") as file:
                file.write(data)
        except FileExistsError:
            if left:
                time.sleep(LOCK_PAUSE_S)  # on a thread; whoever publishes a copy is quicker
        else:
            return lock
    raise Locked


def _read_whole(fd: int) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while piece := os.pread(fd, READ_BYTES, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def _is_there(directory: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _put_over(directory: int, item: Staged, temp: str) -> None:
    try:
        rename_with(RENAME_EXCHANGE, temp, directory, item.name, directory)
    except FileNotFoundError as error:
        raise Displaced from error
    except OSError as error:
        if error.errno not in _NO_SUCH_RENAME:
            raise
        _put_over_by_link(directory, item, temp)
        return
    if not _is_expected(directory, temp, item):
        # Not the file we looked at: both go back to where they were, in one step.
        rename_with(RENAME_EXCHANGE, temp, directory, item.name, directory)
        raise Displaced


def _put_over_by_link(directory: int, item: Staged, temp: str) -> None:
    """For file systems without exchange: the old file gets a second name first."""
    aside = _free_name(directory)
    try:
        os.unlink(aside, dir_fd=directory)
        os.link(item.name, aside, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        if not _is_expected(directory, aside, item):
            raise Displaced
        os.rename(temp, item.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as error:
        discard(directory, aside)
        if isinstance(error, FileNotFoundError):
            raise Displaced from error
        raise
    item.temp = aside


def _take_away(directory: int, item: Staged) -> None:
    aside = _free_name(directory)
    try:
        os.rename(item.name, aside, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as error:
        discard(directory, aside)
        if isinstance(error, FileNotFoundError):
            raise Displaced from error
        raise
    if not _is_expected(directory, aside, item):
        os.rename(aside, item.name, src_dir_fd=directory, dst_dir_fd=directory)
        raise Displaced
    item.temp = aside


def _is_expected(directory: int, name: str, item: Staged) -> bool:
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        return False
    return not item.exact or FileIdentity.of(info) == item.expected
