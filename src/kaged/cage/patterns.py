"""Granted patterns: what `./src/*.py` of an agent's cage matches on this disk, at this moment.

The permission check and the cage read a pattern alike, with the kernel's own matcher (AT-DSL-06).
A path that exists under exactly the pattern's name is that path. Links are never matched: a pattern
must not lead out of the directory it names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kaged.cage.arguments import check_path
from kaged.cage.errors import GrantRefused
from kaged.cage.grants import MAX_GRANTS
from kaged.kernel.mounts import MountGlob, has_magic
from kaged.kernel.policy import FsGrant, FsMode

MAX_LOOKED_AT = 50_000


def expand_patterns(grants: Iterable[FsGrant]) -> tuple[FsGrant, ...]:
    """Replace each granted pattern by the paths it matches now; others stay as they are.

    An exact entry beats a pattern that matches the same path, and of two patterns the read-only
    one decides. A pattern that matches nothing grants nothing.

    Raises:
        GrantRefused: a pattern matches more paths than a cage takes.
    """
    exact: list[FsGrant] = []
    matched: dict[str, FsMode] = {}
    for grant in grants:
        if not has_magic(grant.path) or os.path.lexists(grant.path):
            exact.append(grant)
            continue
        for path in _matches(check_path(grant.path, "granted pattern")):
            if matched.get(path) is not FsMode.RO:
                matched[path] = grant.mode
            if len(matched) > MAX_GRANTS:
                raise GrantRefused(
                    grant.path,
                    f"it matches more than the {MAX_GRANTS} paths that a cage takes",
                    fix="grant the directory instead",
                )
    named = {grant.path for grant in exact}
    return (*exact, *(FsGrant(path, mode) for path, mode in matched.items() if path not in named))


def _matches(pattern: str) -> list[str]:
    glob = MountGlob(pattern)
    start = pattern[: next(at for at, char in enumerate(pattern) if char in "*?[")]
    found: list[str] = []
    waiting = [start.rpartition("/")[0] or "/"]
    looked_at = 0
    while waiting:
        folder = waiting.pop()
        for entry in _entries(folder):
            looked_at += 1
            if looked_at > MAX_LOOKED_AT:
                raise GrantRefused(pattern, f"more than {MAX_LOOKED_AT} files had to be looked at")
            parts = entry.path.split("/")[1:]
            if entry.is_symlink():
                continue
            if glob.covers(parts):
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False) and glob.may_hold(parts):
                waiting.append(entry.path)
    return sorted(found)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
