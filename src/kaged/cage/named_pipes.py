"""`NamedPipes`: pipes that lie in what a cage may only read, found so that they can be covered.

A read-only mount does not keep anybody from writing to a named pipe: whoever opens it talks to the
host's process at the other end. Sockets and devices need no such care: no cage can have a Unix
socket, and everything is mounted without devices. In a writable grant a pipe is what any file there
is, a thing that the host may read from, so it is left alone.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable
from typing import Final, TypeAlias

from kaged.base.file_stamp import is_settled
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.errors import GrantRefused
from kaged.cage.grants import KERNEL_TREES, RESERVED, SYSTEM_TREES
from kaged.kernel.policy import FsGrant, FsMode

MAX_PIPES: Final = 64
MAX_FOLDERS: Final = 20_000
MAX_ENTRIES: Final = 200_000
MAX_TREES: Final = 64
FEW_FOLDERS: Final = 200
"""So many folders are looked at in less time than it takes to ask a thread to do it."""

# Either of the system, where no guest and no user has pipes, or refused as a grant anyway.
_NOT_LOOKED_AT: Final = (*SYSTEM_TREES, *KERNEL_TREES)

Signature: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PipesFound:
    """The pipes, and the granted trees that were too large to look at whole."""

    paths: tuple[str, ...] = ()
    too_large: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder as it was listed; without a signature it is listed again next time."""

    signature: Signature | None
    folders: tuple[str, ...] = ()
    pipes: tuple[str, ...] = ()
    entries: int = 0
    hidden: bool = False
    """It cannot be listed, and yet be entered by those who know a name in it."""


class NamedPipes:
    """Looks for pipes below read-only grants, and remembers each folder until it changes."""

    def __init__(self) -> None:
        self._trees: dict[tuple[str, frozenset[str]], _Tree] = {}

    async def find(self, grants: Iterable[FsGrant]) -> PipesFound:
        """Return the pipes that a cage with these grants would see, as paths of the host.

        Raises:
            GrantRefused: there are more of them than can be covered.
        """
        found: list[str] = []
        too_large: list[str] = []
        for root, writable in _read_only_trees(tuple(grants)):
            tree = self._tree(root, writable)
            async with tree.lock:
                if tree.looked and tree.size <= FEW_FOLDERS:
                    tree.look()
                else:
                    await asyncio.to_thread(tree.look)
                found += tree.pipes
                if not tree.complete:
                    too_large.append(root)
            if len(found) > MAX_PIPES:
                raise GrantRefused(
                    root,
                    f"it holds more than {MAX_PIPES} named pipes, and each would be a way to the "
                    "host",
                    fix="remove the pipes, or grant the folders beside them",
                )
        return PipesFound(tuple(found), tuple(too_large))

    def _tree(self, root: str, writable: frozenset[str]) -> _Tree:
        tree = self._trees.pop((root, writable), None) or _Tree(root, writable)
        self._trees[root, writable] = tree
        if len(self._trees) > MAX_TREES:
            self._trees.pop(next(iter(self._trees)))
        return tree


class _Tree:
    """One read-only grant without the writable ones in it."""

    def __init__(self, root: str, writable: frozenset[str]) -> None:
        self._root = root
        self._writable = writable
        self._known: dict[str, _Folder] = {}
        self._settled: list[tuple[str, int, int]] | None = None
        self.lock = asyncio.Lock()
        self.looked = False
        self.complete = True
        self.pipes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many folders it had when it was looked at last."""
        return len(self._known)

    def look(self) -> None:
        """Find the pipes that are there now. Blocks on the disk; follows no link."""
        if self._is_the_same():
            return
        seen: dict[str, _Folder] = {}
        pipes: list[str] = []
        waiting = [self._root]
        entries = 0
        complete = True
        while waiting:
            path = waiting.pop()
            if len(seen) >= MAX_FOLDERS or entries >= MAX_ENTRIES:
                complete = False
                break
            folder = self._folder(path)
            if folder is None:
                continue
            seen[path] = folder
            entries += folder.entries
            complete = complete and not folder.hidden
            pipes += [f"{path}/{name}" for name in folder.pipes]
            below = [f"{path}/{name}" for name in folder.folders]
            waiting += [one for one in below if one not in self._writable]
        self._known = seen
        self.pipes, self.complete, self.looked = tuple(sorted(pipes)), complete, True
        settled = [(path, *one.signature) for path, one in seen.items() if one.signature]
        self._settled = settled if len(settled) == len(seen) else None

    def _is_the_same(self) -> bool:
        """Return whether no folder's names changed since the last look."""
        if self._settled is None:
            return False
        lstat = os.lstat
        try:
            for path, inode, changed_ns in self._settled:
                entry = lstat(path)
                if entry.st_ctime_ns != changed_ns or entry.st_ino != inode:
                    return False
        except OSError:
            return False
        return True

    def _folder(self, path: str) -> _Folder | None:
        try:
            entry = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISDIR(entry.st_mode):
            return None
        signature: Signature | None = (entry.st_ino, entry.st_ctime_ns)
        known = self._known.get(path)
        if known is not None and known.signature == signature:
            return known
        if not is_settled(entry.st_ctime_ns):
            signature = None
        folders: list[str] = []
        pipes: list[str] = []
        count = 0
        try:
            with os.scandir(path) as entries:
                for one in entries:
                    count += 1
                    if count > MAX_ENTRIES:
                        break
                    if one.is_dir(follow_symlinks=False):
                        folders.append(one.name)
                    elif not one.is_file(follow_symlinks=False) and _is_pipe(one):
                        pipes.append(one.name)
        except OSError:
            return _Folder(signature, hidden=os.access(path, os.X_OK))
        return _Folder(signature, tuple(folders), tuple(pipes), count)


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink():
        return False
    try:
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_only_trees(grants: tuple[FsGrant, ...]) -> list[tuple[str, frozenset[str]]]:
    """Return the outermost read-only grants, each with the writable ones below it. Pure."""
    modes = {one.path: one.mode for one in grants}
    found: list[tuple[str, frozenset[str]]] = []
    for path, mode in modes.items():
        if mode is not FsMode.RO or _nearest(path, modes) is FsMode.RO:
            continue
        if path in RESERVED or any(f"{path}/".startswith(f"{one}/") for one in _NOT_LOOKED_AT):
            continue
        inside = (one for one, its in modes.items() if its is FsMode.RW)
        found.append((path, frozenset(one for one in inside if one.startswith(f"{path}/"))))
    return found


def _nearest(path: str, modes: dict[str, FsMode]) -> FsMode | None:
    """Return the mode of the nearest grant above a path."""
    while "/" in path[1:]:
        path = path.rpartition("/")[0]
        if path in modes:
            return modes[path]
    return None
