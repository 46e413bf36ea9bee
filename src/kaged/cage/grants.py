"""Granted paths made safe: `open_grants` walks each one without following links and keeps it open.

Checked at every spawn, not only at install: a writable grant lets its holder replace a directory by
a link between two spawns. The descriptor that was checked is the one that is mounted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from kaged.base.lazy_dataclass import dataclass
from kaged.base.realpath import real_path
from kaged.cage.arguments import check_path
from kaged.cage.errors import GrantRefused
from kaged.kernel.policy import FsGrant, FsMode

MAX_GRANTS = 256

# The kernel's own trees: refused themselves and everything in them (PH-CAGE-19).
KERNEL_TREES = ("/proc", "/sys", "/dev")
# Places that are the cage's own inside, or hold the sockets of everything on the host.
RESERVED = ("/", "/run", "/tmp")  # noqa: S108 - compared with, never written to
# Mounted read-only into every cage; a writable grant of them would be the host's own system.
SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/boot")


@dataclass(frozen=True, slots=True)
class Protected:
    """Paths that no grant may be, contain or lie in: the daemon's own files and other plugins'.

    `own` are exceptions below them that belong to the cage's owner.
    """

    paths: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def reason(self, path: str, *, inside_counts: bool = True) -> str | None:
        """Return why `path` may not be shown, or None."""
        within_own = any(_covers(own, path) for own in self.own)
        for protected in self.paths:
            if _covers(path, protected):
                # An own directory that contains another protected one is still refused.
                if path == protected and within_own:
                    continue
                return f"it is or contains {protected}, which belongs to the daemon"
            if inside_counts and _covers(protected, path):
                deeper = any(_covers(protected, own) and _covers(own, path) for own in self.own)
                if not deeper:
                    return f"it lies in {protected}, which belongs to the daemon"
        return None


@dataclass(frozen=True, slots=True)
class OpenGrant:
    """One path that was walked without following links, held open by `fd`."""

    path: str
    mode: FsMode
    is_dir: bool
    fd: int
    owner_uid: int
    owner_gid: int
    permissions: int


@dataclass(slots=True)
class GrantSet:
    """All granted paths of one cage, open; close it after the spawn."""

    grants: tuple[OpenGrant, ...]

    def close(self) -> None:
        """Close every descriptor. Safe to call twice."""
        for grant in self.grants:
            with contextlib.suppress(OSError):
                os.close(grant.fd)
        self.grants = ()


def open_grants(grants: Iterable[FsGrant], protected: Protected) -> GrantSet:
    """Open every granted path, component by component, and keep the descriptors.

    Raises:
        GrantRefused: a path is missing, leads through a link, is no plain file or directory, or
            belongs to the daemon, to another plugin or to the kernel. The error names it.
    """
    opened: list[OpenGrant] = []
    guarded = _identities(protected)
    try:
        for grant in grants:
            if len(opened) >= MAX_GRANTS:
                raise GrantRefused(grant.path, f"a cage takes {MAX_GRANTS} paths")
            _check_place(grant, protected)
            opened.append(_open(grant, guarded))
    except BaseException:
        GrantSet(tuple(opened)).close()
        raise
    return GrantSet(tuple(opened))


def open_runtime_dirs(paths: Iterable[str], protected: Protected) -> GrantSet:
    """Open directories of a runtime that the host found; they may lie in the daemon's home.

    Raises:
        GrantRefused: one would show the daemon's own files.
    """
    opened: list[OpenGrant] = []
    try:
        for path in paths:
            reason = protected.reason(path, inside_counts=False)
            if reason is not None:
                raise GrantRefused(path, f"{reason}, and a runtime there cannot be shown")
            opened.append(_open(FsGrant(path, FsMode.RO), frozenset()))
    except BaseException:
        GrantSet(tuple(opened)).close()
        raise
    return GrantSet(tuple(opened))


def _check_place(grant: FsGrant, protected: Protected) -> None:
    path = check_path(grant.path, "granted path")
    for tree in KERNEL_TREES:
        if _covers(tree, path) or _covers(path, tree):
            raise GrantRefused(path, f"{tree} is the kernel's and is never shown to a cage")
    if path in RESERVED:
        raise GrantRefused(path, "the cage has its own, and the host's is never shown as a whole")
    if grant.mode is FsMode.RW and any(_covers(tree, path) for tree in SYSTEM_TREES):
        raise GrantRefused(path, "the system's own directories are never writable in a cage")
    reason = protected.reason(path)
    if reason is not None:
        raise GrantRefused(
            path,
            f"{reason}; no capability can grant the daemon's database, configuration, "
            "sockets or tokens, nor another plugin's directory",
        )


def _identities(protected: Protected) -> frozenset[tuple[int, int]]:
    # The same directory may be mounted in two places; a path alone would not show it.
    found: set[tuple[int, int]] = set()
    for path in protected.paths:
        if any(_covers(own, path) for own in protected.own):
            continue
        with contextlib.suppress(OSError):
            entry = os.lstat(path)
            found.add((entry.st_dev, entry.st_ino))
    return frozenset(found)


def _open(grant: FsGrant, guarded: frozenset[tuple[int, int]]) -> OpenGrant:
    path = grant.path
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        entry = os.fstat(fd)
        walked = ""
        for name in path.split("/")[1:]:
            below = _step(fd, name, path)
            os.close(fd)
            fd = below
            walked = f"{walked}/{name}"
            entry = os.fstat(fd)
            if stat.S_ISLNK(entry.st_mode):
                raise _through_link(path, walked)
        if not (stat.S_ISDIR(entry.st_mode) or stat.S_ISREG(entry.st_mode)):
            raise GrantRefused(path, "it is neither a directory nor a plain file")
        if (entry.st_dev, entry.st_ino) in guarded:
            raise GrantRefused(path, "it is another name of a directory that belongs to the daemon")
    except BaseException:
        os.close(fd)
        raise
    return OpenGrant(
        path=path,
        mode=grant.mode,
        is_dir=stat.S_ISDIR(entry.st_mode),
        fd=fd,
        owner_uid=entry.st_uid,
        owner_gid=entry.st_gid,
        permissions=stat.S_IMODE(entry.st_mode),
    )


def _step(fd: int, name: str, path: str) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GrantRefused(
            path, "no such file or directory on this host", fix="create it, or remove the grant"
        ) from error
    except OSError as error:
        raise GrantRefused(path, f"cannot be opened: {error.strerror}") from error


def _through_link(path: str, link: str) -> GrantRefused:
    try:
        real = real_path(path)
    except OSError:
        return GrantRefused(path, f"{link} is a symbolic link that changes all the time")
    return GrantRefused(
        path,
        f"{link} is a symbolic link, and it leads to {real}, which was not granted",
        fix=f"grant {real} if that is what is meant",
        resolved=real,
    )


def _covers(outer: str, inner: str) -> bool:
    return outer in {"/", inner} or inner.startswith(f"{outer}/")
