"""`DirectoryHandles`: the directories of a change, each opened once without following links."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NoReturn

from kaged.workspace.errors import (
    FileMissing,
    FileWriteFailed,
    PathRefused,
    ProjectRootInvalid,
    WrongKind,
)
from kaged.workspace.path import ProjectPath
from kaged.workspace.syscalls import open_place

MAX_OPEN_PLACES: Final = 64
_BELOW: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryHandles:
    """Directory descriptors by resolved path, for the time of one change. Close it at the end.

    A directory that was opened once must be the same one when it is asked for again, even if its
    descriptor had to be closed in between to save descriptors.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: dict[str, int] = {}
        self._known: dict[str, tuple[int, int]] = {}
        self.made: list[tuple[str, str]] = []
        """Directories that were made, as (parent, name), outermost first."""

    @contextmanager
    def parent_of(self, path: ProjectPath, *, make: bool = False) -> Generator[int]:
        """Yield a descriptor of the directory that holds the file.

        Raises:
            FileMissing: it does not exist and was not to be made.
            WrongKind: something on the way is no directory.
            PathRefused: a link was swapped in, or the directory was swapped for another one.
            FileWriteFailed: the system does not let us make or open it.
            ProjectRootInvalid: the project itself is not there any more.
        """
        directory = parent_path(path)
        handle = self._open.get(directory)
        if handle is not None:
            yield handle
            return
        try:
            handle = self._make(directory, path) if make else self._again(directory, path)
        except OSError as error:
            refuse_place(path, error)
        if len(self._open) < MAX_OPEN_PLACES:
            self._open[directory] = handle
            yield handle
            return
        try:
            yield handle
        finally:
            os.close(handle)

    def close(self) -> None:
        """Close all descriptors."""
        for handle in self._open.values():
            os.close(handle)
        self._open.clear()

    def unmake(self) -> None:
        """Take away the directories that were made, as far as they are empty."""
        for directory, name in reversed(self.made):
            try:
                above = open_place(directory)
            except OSError:
                continue  # moved away meanwhile: no longer ours to remove
            try:
                os.rmdir(name, dir_fd=above)
            except OSError:
                continue  # somebody else put something into it
            finally:
                os.close(above)
        self.made.clear()

    def _again(self, directory: str, path: ProjectPath) -> int:
        handle = open_place(directory)
        try:
            info = os.fstat(handle)
            if not stat.S_ISDIR(info.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if self._known.setdefault(directory, (info.st_dev, info.st_ino)) != (
                info.st_dev,
                info.st_ino,
            ):
                raise PathRefused(
                    "its directory was replaced just now", path.requested, fix="try again"
                )
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _make(self, directory: str, path: ProjectPath) -> int:
        missing: list[str] = []
        above = directory
        while True:
            try:
                handle = self._again(above, path)
                break
            except FileNotFoundError:
                if above == self._root:
                    # Never made anew: what it was and who may use it is not ours to decide.
                    raise ProjectRootInvalid("the project's directory no longer exists") from None
                above, _, name = above.rpartition("/")
                above = above or "/"
                missing.append(name)
        try:
            for name in reversed(missing):
                try:
                    os.mkdir(name, 0o777, dir_fd=handle)
                    self.made.append((above, name))
                except FileExistsError:
                    pass  # another call made it first; whatever it is, it is opened strictly
                below = os.open(name, _BELOW, dir_fd=handle)
                os.close(handle)
                handle = below
                above = f"{above.rstrip('/')}/{name}"
                info = os.fstat(handle)
                self._known[above] = (info.st_dev, info.st_ino)
        except BaseException:
            os.close(handle)
            raise
        return handle


def parent_path(path: ProjectPath) -> str:
    """Return the resolved path of the directory that holds a file."""
    return path.resolved.rpartition("/")[0] or "/"


def name_of(path: ProjectPath) -> str:
    """Return the last component of a resolved path."""
    return path.resolved.rpartition("/")[2]


def refuse_place(path: ProjectPath, error: OSError) -> NoReturn:
    """Turn the system's word about a place into an error of ours.

    Raises:
        FileMissing, WrongKind, PathRefused, FileWriteFailed: as the number says.
    """
    if error.errno == errno.ENOENT:
        raise FileMissing(path.relative, requested=path.requested) from error
    if error.errno == errno.ENOTDIR:
        raise WrongKind(
            path.relative, "is below something that is no directory", fix="name another path"
        ) from error
    if error.errno == errno.ELOOP:
        raise PathRefused(
            "a symbolic link in it leads nowhere or was changed just now",
            path.requested,
            fix="name the file itself",
        ) from error
    raise FileWriteFailed(path.relative, error.strerror or "unknown error") from error
