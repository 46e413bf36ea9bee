"""`ProtectedRules`: by which paths a file becomes code that runs outside the cage. Pure.

One list (`protected_list`) for file tools, scripts, undo and the cages of all guests. A `RUN`
path is run or obeyed by a program of the host without anybody looking first, so no agent writes it.
A `REVIEWED` path is trusted later, after a person's review: it may be written, and is named.
Names are compared without case and at any depth: a nested repository counts like the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.protected_list import (
    PROTECTED,
    REBASE_DIR,
    SEQUENCER_DIR,
    PathClass,
    ProtectedPath,
)

GIT_DIR: Final = ".git"
HOOKS: Final = "hooks"
WORKTREES: Final = "worktrees"
GIT_CONFIGS: Final = ("config", "config.worktree")
SAMPLE: Final = ".sample"  # git's own templates; git never runs them under this name
MAX_ALLOWED: Final = 64


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

    __slots__ = ("above", "allowed", "refuse_reviewed")

    def __init__(
        self,
        allowed: Iterable[tuple[str, ...]] = (),
        *,
        refuse_reviewed: bool = False,
        above: Sequence[str] = (),
    ) -> None:
        self.allowed = frozenset(allowed)
        self.refuse_reviewed = refuse_reviewed
        self.above = tuple(above)

    def below(self, above: Sequence[str]) -> ProtectedRules:
        """Return the same rules for a folder whose way from its project is known.

        In a writable `.cargo` nothing but `config.toml` shows what it is.
        """
        return ProtectedRules(self.allowed, refuse_reviewed=self.refuse_reviewed, above=above)

    def find(self, parts: Sequence[str]) -> ProtectedMatch | None:
        """Return the entry that a path, given as names below the folder, lies at or in."""
        found = find_protected(parts) or self._across(parts)
        return None if found is None or self.allows(parts) else found

    def _across(self, parts: Sequence[str]) -> ProtectedMatch | None:
        """Return the entry that begins above the folder and ends in it."""
        size = len(self.above)
        names = [part.casefold() for part in (*self.above, *parts)] if size else []
        for at in range(size):
            found = _by_pattern(names, at)
            if found is not None and found.depth > size:
                return ProtectedMatch(found.entry, found.depth - size)
        return None

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
    folded = name.casefold()
    return folded in _ENDS or _ANY_WILD.match(folded) is not None


def may_lead(name: str) -> bool:
    """Return whether a link of this name may lead to a protected path; cheap, like the above."""
    return name.casefold() in _FIRST


def leads_on(parts: Sequence[str]) -> bool:
    """Return whether a path is the way to a refused one, so that a link there would lead to it."""
    names = [part.casefold() for part in parts]
    return bool(names) and any(
        entry.kind is PathClass.RUN and rest[: len(names) - at - 1] == tuple(names[at + 1 :])
        for at in range(len(names))
        for rest, entry in _ROWS.get(names[at], ())
        if len(rest) > len(names) - at - 1
    )


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


def _by_pattern(names: Sequence[str], at: int) -> ProtectedMatch | None:
    for rest, entry in _ROWS.get(names[at], ()):
        if tuple(names[at + 1 : at + 1 + len(rest)]) == rest:
            return ProtectedMatch(entry, at + 1 + len(rest))
    wild = _ANY_WILD.match(names[at])
    if wild is not None and wild.lastindex is not None:
        return ProtectedMatch(_WILD[wild.lastindex - 1], at + 1)
    return None


def _entry(pattern: str) -> ProtectedPath:
    return next(one for one in PROTECTED if one.pattern == pattern)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return what matches a name by any of these; the number of the group says by which."""
    return re.compile("|".join(f"({translate(one)})" for one in patterns))


def _rows() -> dict[str, tuple[tuple[tuple[str, ...], ProtectedPath], ...]]:
    """Return the entries of several names by their first one."""
    found: dict[str, tuple[tuple[tuple[str, ...], ProtectedPath], ...]] = {}
    for entry in _PLAIN:
        first, *rest = entry.pattern.split("/")
        if rest:
            found[first] = (*found.get(first, ()), (tuple(rest), entry))
    return found


_HOOKS_ENTRY: Final = _entry(".git/hooks")
_MODULE_HOOKS: Final = _entry(".git/modules/*/hooks")
_STOPPED: Final = {name: _entry(f".git/{name}") for name in (REBASE_DIR, SEQUENCER_DIR)}
_CONFIG_ENTRY: Final = _entry(".git/config")
_PLAIN: Final = tuple(one for one in PROTECTED if not one.pattern.startswith(f"{GIT_DIR}/"))
_SINGLE: Final = {one.pattern: one for one in _PLAIN if not set(one.pattern) & {"/", "*"}}
_WILD: Final = tuple(one for one in _PLAIN if "*" in one.pattern)
_ANY_WILD: Final = _any_of(one.pattern for one in _WILD)
_ROWS: Final = _rows()
_FIRST: Final = frozenset(
    name for one in _PLAIN if one.kind is PathClass.RUN for name in one.pattern.split("/")[:-1]
)
_ENDS: Final = frozenset(one.pattern.rpartition("/")[2] for one in _PLAIN if "*" not in one.pattern)
