"""`PROTECTED`: the paths by which a file becomes code that runs outside the cage. Pure.

One list for file tools, scripts, undo and the cages of agents, plugins and MCP servers. A `RUN`
path is run or obeyed by a program of the host without anybody looking first, so no agent writes it.
A `REVIEWED` path is trusted later, after a person's review: it may be written, and is named.
Names are compared without case and at any depth: a nested repository counts like the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from typing import Final

from kaged.base.lazy_dataclass import dataclass

GIT_DIR: Final = ".git"
HOOKS: Final = "hooks"
WORKTREES: Final = "worktrees"
REBASE_DIR: Final = "rebase-merge"
SEQUENCER_DIR: Final = "sequencer"
GIT_CONFIGS: Final = ("config", "config.worktree")
SAMPLE: Final = ".sample"  # git's own templates; git never runs them under this name
MAX_ALLOWED: Final = 64


class PathClass(StrEnum):
    """How a protected path becomes dangerous."""

    RUN = "run"
    GIT_CONFIG = "git_config"
    REVIEWED = "reviewed"


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """One entry of the list: names in a row, each with `*` for any letters; who obeys them."""

    pattern: str
    kind: PathClass
    why: str


_GIT: Final = "git runs what lies there at the next commit, merge or checkout"
_EDITOR: Final = "an editor runs its tasks and settings when the folder is opened"
_ASSISTANT: Final = "a coding assistant starts the servers and hooks that it names"
_PACKAGES: Final = "a package manager obeys it at the next install"

PROTECTED: Final[tuple[ProtectedPath, ...]] = (
    ProtectedPath(".git/hooks", PathClass.RUN, _GIT),
    ProtectedPath(".git/modules/*/hooks", PathClass.RUN, _GIT),
    ProtectedPath(".git/config", PathClass.GIT_CONFIG, "git runs the commands that its keys name"),
    *(
        ProtectedPath(f".git/{name}", PathClass.RUN, "git runs its commands when it goes on")
        for name in (REBASE_DIR, SEQUENCER_DIR)
    ),
    ProtectedPath(".envrc", PathClass.RUN, "a shell with direnv runs it on entering the folder"),
    ProtectedPath(".vscode", PathClass.RUN, _EDITOR),
    ProtectedPath(".idea", PathClass.RUN, _EDITOR),
    ProtectedPath(".devcontainer", PathClass.RUN, _EDITOR),
    ProtectedPath(".husky", PathClass.RUN, _GIT),
    ProtectedPath(".mcp.json", PathClass.RUN, _ASSISTANT),
    ProtectedPath(".claude", PathClass.RUN, _ASSISTANT),
    ProtectedPath(".cursor", PathClass.RUN, _ASSISTANT),
    ProtectedPath(".codex", PathClass.RUN, _ASSISTANT),
    ProtectedPath(
        ".kaged/skills", PathClass.RUN, "agents take instructions from it and run its scripts"
    ),
    ProtectedPath(".npmrc", PathClass.RUN, _PACKAGES),
    ProtectedPath(".yarnrc*", PathClass.RUN, _PACKAGES),
    ProtectedPath("pip.conf", PathClass.RUN, _PACKAGES),
    *(
        ProtectedPath(pattern, PathClass.REVIEWED, why)
        for why, patterns in (
            ("it runs in continuous integration", (".github/workflows", ".gitlab-ci.yml")),
            ("it names hooks that are installed from it", (".pre-commit-config.yaml",)),
            (
                "a person runs it by hand",
                ("makefile", "gnumakefile", "*.mk", "justfile", ".justfile", "rakefile"),
            ),
            ("a person runs it by hand", ("taskfile.yml", "taskfile.yaml")),
            ("coding assistants take instructions from it", ("agents.md", "claude.md")),
            ("it decides which programs git hands files to", (".gitattributes",)),
        )
        for pattern in patterns
    ),
)


@dataclass(frozen=True, slots=True)
class ProtectedMatch:
    """Where a path meets the list: `depth` names lead to the protected thing itself."""

    entry: ProtectedPath
    depth: int


class ProtectedRules:
    """The list with what the operator took out of it for one folder.

    `allowed` are paths relative to that folder, each with everything below it; an empty one takes
    the whole folder out. `refuse_reviewed` makes the second class as closed as the first.
    """

    __slots__ = ("allowed", "refuse_reviewed")

    def __init__(
        self, allowed: Iterable[tuple[str, ...]] = (), *, refuse_reviewed: bool = False
    ) -> None:
        self.allowed = frozenset(allowed)
        self.refuse_reviewed = refuse_reviewed

    def find(self, parts: Sequence[str]) -> ProtectedMatch | None:
        """Return the entry that a path, given as names below the folder, lies at or in."""
        found = find_protected(parts)
        return None if found is None or self.allows(parts) else found

    def allows(self, parts: Sequence[str]) -> bool:
        """Return whether the operator took this path out of the list."""
        return bool(self.allowed) and any(
            tuple(parts[:size]) in self.allowed for size in range(len(parts) + 1)
        )

    def refuses(self, match: ProtectedMatch) -> bool:
        """Return whether nothing may be written there, whatever its content."""
        kind = match.entry.kind
        return kind is PathClass.RUN or (kind is PathClass.REVIEWED and self.refuse_reviewed)


def rules_for(
    root: str, allowed: Iterable[tuple[str, str]], *, refuse_reviewed: bool = False
) -> ProtectedRules:
    """Return the rules of a folder, given the operator's pairs of project root and path in it."""
    below: list[tuple[str, ...]] = []
    for project, path in allowed:
        whole = f"{project.rstrip('/')}/{path.removeprefix('./').strip('/')}"
        if whole.startswith(f"{root.rstrip('/')}/"):
            below.append(tuple(whole[len(root.rstrip("/")) + 1 :].split("/")))
        elif root == whole or root.startswith(f"{whole}/"):
            below.append(())
    return ProtectedRules(below, refuse_reviewed=refuse_reviewed)


