"""The table in a terminal: one line for each row, one for each curve; plain when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scoreboard.curve import Curve
from scoreboard.row import Row
from scoreboard.words import amount, figure, ours_words, ratio_words, rounds_words, verdict_words

PIPED_WIDTH = 200
_STYLES = {"met": "green", "flat": "green", "missed": "bold red", "grows": "bold red"}


def show(found: Sequence[Row | Curve], out: TextIO | None = None) -> None:
    """Print rows and curves as tables."""
    to = sys.stdout if out is None else out
    console = Console(file=to, width=None if to.isatty() else PIPED_WIDTH)
    rows = [one for one in found if isinstance(one, Row)]
    curves = [one for one in found if isinstance(one, Curve)]
    if rows:
        console.print(_rows(rows))
    if curves:
        console.print(_curves(curves))


def _rows(rows: Sequence[Row]) -> Table:
    table = Table(title="Benchmarks", title_justify="left")
    table.add_column("work", ratio=4)
    table.add_column("ours", justify="right")
    table.add_column("peer or floor", ratio=3)
    table.add_column("its figure", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("target")
    table.add_column("verdict (of target)")
    table.add_column("rounds")
    for one in rows:
        table.add_row(
            one.work,
            ours_words(one),
            one.against or "-",
            amount(one.peer, one.unit),
            ratio_words(one),
            one.target or "-",
            Text(verdict_words(one), _STYLES.get(one.verdict, "yellow")),
            rounds_words(one),
        )
    return table


def _curves(curves: Sequence[Curve]) -> Table:
    table = Table(title="What one unit costs while there are more of them", title_justify="left")
    table.add_column("curve", ratio=3)
    table.add_column("points: how many, what one costs", ratio=4)
    table.add_column("last to cheapest", justify="right")
    table.add_column("verdict")
    table.add_column("because", ratio=3)
    for one in curves:
        points = ", ".join(f"{point.count:,}: {figure(point.cost)}" for point in one.points)
        table.add_row(
            f"{one.work} ({one.unit})",
            points,
            f"{figure(one.growth)}x of {figure(one.within)}x",
            Text(one.verdict, _STYLES[one.verdict]),
            one.reason or "-",
        )
    return table


__all__ = ["show"]
