"""`ToolchainKits`: what one cage gets of the toolchains that its policy names.

Programs and libraries are shown read-only. What package managers keep goes into a folder of the
project's own, never into the person's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.compile import SYSTEM_PATH
from kaged.cage.errors import GrantRefused
from kaged.cage.request import CageRequest, HostMount
from kaged.cage.toolchains.finding import FoundToolchain, ToolchainFinder
from kaged.cage.toolchains.places import PACKAGE_VARIABLES, PACKAGES
from kaged.kernel.mounts import has_magic
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

_PROJECT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class ToolchainKit:
    """What is added to one cage: mounts, folders that come first on PATH, variables."""

    mounts: tuple[HostMount, ...] = ()
    bins: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class ToolchainKits:
    """Looks for toolchains each time that a cage is started: what was installed since is there.

    `cache_dir` is the daemon's, in which each project has a folder for its packages.
    """

    def __init__(self, finder: ToolchainFinder, cache_dir: Path) -> None:
        self._finder = finder
        self._cache_dir = cache_dir

    def found(self, policy: CagePolicy) -> tuple[FoundToolchain, ...]:
        """Return what there is of each toolchain that a policy names."""
        changeable = [one for grant in policy.fs if (one := _changeable(grant))]
        return tuple(self._finder.find(name, changeable) for name in policy.toolchains)

    def kit(self, policy: CagePolicy, project_id: str) -> ToolchainKit:
        """Return what a cage of a project gets; without a project it keeps no packages.

        Raises:
            GrantRefused: the folder for packages cannot be used.
        """
        if not policy.toolchains:
            return ToolchainKit()
        mounts: list[HostMount] = []
        bins: list[str] = []
        env: list[tuple[str, str]] = []
        for one in self.found(policy):
            mounts += _mounts(one, policy)
            bins += one.bins
            env += one.env
            env += PACKAGE_VARIABLES[one.name] if project_id else ()
        if project_id:
            folder = self._packages(project_id, policy)
            mounts.append(HostMount(str(folder), PACKAGES, FsMode.RW))
        return ToolchainKit(tuple(dict.fromkeys(mounts)), tuple(dict.fromkeys(bins)), tuple(env))

    def added_to(self, request: CageRequest) -> CageRequest:
        """Return the request of a person's own try with what its policy names, without a cache."""
        kit = self.kit(request.policy, "")
        return replace(
            request,
            mounts=(*request.mounts, *kit.mounts),
            env=(*request.env, *kit.env),
            fixed_env=(*request.fixed_env, *path_with(kit.bins, request.policy)),
        )

    def _packages(self, project_id: str, policy: CagePolicy) -> Path:
        """Return the folder of a project's packages, which nobody but its cages writes to."""
        if _PROJECT_ID.fullmatch(project_id) is None:
            raise GrantRefused(str(self._cache_dir), f"{project_id!a} is no project's id")
        top = self._cache_dir / "packages"
        place = top / project_id
        try:
            top.mkdir(mode=0o711, parents=True, exist_ok=True)
            place.mkdir(mode=0o700, exist_ok=True)
            if place.is_symlink() or top.is_symlink():
                raise GrantRefused(
                    str(place), "the folder for packages is a symbolic link", fix="remove the link"
                )
            if os.geteuid() == 0:
                top.chmod(0o711)
                _give_to_owner(place, policy)
        except OSError as error:
            raise GrantRefused(
                str(place),
                f"the folder for packages cannot be used: {error.strerror}",
                fix="make it a directory that the daemon's user may write to",
            ) from error
        return place


def path_with(
    first: Sequence[str], policy: CagePolicy, last: Sequence[str] = (), said: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return PATH with folders before and behind what it is anyway; nothing without any.

    What a command says itself goes before what the policy says.
    """
    if not first and not last:
        return ()
    base = said or dict(policy.env).get("PATH") or SYSTEM_PATH
    return (("PATH", ":".join((*first, base, *last))),)


def _mounts(found: FoundToolchain, policy: CagePolicy) -> Iterator[HostMount]:
    for source, dest in found.shown:
        # Where a grant shows the same, it is there already, under the grant's own rules.
        if not any(dest == one or dest.startswith(f"{one}/") for one in map(_fixed, policy.fs)):
            yield HostMount(source, dest)


def _fixed(grant: FsGrant) -> str:
    """Return a granted path up to its first pattern."""
    parts: list[str] = []
    for part in grant.path.split("/"):
        if has_magic(part):
            break
        parts.append(part)
    return "/".join(parts) or "/"


def _changeable(grant: FsGrant) -> str:
    return os.path.realpath(_fixed(grant)) if grant.mode is FsMode.RW else ""


def _give_to_owner(place: Path, policy: CagePolicy) -> None:
    """Let a root daemon's cages run as the owner of what they write, as without a cache."""
    for grant in sorted(policy.fs, key=lambda one: one.mode is not FsMode.RW)[:1]:
        owner = os.stat(_fixed(grant))  # noqa: PTH116 - string paths throughout
        os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)
