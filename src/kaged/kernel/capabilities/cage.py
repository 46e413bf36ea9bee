"""`cage_policy`: from a plugin's capability list to the `CagePolicy` it runs under."""

from __future__ import annotations

from collections.abc import Iterator

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities.grammar import CapabilityInvalid, CapabilityProblem
from kaged.kernel.capabilities.sets import CapabilitySet
from kaged.kernel.capabilities.terms import (
    CapabilityPath,
    ExecCapability,
    FsCapability,
    NetCapability,
    PathBase,
)
from kaged.kernel.net import NetTarget
from kaged.kernel.paths import AbsPath, join, normalise, within
from kaged.kernel.policy import (
    CageLimits,
    CagePolicy,
    CageState,
    ExecGrant,
    FsGrant,
    FsMode,
    SeccompProfile,
)


@dataclass(frozen=True, slots=True)
class CapabilityBases:
    """The facts that turn a capability's path into host paths.

    `config` is the directory kept for this plugin, `projects` the roots of the projects that
    activated it. `absent` are those paths below a project (see `project_paths`) that do not exist
    there: such a project is left out of the grant.
    """

    config: str
    projects: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()

    def resolve(self, place: CapabilityPath) -> tuple[AbsPath, ...]:
        """Return the host paths that a capability's path stands for; none without a project."""
        if place.base is PathBase.HOST:
            return (place.path,)
        if place.base is PathBase.CONFIG:
            return (join(self.config, place.path),)
        found = (join(root, place.path) for root in self.projects)
        return tuple(path for path in found if path not in self.absent)


def project_paths(caps: CapabilitySet, bases: CapabilityBases) -> tuple[AbsPath, ...]:
    """Return the host paths of `project:` entries, so that callers can look for them."""
    places = (i.place for i in caps if isinstance(i, FsCapability | ExecCapability))
    below = (place for place in places if place.base is PathBase.PROJECT)
    return tuple(dict.fromkeys(path for place in below for path in bases.resolve(place)))


def cage_policy(
    caps: CapabilitySet,
    install_dir: str,
    bases: CapabilityBases,
    limits: CageLimits | None = None,
) -> CagePolicy:
    """Return the policy of a plugin's cage: what its capabilities say, and nothing else.

    The install directory comes first and stays read-only. State is always ephemeral and seccomp
    always default; no argument changes that. The directory of an exec entry is in `exec` only:
    the cage shows it read-only unless an fs entry says more.

    Raises:
        CapabilityInvalid: an entry would make the install directory, or a part of it, writable.
        PathInvalid: the install directory or a base is no absolute path.
    """
    home = normalise(install_dir)
    modes: dict[AbsPath, FsMode] = {home: FsMode.RO}
    for item, path in _fs_paths(caps, bases):
        if item.mode is FsMode.RW and within(path, home):
            raise CapabilityInvalid(
                CapabilityProblem(
                    "capabilities",
                    item.text,
                    f"would make {path} writable, but a plugin's own directory is read-only",
                    "",
                )
            )
        if modes.get(path) is not FsMode.RW:
            modes[path] = item.mode
    return CagePolicy(
        fs=tuple(FsGrant(path, mode) for path, mode in modes.items()),
        net=_net_targets(caps),
        exec=tuple(
            ExecGrant(item.binary, path)
            for item in caps
            if isinstance(item, ExecCapability)
            for path in bases.resolve(item.place)
        ),
        state=CageState.EPHEMERAL,
        seccomp=SeccompProfile.DEFAULT,
        limits=limits or CageLimits(),
    )


def _fs_paths(
    caps: CapabilitySet, bases: CapabilityBases
) -> Iterator[tuple[FsCapability, AbsPath]]:
    for item in caps:
        if isinstance(item, FsCapability):
            for path in bases.resolve(item.place):
                yield item, path


def _net_targets(caps: CapabilitySet) -> tuple[NetTarget, ...]:
    return tuple(item.target for item in caps if isinstance(item, NetCapability))
