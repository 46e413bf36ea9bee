"""Which back end limits cages on this host, found by trying."""

from __future__ import annotations

from pathlib import Path

from kaged.cage.limits import tree
from kaged.cage.limits.backend import LimitsBackend, Resource
from kaged.cage.limits.cgroup1 import Cgroup1Backend
from kaged.cage.limits.cgroup2 import Cgroup2Backend
from kaged.cage.limits.rlimits import RlimitsBackend
from kaged.kernel.policy import CageLimits

_NEEDED = frozenset({Resource.MEMORY, Resource.PIDS})


def choose_backend(proc: Path = Path("/proc"), *, allow_cgroups: bool = True) -> LimitsBackend:
    """Give the strongest back end that works here: cgroup v2, else v1, else rlimits.

    Each candidate makes and removes a trial group with real limits before it is believed.
    """
    if not allow_cgroups:
        return RlimitsBackend("switched off by configuration")
    try:
        mounts = tree.cgroup_mounts(proc)
    except OSError as error:
        return RlimitsBackend(f"cgroups cannot be read: {error}")
    instance = tree.instance_name()
    reasons: list[str] = []
    for mount in (one for one in mounts if not one.controllers):
        second = Cgroup2Backend(mount, instance)
        try:
            second.prepare()
            _try(second)
        except OSError as error:
            reasons.append(f"cgroup v2 at {mount.folder}: {error}")
            continue
        return second
    first = Cgroup1Backend(tuple(one for one in mounts if one.controllers), instance)
    try:
        first.prepare()
        if not first.enforces >= _NEEDED:
            raise OSError("the memory and pids controllers are not ours to divide")
        _try(first)
    except OSError as error:
        first.close()
        reasons.append(f"cgroup v1: {error}")
    else:
        return first
    return RlimitsBackend("; ".join(reasons))


def _try(backend: LimitsBackend) -> None:
    group = backend.create("trial", CageLimits())
    group.destroy()


__all__ = ["choose_backend"]
