"""`ProtectedWrites`: no tool, script or undo writes what a program of the host would run.

The list is the kernel's (`kaged.kernel.protected_paths`); here is what depends on the disk: git's
configuration is judged by its content, what it includes and the folder that it takes hooks from
are protected with it, and a folder that only looks like a repository counts as one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kaged.kernel.git_config import (
    MAX_CONFIG_BYTES,
    MalformedGitConfig,
    new_commands,
    parse_git_config,
)
from kaged.kernel.protected_paths import (
    GIT_CONFIGS,
    GIT_DIR,
    HOOKS,
    PROTECTED,
    PathClass,
    ProtectedMatch,
    ProtectedPath,
    ProtectedRules,
)
from kaged.workspace.errors import PathProtected
from kaged.workspace.path import ProjectPath

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
        self._seen: tuple[int, ...] | None = None
        self._named: tuple[frozenset[str], tuple[str, ...]] = (frozenset(), ())

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
        if found.entry.kind is PathClass.GIT_CONFIG and data is not None:
            climb = max(len(self._parts(path)) - 1, 0)
            keys = new_commands(data, _content(path.resolved), climb)
            if keys is not None:
                raise PathProtected(path.relative, found.entry.why, named, keys=keys)

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
        included, hooks = self._named_by_git()
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

    def _named_by_git(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the files that the project's git configuration includes, and its hooks folder."""
        config = f"{self._prefix}{GIT_DIR}/config"
        try:
            entry = os.lstat(config)
        except OSError:
            return frozenset(), ()
        seen = (entry.st_ino, entry.st_ctime_ns, entry.st_size)
        if seen != self._seen:
            self._named = named_by_config(config, self._root)
            self._seen = seen
        return self._named


def named_by_config(config: str, work_tree: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the files that a git configuration includes, and the folders it takes hooks from."""
    included: set[str] = set()
    hooks: list[str] = []
    try:
        settings = parse_git_config(_content(config))
    except MalformedGitConfig:
        return frozenset(), ()
    for one in settings:
        value = one.value or ""
        if not value or value.startswith("~"):
            continue
        if one.key.startswith(("include.", "includeif.")) and one.key.endswith(".path"):
            base = os.path.dirname(config)  # noqa: PTH120 - beside the others
            included.add(os.path.realpath(os.path.join(base, value)))  # noqa: PTH118
        elif one.key == "core.hookspath":
            hooks.append(os.path.realpath(os.path.join(work_tree, value)))  # noqa: PTH118
    return frozenset(included), tuple(hooks)


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError:
        return b""


def _holds(folder: str, *names: str) -> bool:
    return any(os.path.lexists(f"{folder}/{name}") for name in names)


def _named(path: ProjectPath, found: ProtectedMatch) -> str:
    """Return the path that an operator would allow: the protected thing itself."""
    parts = path.relative.removeprefix("./").split("/")
    return "/".join(parts[: found.depth])
