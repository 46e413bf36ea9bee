"""`Curve`: what one unit costs while there are more and more of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

FLAT_WITHIN = 1.5
"""How much dearer the last point may be than the cheapest before it, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Point:
    """How many there were, and what one cost."""

    count: int
    cost: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What one unit costs by how many there are.

    Flat is judged against the cheapest point before the last, not against the first: a fixed cost
    that many units share makes the first point dear and would hide growth behind it. `reason` says
    in words why a curve is not flat, or what its shape comes from.
    """

    family: str
    work: str
    count_unit: str
    unit: str
    points: tuple[Point, ...]
    within: float = FLAT_WITHIN
    reason: str = ""

    @property
    def growth(self) -> float:
        """Return how many times the cheapest earlier point the last one costs."""
        cheapest = min(point.cost for point in self.points[:-1])
        return self.points[-1].cost / cheapest if cheapest else float(self.points[-1].cost > 0)

    @property
    def verdict(self) -> Literal["flat", "grows"]:
        """Return whether the cost of one unit stays the same."""
        return "flat" if self.growth <= self.within else "grows"

    def as_json(self) -> dict[str, Any]:
        """Return the curve for the file of results."""
        return {
            "family": self.family,
            "work": self.work,
            "count_unit": self.count_unit,
            "unit": self.unit,
            "points": [[point.count, point.cost] for point in self.points],
            "within": self.within,
            "reason": self.reason,
            "growth": self.growth,
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Curve:
        """Take a curve from the file of results."""
        return cls(
            data["family"],
            data["work"],
            data["count_unit"],
            data["unit"],
            tuple(Point(int(count), float(cost)) for count, cost in data["points"]),
            data["within"],
            data["reason"],
        )


__all__ = ["FLAT_WITHIN", "Curve", "Point"]
