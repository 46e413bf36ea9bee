"""The one interface of the ways to limit a cage."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import CageLimits


class LimitedResource(StrEnum):
    """What can be limited for a cage as a whole."""

    MEMORY = "memory"
    PIDS = "pids"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class LimitStat:
    """What a cage used and what it was refused; None where the back end cannot know."""

    memory_bytes: int | None = None
    processes: int | None = None
    oom_kills: int | None = None
    forks_refused: int | None = None


class LimitGroup(Protocol):
    """The limits of one running cage."""

    @property
    def enter_words(self) -> tuple[str, ...]:
        """Words in front of bwrap's that make it enter the group by itself; empty if it cannot."""
        ...

    @property
    def enter_files(self) -> tuple[str, ...]:
        """The files that such a program writes `0` to; empty with `enter_words`."""
        ...

    @property
    def join_files(self) -> tuple[str, ...]:
        """Else the files that the number of the cage's first process is written to."""
        ...

    def settle(self) -> None:
        """Apply the share of processors, which is held back while bwrap sets the cage up."""
        ...

    def stat(self) -> LimitStat:
        """Read what was used and refused so far."""
        ...

    def destroy(self) -> bool:
        """Remove the group; False while the kernel still holds it busy."""
        ...


class LimitsBackend(Protocol):
    """A way to limit cages on this host."""

    @property
    def name(self) -> str:
        """The word for doctor, audit and status.

        `cgroup2`, `systemd-scope` (cgroup 2 below a scope that systemd gave), `cgroup1`, `rlimits`.
        """
        ...

    @property
    def enforces(self) -> frozenset[LimitedResource]:
        """What is limited for the cage as a whole, rather than per process or not at all."""
        ...

    def create(self, key: str, limits: CageLimits) -> LimitGroup:
        """Make a group with these limits. Raises OSError."""
        ...

    def sweep(self) -> int:
        """Remove what dead daemons left behind; return the number of groups removed."""
        ...

    def close(self) -> None:
        """Remove what this daemon made for itself."""
        ...


def weaker_limits(backend: LimitsBackend) -> list[LimitedResource]:
    """Return what is limited per process or not at all, rather than for the cage as a whole."""
    return sorted(set(LimitedResource) - backend.enforces)


def describe_limits(backend: LimitsBackend) -> str:
    """Return how cages are limited on this host, and which limits hold per process only."""
    missing = weaker_limits(backend)
    if not missing:
        return f"by {backend.name}, for each cage as a whole"
    words = ", ".join(missing)
    return f"by {backend.name}; WEAKER: {words} hold per process or not at all, see kaged doctor"
