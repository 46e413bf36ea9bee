"""`ProtectedWrites`: no tool, script or undo writes what a program of the host would run.

The list is the kernel's (`kaged.kernel.protected_paths`); here is what depends on the disk: git's
configuration is judged by its content, what it includes and the folder that it takes hooks from
are protected with it, and a folder that only looks like a repository counts as one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeAlias

from kaged.base.file_stamp import Stamp, stamp_of
from kaged.base.lazy_dataclass import dataclass
from kaged.base.plain_files import read_plain_file
from kaged.kernel.git_config import MAX_CONFIG_BYTES, new_commands
from kaged.kernel.git_names import (
    folders_above,
    follow_configs,
    operator_configs,
    repository_of,
)
from kaged.kernel.protected_list import PROTECTED, PathClass, ProtectedPath
from kaged.kernel.protected_paths import (
    GIT_CONFIGS,
    GIT_DIR,
    HOOKS,
    ProtectedMatch,
    ProtectedRules,
)
from kaged.workspace.errors import PathProtected
from kaged.workspace.path import ProjectPath

MAX_REMEMBERED: Final = 256
_LINKS: Final = frozenset({"commondir", "gitdir"})
"""Files of a repository that say where the rest of it lies."""

_REPOSITORY: Final = ProtectedPath(
    "HEAD", PathClass.RUN, "git would take the folder for a repository and obey its configuration"
)
_HOOKS_DIR: Final = ProtectedPath("core.hooksPath", PathClass.RUN, PROTECTED[0].why)
_INCLUDED: Final = ProtectedPath(
    "include.path", PathClass.GIT_CONFIG, "git runs the commands that its keys name"
)


class ProtectedWrites:
    """The protected paths of one project, whose `root` has every link followed."""

    def __init__(self, root: str, rules: ProtectedRules) -> None:
        self.rules = rules
        self._root = root
        self._prefix = root.rstrip("/") + "/"
        self._known: dict[str, _Named] = {}

    def find(self, path: ProjectPath) -> ProtectedMatch | None:
        """Return the entry of the list that a path lies at or in, or None."""
        parts = self._parts(path)
        found = self.rules.find(parts)
        if found is None and parts and not self.rules.allows(parts):
            found = self._by_disk(path.resolved, parts)
        return found

    def require(self, path: ProjectPath) -> None:
        """Refuse a path that nothing may be written to, whatever is written.

        Raises:
            PathProtected: it is one.
        """
        found = self.find(path)
        if found is not None and self.rules.refuses(found):
            raise PathProtected(path.relative, found.entry.why, _named(path, found))

    def require_content(self, path: ProjectPath, data: bytes | None) -> None:
        """Refuse a change of a protected file; of git's configuration only one with commands.

        Blocks on the disk.

        Raises:
            PathProtected: it may not become this.
        """
        found = self.find(path)
        if found is None:
            return
        named = _named(path, found)
        if self.rules.refuses(found):
            raise PathProtected(path.relative, found.entry.why, named)
        if found.entry.kind is not PathClass.GIT_CONFIG:
            return
        parts = self._parts(path)
        if data is None:
            if GIT_DIR in parts:  # what takes its place would not be looked at in running cages
                raise PathProtected(path.relative, found.entry.why, named)
        else:
            climb = max(len(parts) - 1, 0)
            keys = new_commands(
                data, read_plain_file(path.resolved, MAX_CONFIG_BYTES) or b"", climb
            )
            if keys is not None:
                raise PathProtected(path.relative, found.entry.why, named, keys=keys)

    def keeps_its_place(self, path: ProjectPath) -> bool:
        """Return whether a new content goes into the file that is there, not in its place.

        In running cages something is mounted over git's configuration, and would be gone.
        """
        found = self.find(path)
        return found is not None and found.entry.kind is PathClass.GIT_CONFIG

    def reviewed(self, path: ProjectPath) -> ProtectedPath | None:
        """Return the entry of a path that a person should look at before it is trusted."""
        found = self.find(path)
        if found is None or found.entry.kind is not PathClass.REVIEWED:
            return None
        return found.entry

    def _parts(self, path: ProjectPath) -> Sequence[str]:
        # What the path really is, not how it was spelled: a link to `.git/hooks` is `.git/hooks`.
        resolved = path.resolved
        return resolved[len(self._prefix) :].split("/") if resolved != self._root else []

    def _by_disk(self, resolved: str, parts: Sequence[str]) -> ProtectedMatch | None:
        name, depth = parts[-1], len(parts)
        included, hooks = self._named_by_git(resolved)
        if resolved in included:
            return ProtectedMatch(_INCLUDED, depth)
        if any(resolved == one or resolved.startswith(f"{one}/") for one in hooks):
            return ProtectedMatch(_HOOKS_DIR, depth)
        folder = os.path.dirname(resolved)  # noqa: PTH120 - asked for every write
        if name == GIT_DIR or (name in _LINKS and GIT_DIR in parts):
            return ProtectedMatch(_REPOSITORY, depth)
        # A repository needs no `.git`: git takes any folder with HEAD, objects and refs for one.
        if name == "commondir" or (name == "HEAD" and _holds(folder, *GIT_CONFIGS, HOOKS)):
            return ProtectedMatch(_REPOSITORY, depth)
        if name in GIT_CONFIGS and (
            _holds(folder, "HEAD") or (_holds(folder, "objects") and _holds(folder, "refs"))
        ):
            return ProtectedMatch(_INCLUDED, depth)
        if HOOKS in parts[:-1]:
            above = self._prefix + "/".join(parts[: parts.index(HOOKS)])
            if _holds(above, "HEAD"):
                return ProtectedMatch(_HOOKS_DIR, depth)
        return None

    def _named_by_git(self, resolved: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the files that git includes for a path's work trees, and its folders of hooks.

        These are all folders above with a `.git`: a nested repository, a linked work tree, the
        project, and a repository that the project lies in.
        """
        included: frozenset[str] = frozenset()
        hooks: frozenset[str] = frozenset()
        for folder in folders_above(resolved):
            if os.path.lexists(f"{folder}/{GIT_DIR}"):
                named = self._named_in(folder)
                included, hooks = included | named.files, hooks | named.hooks
        return included, hooks

    def _named_in(self, work_tree: str) -> _Named:
        known = self._known.get(work_tree)
        if known is None or not known.still_true():
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[work_tree] = _look(work_tree)
        return known