def find_protected(parts: Sequence[str]) -> ProtectedMatch | None:
    """Return the first entry of the list that a path lies at or in."""
    names = [part.casefold() for part in parts]
    for at, name in enumerate(names):
        if name == GIT_DIR:
            found = _in_git(names, at)
        elif (entry := _SINGLE.get(name)) is not None:
            found = ProtectedMatch(entry, at + 1)
        else:
            found = _by_pattern(names, at)
        if found is not None:
            return found
    return None


def ends_protected(name: str) -> bool:
    """Return whether a protected path can end with this name; cheap, for listings of folders."""
    return _ENDS.match(name.casefold()) is not None


def _in_git(names: list[str], at: int) -> ProtectedMatch | None:
    """Judge what lies in a `.git`; a submodule's is below `modules`, at any depth."""
    rest = names[at + 1 :]
    if not rest:
        return None
    if rest[0] == HOOKS:
        return ProtectedMatch(_HOOKS_ENTRY, at + 2)
    if rest[0] == "modules" and HOOKS in rest[2:]:
        return ProtectedMatch(_MODULE_HOOKS, at + 2 + rest.index(HOOKS, 2))
    deep = rest[0] in {"modules", WORKTREES} and len(rest) > 2
    for name, entry in _STOPPED.items():
        if rest[0] == name or (deep and name in rest[2:]):
            return ProtectedMatch(entry, at + 2 + rest.index(name))
    if rest[-1] in GIT_CONFIGS and (len(rest) == 1 or deep):
        return ProtectedMatch(_CONFIG_ENTRY, len(names))
    return None


def _by_pattern(names: list[str], at: int) -> ProtectedMatch | None:
    name = names[at]
    if (pair := _PAIRS.get(name)) is not None and names[at + 1 : at + 2] == [pair[0]]:
        return ProtectedMatch(pair[1], at + 2)
    for pattern, entry in _WILD.items():
        if fnmatchcase(name, pattern):
            return ProtectedMatch(entry, at + 1)
    return None


def _entry(pattern: str) -> ProtectedPath:
    return next(one for one in PROTECTED if one.pattern == pattern)


_HOOKS_ENTRY: Final = _entry(".git/hooks")
_MODULE_HOOKS: Final = _entry(".git/modules/*/hooks")
_STOPPED: Final = {name: _entry(f".git/{name}") for name in (REBASE_DIR, SEQUENCER_DIR)}
_CONFIG_ENTRY: Final = _entry(".git/config")
_PLAIN: Final = tuple(one for one in PROTECTED if not one.pattern.startswith(f"{GIT_DIR}/"))
_SINGLE: Final = {one.pattern: one for one in _PLAIN if not set(one.pattern) & {"/", "*"}}
_WILD: Final = {one.pattern: one for one in _PLAIN if "*" in one.pattern}
_PAIRS: Final = {
    one.pattern.partition("/")[0]: (one.pattern.partition("/")[2], one)
    for one in _PLAIN
    if "/" in one.pattern
}
_ENDS: Final = re.compile("|".join(translate(one.pattern.rpartition("/")[2]) for one in _PLAIN))
