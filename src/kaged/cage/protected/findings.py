"""`Sweep`, how protected places are gone through, and `Findings`, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.protected.tree import Parts

MAX_FOUND: Final = 2_000


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A protected path that a guest had written, and what became of it."""

    path: str
    reason: str
    keys: tuple[str, ...] = ()
    moved_to: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ReviewedChange:
    """A path that a guest changed and that a person should look at."""

    path: str
    why: str


@dataclass(slots=True)
class Findings:
    """What sweeps found, in their order."""

    taken_back: list[TakenBack] = field(default_factory=list[TakenBack])
    changed: list[ReviewedChange] = field(default_factory=list[ReviewedChange])
    complete: bool = True
    adopted: int = 0
    """Changes that were the operator's own."""
    held: bool = False
    """Something was left for a later sweep."""

    def add(self, other: Findings) -> None:
        """Take in what another sweep found; what happens again and again is said once."""
        known = {(one.path, one.reason, one.keys) for one in self.taken_back}
        again = [one for one in other.taken_back if (one.path, one.reason, one.keys) not in known]
        self.taken_back = (self.taken_back + again)[:MAX_FOUND]
        self.changed = (self.changed + other.changed)[:MAX_FOUND]
        self.complete = self.complete and other.complete
        self.adopted += other.adopted
        self.held = self.held or other.held


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep may rely on.

    The `final` one comes when no guest is left. Before it git may be at work: what it is about is
    left to it for a while. A `quick` one leaves to the next all that can wait. `closed` are open
    folders that no guest can write to, by the place where they were; `by_operator` tells, of a
    change that was just seen, whether no guest can have made it. With `covered`, every guest has
    copies of the configuration files that have some.
    """

    final: bool = False
    quick: bool = False
    closed: Mapping[Parts, int] = field(default_factory=dict[Parts, int])
    by_operator: Callable[[], bool] = bool
    covered: bool = False


FINAL: Final = Sweep(final=True)


def could_not(path: str, error: OSError, keys: tuple[str, ...] = ()) -> TakenBack:
    """Return what is said of a path that stays as the guest wrote it."""
    reason = f"it could not be taken back: {error.strerror or error}"
    return TakenBack(path, reason, keys, failed=True)
