"""`Row`: one line of the table. Every benchmark gives these and nothing else measures a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["met", "missed", "no target", "peer missing"]
MOST_USED = 1e6
"""What stands for "any amount over the target" when the target is nothing at all."""


@dataclass(frozen=True, slots=True)
class Target:
    """What was promised, and how much of that was used: up to 1 it is met."""

    text: str
    used: float


def at_most(limit: float, value: float, unit: str) -> Target:
    """Promise that `value` is no more than `limit`."""
    over = MOST_USED if value > 0 else 0.0
    used = value / limit if limit else over
    return Target(f"≤ {limit:,g}{_spaced(unit)}", max(0.0, min(used, MOST_USED)))


def at_least(limit: float, value: float, unit: str) -> Target:
    """Promise that `value` is no less than `limit`."""
    used = limit / value if value > 0 else MOST_USED
    return Target(f"≥ {limit:,g}{_spaced(unit)}", min(used, MOST_USED))


def _spaced(unit: str) -> str:
    return unit if unit.startswith("x") or not unit else f" {unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `ratio` is what ours costs for each unit of what the peer or floor costs, whichever way round
    the figures are: below 1 ours is cheaper, for times, sizes and rates alike. `spread` is how far
    the middle half of the rounds lies apart, as a share of their median.
    """

    work: str
    ours: float
    unit: str
    against: str = ""
    peer: float | None = None
    ratio: float | None = None
    target: str = ""
    used: float | None = None
    rounds: int | None = None
    spread: float | None = None
    problem: str = ""

    @property
    def verdict(self) -> Verdict:
        """Return whether the promise was kept."""
        if self.problem:
            return "peer missing"
        if self.used is None:
            return "no target"
        return "met" if self.used <= 1 else "missed"

    def as_json(self) -> dict[str, Any]:
        """Return the row for the file of results."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """Take a row from the file of results."""
        return cls(**{key: value for key, value in data.items() if key != "verdict"})


def row(
    work: str,
    ours: float,
    unit: str,
    *,
    against: str = "",
    peer: float | None = None,
    ratio: float | None = None,
    target: Target | None = None,
    samples: Sequence[float] = (),
) -> Row:
    """Make a row of what was measured.

    Args:
        work: What was done.
        ours: What it cost us, or how much of it we did per second.
        unit: Of `ours` and `peer`; with "/s" at its end more is better.
        against: What the peer or floor is.
        peer: What it cost there.
        ratio: Ours to the peer's cost, if more is known than the two figures, such as the ratios
            within each round.
        target: What was promised.
        samples: The figures of the rounds, in any one unit, for their number and spread.
    """
    if ratio is None and peer and ours:
        ratio = peer / ours if unit.endswith("/s") else ours / peer
    return Row(
        work,
        ours,
        unit,
        against,
        peer,
        ratio,
        target.text if target else "",
        target.used if target else None,
        len(samples) or None,
        _spread(samples),
    )


def peer_missing(work: str, against: str, reason: str, ours: float = 0.0, unit: str = "") -> Row:
    """Make the row of a comparison that could not be made, so that its absence shows."""
    return Row(work, ours, unit, against, problem=reason)


def _spread(samples: Sequence[float]) -> float | None:
    if len(samples) < 2:
        return None
    middle = statistics.median(samples)
    if not middle:
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / abs(middle)


__all__ = ["Row", "Target", "Verdict", "at_least", "at_most", "peer_missing", "row"]
