"""Which back end limits cages on this host, found by trying."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kaged.cage.limits import tree
from kaged.cage.limits.backend import LimitedResource, LimitsBackend
from kaged.cage.limits.cgroup1 import Cgroup1Backend
from kaged.cage.limits.cgroup2 import DAEMON_LEAF, Cgroup2Backend
from kaged.cage.limits.rlimits import RlimitsBackend
from kaged.cage.limits.scope import ScopeRequest
from kaged.kernel.policy import CageLimits

SCOPE_NAME = "systemd-scope"
_NEEDED = frozenset({LimitedResource.MEMORY, LimitedResource.PIDS})


def choose_backend(
    proc: Path = Path("/proc"), *, allow_cgroups: bool = True, scope: ScopeRequest | None = None
) -> LimitsBackend:
    """Return the strongest back end that works: cgroup v2, a systemd scope, cgroup v1, rlimits.

    Each candidate makes and removes a trial group with real limits before it is believed. With
    `scope` systemd may be asked to hand a part of the version 2 tree to this process.
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
        try:
            return _second(mount, instance)
        except OSError as error:
            reasons.append(f"cgroup v2 at {mount.folder}: {error}")
        if scope is None:
            continue
        try:
            return _in_scope(scope, mount, instance, proc)
        except OSError as error:
            reasons.append(f"systemd scope: {error}")
    first = Cgroup1Backend(tuple(one for one in mounts if one.controllers), instance)
    try:
        first.prepare()
        if not first.enforces >= _NEEDED:
            raise OSError("the daemon may not divide the memory and pids controllers")
        _try(first)
    except OSError as error:
        first.close()
        reasons.append(f"cgroup v1: {error}")
    else:
        return first
    return RlimitsBackend("; ".join(reasons))


def _in_scope(
    scope: ScopeRequest, mount: tree.CgroupMount, instance: str, proc: Path
) -> LimitsBackend:
    scope.ask(instance, mount, proc)
    for now in tree.cgroup_mounts(proc):
        if now.mountpoint == mount.mountpoint:
            return _second(now, instance)
    raise OSError("the scope cannot be seen from here")


def _second(mount: tree.CgroupMount, instance: str) -> Cgroup2Backend:
    own = mount.own.removesuffix(f"/{DAEMON_LEAF}") or "/"  # another back end of this process
    named = SCOPE_NAME if own.endswith(f"/{instance}.scope") else Cgroup2Backend.name
    backend = Cgroup2Backend(replace(mount, own=own), instance, named)
    backend.prepare()
    _try(backend)
    return backend


def _try(backend: LimitsBackend) -> None:
    group = backend.create("trial", CageLimits())
    group.destroy()