_Seen: TypeAlias = Stamp | tuple[()] | None
"""A file's stamp before it was read: empty if there is none, None if it may change unseen."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What the configuration of a work tree names; `read` are the files that say so."""

    files: frozenset[str]
    hooks: frozenset[str]
    read: tuple[str, ...]
    seen: tuple[_Seen, ...]

    def still_true(self) -> bool:
        """Return whether none of these files can have changed since they were read."""
        return None not in self.seen and self.seen == tuple(map(_see, self.read))


def _look(work_tree: str) -> _Named:
    read: dict[str, _Seen] = {}

    def remember(path: str) -> bytes | None:
        read.setdefault(path, _see(path))
        return read_plain_file(path, MAX_CONFIG_BYTES)

    home = os.path.expanduser("~")  # noqa: PTH111 - text
    repository = repository_of(work_tree, remember)
    named = follow_configs(
        repository, remember, home=home, further=operator_configs(os.environ, home)
    )
    return _Named(
        frozenset(map(os.path.realpath, named.files)),
        frozenset(map(os.path.realpath, named.hooks)),
        tuple(read),
        tuple(read.values()),
    )


def _see(path: str) -> _Seen:
    try:
        return stamp_of(os.stat(path))  # noqa: PTH116 - asked for every write
    except (OSError, ValueError):
        return ()


def _holds(folder: str, *names: str) -> bool:
    return any(os.path.lexists(f"{folder}/{name}") for name in names)


def _named(path: ProjectPath, found: ProtectedMatch) -> str:
    """Return the path that an operator would allow: the protected thing itself."""
    parts = path.relative.removeprefix("./").split("/")
    return "/".join(parts[: found.depth])
