"""`PathGuard`: from an agent's text to a `ProjectPath`, and from there to an open file.

Resolving follows links and yields a path without any. Opening follows none: what was checked is
what is opened, and a link that is swapped in between makes the call fail, not escape.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from pathlib import Path
from typing import Final, NoReturn

from kaged.base.realpath import real_path
from kaged.workspace.errors import (
    FileMissing,
    FileUnreadable,
    PathRefused,
    ProjectRootInvalid,
    WrongKind,
)
from kaged.workspace.path import ParsedPath, ProjectPath, is_inside, parse_path, relative_form
from kaged.workspace.syscalls import open_place

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_KINDS: Final = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a FIFO",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFLNK: "is a symbolic link",
}


class PathGuard:
    """The border of one project. `root` is absolute with every link followed."""

    __slots__ = ("_prefix", "root")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            self.root = os.path.realpath(os.fspath(root), strict=True)
        except OSError as error:
            raise ProjectRootInvalid(
                f"the project's directory cannot be opened: {error.strerror}"
            ) from error
        if not Path(self.root).is_dir():
            raise ProjectRootInvalid("the project's root is no directory")
        self._prefix = self.root.rstrip("/") + "/"

    def resolve(self, text: str) -> ProjectPath:
        """Turn an agent's text into a path inside the project.

        Reads names and links, opens nothing, and succeeds for paths that do not exist.

        Raises:
            PathRefused: it is no path, or leads out of the project.
        """
        parsed = parse_path(text)
        if parsed.absolute or parsed.climbs:
            return self._resolve_slowly(text, parsed)
        path = self.root
        parts = parsed.parts
        for index, part in enumerate(parts):
            path = self._prefix + part if index == 0 else f"{path}/{part}"
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                # Nothing there, or nothing that can be looked at: the rest is taken by its name.
                path = "/".join((path, *parts[index + 1 :]))
                break
            if stat.S_ISLNK(mode):
                return self._resolve_slowly(text, parsed)
        return ProjectPath("./" + "/".join(parts), path, text)

    def relative_of(self, resolved: str) -> str:
        """Return the `./` form of a resolved path.

        Raises:
            PathRefused: it lies outside the project.
        """
        if not is_inside(self.root, resolved):
            raise PathRefused("it lies outside the project", "")
        return relative_form(self.root, resolved)

    def _resolve_slowly(self, text: str, parsed: ParsedPath) -> ProjectPath:
        base = "/" if parsed.absolute else self._prefix
        written = base + "/".join(parsed.parts)
        resolved = _real(written, text)
        if not is_inside(self.root, resolved):
            raise PathRefused(
                "it leads out of the project",
                text,
                fix="write it as ./path inside the project",
                resolved=self._way_out(parsed, text),
            )
        if parsed.absolute or parsed.climbs:
            # By its letters `link/..` is another place than on the disk; the disk is right.
            relative = relative_form(self.root, resolved)
        else:
            relative = "./" + "/".join(parsed.parts)
        return ProjectPath(relative, resolved, text, link=_is_link(written, parsed.parts, text))

    def _way_out(self, parsed: ParsedPath, text: str) -> str:
        """Return where a refused path leads, in words that tell nothing about the host.

        That is the link in the project that leads out of it; what was outside already as it was
        written is only tidied. What lies behind the link is for no agent's eyes.
        """
        written = posixpath.normpath(("/" if parsed.absolute else "") + "/".join(parsed.parts))
        whole = written if parsed.absolute else posixpath.join(self.root, written)
        if not is_inside(self.root, whole):
            return written
        walked = "/" if parsed.absolute else self.root
        for part in parsed.parts:
            walked = posixpath.join(walked, part)
            if is_inside(self.root, walked) and not is_inside(self.root, _real(walked, text)):
                break
        return relative_form(self.root, walked)

    def open_place(self, path: ProjectPath) -> int:
        """Open the place itself (`O_PATH`), whatever it is; no link is followed.

        Raises:
            FileMissing: there is nothing.
            PathRefused: a link was swapped in since the path was resolved.
            FileUnreadable: the system does not let us.
        """
        try:
            return open_place(path.resolved)
        except OSError as error:
            _refuse(path, error)

    def open_read(self, path: ProjectPath) -> int:
        """Open a regular file or directory for reading; the caller closes the descriptor.

        A device, FIFO or socket is never opened, so that nothing hangs and nothing is triggered.

        Raises:
            FileMissing, PathRefused, FileUnreadable: as `open_place`.
            WrongKind: neither a file nor a directory.
        """
        place = self.open_place(path)
        try:
            mode = os.fstat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise WrongKind(path.relative, kind_of(mode), fix="name a file or a directory")
            # Through /proc the very inode that was looked at is opened, by no name at all.
            return os.open(f"/proc/self/fd/{place}", _READ)
        except OSError as error:
            _refuse(path, error)
        finally:
            os.close(place)


def kind_of(mode: int) -> str:
    """Return in words what an inode is when it is no regular file, e.g. `is a FIFO`."""
    return _KINDS.get(stat.S_IFMT(mode), "is no regular file")


def _real(written: str, text: str) -> str:
    try:
        return real_path(written)
    except OSError as error:
        problem = "it changes while it is being looked at"
        raise PathRefused(problem, text, fix="try again") from error


def _is_link(written: str, parts: tuple[str, ...], text: str) -> bool:
    if not parts or parts[-1] == "..":
        return False
    head, _, name = written.rpartition("/")
    return Path(_real(head or "/", text), name).is_symlink()


def _refuse(path: ProjectPath, error: OSError) -> NoReturn:
    if error.errno in _ABSENT:
        raise FileMissing(path.relative, requested=path.requested) from error
    if error.errno == errno.ELOOP:
        raise PathRefused(
            "a symbolic link in it leads nowhere or was changed just now",
            path.requested,
            fix="name the file itself",
        ) from error
    raise FileUnreadable(path.relative, error.strerror or "unknown error") from error
