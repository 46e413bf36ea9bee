"""`ProtectedTree`: the protected places below one folder, found without walking it each time.

A folder whose change time is the one of the last look holds the same names, and nobody but root
can set that time. So the first look lists every folder, and later ones only ask each for its time.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final, TypeAlias

from kaged.base.file_stamp import full_stamp, is_settled
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.protected_list import PathClass
from kaged.kernel.protected_paths import (
    GIT_CONFIGS,
    GIT_DIR,
    HOOKS,
    SAMPLE,
    ProtectedRules,
    ends_protected,
    leads_on,
    may_lead,
)

MAX_FOLDERS: Final = 100_000
MAX_PLACES: Final = 50_000
MAX_REVIEWED: Final = 2_000

_NOTHING_INSIDE: Final = frozenset({"objects", "refs", "logs", "lfs"})
"""Parts of a repository that are large and hold nothing that git runs."""

_HOOKS_WHY: Final = "git runs what lies there"
_LINK_WHY: Final = "programs of this machine obey what it leads to"

Signature: TypeAlias = tuple[int, ...]
Parts: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One protected file: names below the root, its class, and the name it is known by anywhere.

    `key` is the part of the path that makes it protected, such as `.vscode/tasks.json`: the same
    content under the same key is the same thing in another work tree. `checked_out` is one that git
    may write itself; a hook in a repository's own folder is not.
    """

    parts: Parts
    kind: PathClass
    key: str
    why: str
    signature: Signature
    checked_out: bool = True

    def settled(self) -> Place:
        """Return it with a signature that equals none where that cannot be relied on yet."""
        if self.signature and not is_settled(self.signature[-1]):
            return replace(self, signature=())
        return self


