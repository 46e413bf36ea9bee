"""`seal_policy`: a cage that may write a project may not therefore rewrite its own definition.

Who can change `.kaged/project.yaml` can widen every cage of the project. A grant of the project, or
of anything above `.kaged`, therefore shows `.kaged` read-only, to the file tools and to programs
alike. An entry that names `.kaged` itself is the operator's own word and stands.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kaged.config.project import PROJECT_FILE
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.toolsettings import SealWord
from kaged.kernel.mounts import MountGlob
from kaged.kernel.paths import join
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode


def seal_policy(policy: CagePolicy, root: Path, word: SealWord) -> CagePolicy:
    """Return a policy that cannot write `.kaged` by way of a grant above it. Pure.

    With `all`, entries that name `.kaged` or something in it are read-only as well.
    """
    if word is SealWord.OFF:
        return policy
    folder = join(str(root), KAGED_DIR)
    named = [one for one in policy.fs if one.mode is FsMode.RW and _at_or_below(one.path, folder)]
    if named and word is SealWord.CAGED:
        return policy
    grants = tuple(FsGrant(one.path, FsMode.RO) if one in named else one for one in policy.fs)
    file = join(folder, PROJECT_FILE)
    shut: list[FsGrant] = []
    for one in grants:
        if one.mode is FsMode.RW and _reaches(one.path, file):
            # The file too: a pattern such as `./.*/*.yaml` is more specific than its folder.
            shut = [FsGrant(path, FsMode.RO) for path in (folder, file)]
            break
    known = {one.path for one in grants}
    added = tuple(one for one in shut if one.path not in known)
    if not named and not added:
        return policy
    return replace(policy, fs=(*grants, *added))


def _at_or_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _reaches(path: str, file: str) -> bool:
    """Return whether an entry covers the file, as a directory above it or as a pattern."""
    above = path.rstrip("/")
    return _at_or_below(file, above) or MountGlob(path).covers(file[1:].split("/"))
