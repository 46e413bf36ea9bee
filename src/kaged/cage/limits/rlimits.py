"""Limits per process: the whole story on a host without cgroups, a part of it everywhere."""

from __future__ import annotations

import resource

from kaged.cage.limits.backend import LimitedResource, LimitStat
from kaged.kernel.policy import CageLimits

_MIB = 1024 * 1024
_MEMLOCK_BYTES = 8 * _MIB
_MSGQUEUE_BYTES = 1 * _MIB
_PENDING_SIGNALS = 4096
# What bwrap itself adds to the operator's number of processes.
BWRAP_PROCESSES = 1


def rlimits_for(
    limits: CageLimits, enforced: frozenset[LimitedResource]
) -> tuple[tuple[int, int], ...]:
    """Return the rlimits of a cage's first process, as pairs of what and value (soft is hard).

    Those a cgroup enforces for the cage as a whole are left to it: `RLIMIT_DATA` per process would
    refuse a program that the cage's memory still has room for.
    """
    found = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, _MEMLOCK_BYTES),
        (resource.RLIMIT_MSGQUEUE, _MSGQUEUE_BYTES),
        (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ]
    if limits.open_files:
        found.append((resource.RLIMIT_NOFILE, limits.open_files))
    if limits.file_size_mb:
        found.append((resource.RLIMIT_FSIZE, limits.file_size_mb * _MIB))
    if LimitedResource.PIDS not in enforced:
        # Counted per user namespace since Linux 5.14, so per cage; not enforced for uid 0.
        found.append((resource.RLIMIT_NPROC, limits.pids + BWRAP_PROCESSES))
    if LimitedResource.MEMORY not in enforced:
        # RLIMIT_AS would stop Node, which reserves gigabytes it never uses.
        found.append((resource.RLIMIT_DATA, limits.memory_mb * _MIB))
    return tuple(found)


class RlimitGroup:
    """Stands for a cage whose limits its processes carry themselves."""

    @property
    def enter_words(self) -> tuple[str, ...]:
        """Nothing to enter: the limits are set on the waiting process itself."""
        return ()

    @property
    def enter_files(self) -> tuple[str, ...]:
        """None, for the same reason."""
        return ()

    @property
    def join_files(self) -> tuple[str, ...]:
        """Nothing to join either."""
        return ()

    def settle(self) -> None:
        """Do nothing: rlimits know no shares."""

    def stat(self) -> LimitStat:
        """Return no figures: none are known."""
        return LimitStat()

    def destroy(self) -> bool:
        """Leave nothing behind."""
        return True


class RlimitsBackend:
    """No cgroup can be used: limits hold per process, and processors are not shared fairly."""

    name = "rlimits"
    enforces: frozenset[LimitedResource] = frozenset()

    def __init__(self, why: str = "") -> None:
        self.why = why

    def create(self, key: str, limits: CageLimits) -> RlimitGroup:
        """Make a group that keeps nothing."""
        return RlimitGroup()

    def sweep(self) -> int:
        """Find nothing to remove."""
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""
