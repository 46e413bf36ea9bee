"""What a policy grants, seen from the protected paths: which of it may be writable, and where."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from kaged.cage.patterns import expand_patterns
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.protected_list import PathClass
from kaged.kernel.protected_paths import GIT_DIR, ProtectedRules, find_protected

_MARKERS: Final = (GIT_DIR, ".kaged")


def protect_policy(
    policy: CagePolicy, rules_of: Callable[[str], ProtectedRules], *, patterns: bool
) -> CagePolicy:
    """Return a policy whose own entries name no protected path writable; looks at the disk.

    A grant in a project's files is the project's word, not the operator's. With `patterns`, globs
    become the paths that they match now, so that each is judged.

    Raises:
        GrantRefused: a pattern matches more paths than a cage takes.
    """
    if not any(one.mode is FsMode.RW for one in policy.fs):
        return policy
    grants = expand_patterns(policy.fs) if patterns else policy.fs
    fs = tuple(
        FsGrant(one.path, FsMode.RO)
        if one.mode is FsMode.RW and names_protected(one.path, rules_of(one.path))
        else one
        for one in grants
    )
    return policy if fs == policy.fs else replace(policy, fs=fs)


def show_read_only(policy: CagePolicy, folders: Iterable[str]) -> CagePolicy:
    """Return a policy that shows these folders read-only below its writable ones. Pure."""
    shut = tuple(folders)
    if not shut:
        return policy
    kept = tuple(one for one in policy.fs if one.path not in shut)
    return replace(policy, fs=(*kept, *(FsGrant(path, FsMode.RO) for path in shut)))


def pin(policy: CagePolicy, folders: Iterable[str]) -> CagePolicy:
    """Return a policy that mounts these writable folders each for itself. Pure.

    What is a mount cannot be moved away.
    """
    more = tuple(FsGrant(path, FsMode.RW) for path in folders)
    return replace(policy, fs=(*policy.fs, *more)) if more else policy


def can_write(policy: CagePolicy, path: str) -> bool:
    """Return whether the nearest entry at or above a path is a writable one. Pure."""
    above = [one for one in policy.fs if _within(path, one.path)]
    return bool(above) and max(above, key=lambda one: len(one.path)).mode is FsMode.RW


def names_protected(path: str, rules: ProtectedRules) -> bool:
    """Return whether a granted path is protected itself, seen from the project it lies in.

    That is the nearest folder above with a `.git` or `.kaged`, or else the one right above it: a
    project may well live below a folder that happens to have a name of the list.
    """
    parts = path.strip("/").split("/")
    start = _project_start(parts, len(parts) - 1)
    if GIT_DIR in parts:
        start = min(start, len(parts) - 1 - parts[::-1].index(GIT_DIR))
    found = find_protected(parts[start:])
    if found is None or rules.allows(()):
        return False
    return rules.refuses(found) or found.entry.kind is PathClass.GIT_CONFIG


def names_above(path: str) -> tuple[str, ...]:
    """Return the names that lead from the project that a folder lies in to the folder itself."""
    parts = path.strip("/").split("/")
    return tuple(parts[_project_start(parts, len(parts)) :])


def writable_roots(policy: CagePolicy, own: Iterable[str]) -> tuple[str, ...]:
    """Return the outermost folders that a cage can write to, without those that are its own."""
    mine = tuple(own)
    paths = sorted(
        {
            one.path
            for one in policy.fs
            if one.mode is FsMode.RW and not any(_within(one.path, folder) for folder in mine)
        }
    )
    found: list[str] = []
    for path in paths:
        if posixpath.isdir(path) and not any(_within(path, above) for above in found):
            found.append(path)
    return tuple(found)


def _project_start(parts: Sequence[str], otherwise: int) -> int:
    """Return how many names lead to the nearest folder that is marked as a project."""
    for size in range(len(parts), 0, -1):
        folder = "/" + "/".join(parts[:size])
        if any(posixpath.lexists(f"{folder}/{marker}") for marker in _MARKERS):
            return size
    return otherwise


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