@dataclass(slots=True)
class Inventory:
    """What one look found: the protected files by path, and every repository's own folder.

    `gitfiles` are `.git` files, which say where a repository lies. Not `complete` when the tree has
    more folders than a look takes; what lies nearer to the root was looked at then. With `more`
    there are further protected files, for another look when these are gone.
    """

    places: dict[Parts, Place] = field(default_factory=dict[Parts, Place])
    git_dirs: set[Parts] = field(default_factory=set[Parts])
    gitfiles: list[Parts] = field(default_factory=list[Parts])
    complete: bool = True
    more: bool = False
    reviewed: int = 0


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder as it was listed: names of folders in it, and of what else matters."""

    signature: Signature
    folders: tuple[str, ...]
    others: tuple[str, ...]
    repository: bool


class ProtectedTree:
    """The folder `root`; `looked_at` counts what was asked of the disk since it was made."""

    def __init__(self, root: str, rules: ProtectedRules) -> None:
        self.root = root
        self.rules = rules
        self._hook_dirs: frozenset[Parts] = frozenset()
        self.listed = 0
        self.looked_at = 0
        self._known: dict[Parts, _Folder] = {}
        self._last: Inventory | None = None
        self._paths: list[tuple[str, int, int]] = []
        self._ways: dict[Parts, _Way] = {}
        self.looks = 0
        """How often folders were listed; the same number means the same folders."""

    @property
    def hook_folders(self) -> frozenset[Parts]:
        """The folders of the work tree that hooks are taken from."""
        return self._hook_dirs

    def take_hooks_from(self, folders: frozenset[Parts]) -> None:
        """Protect folders of the work tree that a repository's configuration names for hooks."""
        if folders != self._hook_dirs:
            self._hook_dirs = folders
            self._known.clear()  # every name in them counts now
            self._last = None

    def look(self) -> Inventory:
        """Return what is there now. Blocks on the disk; follows no link."""
        last = self._last
        if last is not None and self._names_are_the_same():
            return self._again(last)
        found = Inventory()
        seen: dict[Parts, _Folder] = {}
        ways: dict[Parts, _Way] = {}
        waiting: deque[tuple[Parts, _Way]] = deque([((), _Way())])
        while waiting:
            parts, way = waiting.popleft()
            if len(seen) >= MAX_FOLDERS:
                found.complete = False
                break
            folder = self._folder(parts, whole=way.kind is not None)
            if folder is None:
                continue
            seen[parts] = folder
            if way.kind is None and not way.git and folder.repository:
                way = replace(way, git=True)
            ways[parts] = way
            if way.git:
                found.git_dirs.add(parts)
            for name in folder.folders:
                below = self._enter(parts, name, way)
                if below is None:
                    continue
                # Whoever makes folders by the ten thousand does not hide a repository behind them.
                queue = waiting.appendleft if below.git or below.kind else waiting.append
                queue(((*parts, name), below))
            for name in folder.others:
                self._note((*parts, name), way, found)
        self._known = seen
        self._ways = ways
        self.looks += 1
        self._last = found if all(one.signature for one in seen.values()) else None
        self._paths = [
            (self.path(parts), one.signature[2], one.signature[-1])
            for parts, one in seen.items()
            if one.signature
        ]
        return found

    def _names_are_the_same(self) -> bool:
        """Return whether no folder's names changed; the one question of most looks."""
        lstat = os.lstat
        try:
            for path, inode, changed_ns in self._paths:
                self.looked_at += 1
                entry = lstat(path)
                if entry.st_ctime_ns != changed_ns or entry.st_ino != inode:
                    return False
        except OSError:
            return False
        return True

    def _again(self, last: Inventory) -> Inventory:
        """Return the same places; what is in them may have changed."""
        places: dict[Parts, Place] = {}
        for parts, place in last.places.items():
            signature = self.signature(parts)
            if signature is not None:
                places[parts] = replace(place, signature=signature)
        return replace(last, places=places)

    def nearest_folders(self, most: int) -> list[Parts]:
        """Return folders of the last look: the protected ones first, then those near the root."""
        ways = self._ways
        inner = [one for one, way in ways.items() if way.git or way.kind is PathClass.RUN]
        return list(dict.fromkeys(((), *inner, *ways)))[:most]

    def name_matters(self, parts: Parts, name: str) -> bool:
        """Return whether a name in a folder of the last look may be one that guests plant."""
        way = self._ways.get(parts)
        if way is None or way.kind is PathClass.RUN or name == HOOKS:
            return True
        if not _matters(name):
            return False
        match = self.rules.find((name,))
        return match is None or self.rules.refuses(match)

    def path(self, parts: Sequence[str]) -> str:
        """Return the absolute path of names below the root."""
        return "/".join((self.root.rstrip("/"), *parts)) if parts else self.root

    def signature(self, parts: Sequence[str]) -> Signature | None:
        """Return what changes whenever the file does, or None when there is none."""
        self.looked_at += 1
        try:
            entry = os.lstat(self.path(parts))
        except OSError:
            return None
        return full_stamp(entry)

    def _folder(self, parts: Parts, *, whole: bool) -> _Folder | None:
        signature = self.signature(parts)
        if signature is None or not stat.S_ISDIR(signature[0]):
            return None
        known = self._known.get(parts)
        if known is not None and known.signature == signature:
            return known
        if not is_settled(signature[-1]):  # asked before it is listed
            signature = ()  # equal to none: it is listed again next time
        folders: list[str] = []
        others: list[str] = []
        names: set[str] = set()
        self.listed += 1
        try:
            with os.scandir(self.path(parts)) as entries:
                for entry in entries:
                    self.looked_at += 1
                    name = entry.name
                    names.add(name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    elif whole or _matters(name) or parts[-1:] == (HOOKS,):
                        others.append(name)
        except OSError:
            return None
        repository = {"objects", "refs"} <= names or {"HEAD", "commondir"} <= names
        return _Folder(signature, tuple(folders), tuple(others), repository)

    def _enter(self, parts: Parts, name: str, way: _Way) -> _Way | None:
        """Return how a folder is looked at, or None when nothing in it matters."""
        below = (*parts, name)
        if way.kind is not None:
            return way
        if way.git and name == HOOKS:
            return self._hooks(below, own=True)
        if way.inner:
            return None if way.git and name in _NOTHING_INSIDE else _Way(inner=True)
        if name.casefold() == GIT_DIR:
            return _Way(git=True, inner=True)
        if below in self._hook_dirs:
            return self._hooks(below)
        if ends_protected(name):
            match = self.rules.find(below)
            if match is not None:
                return _Way(kind=match.entry.kind, start=match.depth - 1, why=match.entry.why)
        return _Way()

    def _hooks(self, parts: Parts, *, own: bool = False) -> _Way:
        if self.rules.allows(parts):
            return _Way()
        start = len(parts) - 1
        return _Way(kind=PathClass.RUN, start=start, why=_HOOKS_WHY, hooks=True, inner=own)

    def _note(self, parts: Parts, way: _Way, found: Inventory) -> None:
        name = parts[-1]
        kind, start, why = way.kind, way.start, way.why
        if kind is None:
            if name.casefold() == GIT_DIR:
                found.gitfiles.append(parts)
                return
            known = self._by_name(parts, way)
            if known is None:
                return
            kind, start, why = known
        elif (way.hooks and name.endswith(SAMPLE)) or self.rules.allows(parts):
            return
        # Decoys of the harmless class must not use up the room of the other.
        if kind is PathClass.REVIEWED and not self.rules.refuse_reviewed:
            found.reviewed += 1
            if found.reviewed > MAX_REVIEWED:
                return
        elif len(found.places) - min(found.reviewed, MAX_REVIEWED) >= MAX_PLACES:
            found.more = True
            return
        signature = self.signature(parts)
        if signature is not None:
            key = "/".join(parts[start:])
            own = way.inner or (way.git and name == HOOKS)
            found.places[parts] = Place(parts, kind, key, why, signature, not own)

    def _by_name(self, parts: Parts, way: _Way) -> tuple[PathClass, int, str] | None:
        """Return a file's class by its own path: which one, where that begins, and why."""
        name, last = parts[-1], len(parts) - 1
        if way.git and name == HOOKS:  # a link, or a file in its place
            return None if self.rules.allows(parts) else (PathClass.RUN, last, _HOOKS_WHY)
        if ends_protected(name) and not way.inner:
            match = self.rules.find(parts)
            if match is not None:
                return match.entry.kind, match.depth - 1, match.entry.why
        return (PathClass.RUN, last, _LINK_WHY) if self._is_way(parts, way) else None

    def _is_way(self, parts: Parts, way: _Way) -> bool:
        """Return whether this is a link in place of a folder that protected files lie in.

        It counts whatever lies behind it now: that can come later, under a harmless name.
        """
        if way.inner or not leads_on(parts) or self.rules.allows(parts):
            return False
        signature = self.signature(parts)
        return signature is not None and stat.S_ISLNK(signature[0])


@dataclass(frozen=True, slots=True)
class _Way:
    """How a folder is looked at: as a repository, as part of a `.git`, or as a protected thing."""

    git: bool = False
    inner: bool = False
    kind: PathClass | None = None
    start: int = 0
    why: str = ""
    hooks: bool = False


def shown_path(parts: Sequence[str]) -> str:
    """Return a path as text that can be sent and stored, whatever bytes are in its names."""
    return os.fsencode("/".join(parts)).decode("utf-8", "replace")


def _matters(name: str) -> bool:
    return (
        name == HOOKS
        or name in GIT_CONFIGS
        or name[:4].casefold() == GIT_DIR
        or ends_protected(name)
        or may_lead(name)
    )
