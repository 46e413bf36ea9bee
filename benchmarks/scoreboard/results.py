"""`Results`: everything one run found, and the file it is kept in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scoreboard.curve import Curve
from scoreboard.machine import Machine
from scoreboard.row import Row


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark found. With an `error` it did not come to its end."""

    name: str
    rows: tuple[Row, ...] = ()
    curves: tuple[Curve, ...] = ()
    took_s: float = 0.0
    load_before: float = 0.0
    load_after: float = 0.0
    commit: str = ""
    measured_at: str = ""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the result for the file."""
        return {
            "name": self.name,
            "took_s": round(self.took_s, 1),
            "load_before": self.load_before,
            "load_after": self.load_after,
            "commit": self.commit,
            "measured_at": self.measured_at,
            "error": self.error,
            "rows": [one.as_json() for one in self.rows],
            "curves": [one.as_json() for one in self.curves],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Take a result from the file."""
        rows = tuple(Row.from_json(one) for one in data["rows"])
        curves = tuple(Curve.from_json(one) for one in data["curves"])
        rest = {key: value for key, value in data.items() if key not in {"rows", "curves"}}
        return cls(rows=rows, curves=curves, **rest)


@dataclass(frozen=True, slots=True)
class Results:
    """What all benchmarks found on one machine."""

    machine: Machine
    benchmarks: tuple[Result, ...]
    quick: bool = False

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for one in self.benchmarks for row in one.rows]

    @property
    def curves(self) -> list[Curve]:
        """All curves."""
        return [curve for one in self.benchmarks for curve in one.curves]

    @property
    def crashed(self) -> list[Result]:
        """The benchmarks that did not come to their end."""
        return [one for one in self.benchmarks if one.error]

    def beside(self, earlier: Results | None) -> Results:
        """Keep of an earlier run on the same machine what was not measured again."""
        if earlier is None or (earlier.machine, earlier.quick) != (self.machine, self.quick):
            return self
        mine = {one.name for one in self.benchmarks}
        kept = [one for one in earlier.benchmarks if one.name not in mine]
        every = sorted([*kept, *self.benchmarks], key=lambda one: one.name)
        return Results(self.machine, tuple(every), self.quick)

    def write(self, path: Path) -> None:
        """Keep everything in a file."""
        data = {
            "machine": asdict(self.machine),
            "quick": self.quick,
            "benchmarks": [one.as_json() for one in self.benchmarks],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Take everything from a file."""
        data = json.loads(path.read_text(encoding="utf-8"))
        found = tuple(Result.from_json(one) for one in data["benchmarks"])
        return cls(Machine(**data["machine"]), found, data["quick"])


__all__ = ["Result", "Results"]
