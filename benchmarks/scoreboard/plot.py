"""The two plots of the page: how much of each target is used, and the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scoreboard.curve import Curve
from scoreboard.results import Results
from scoreboard.svg import COLOURS, Drawing
from scoreboard.words import figure

_WIDTH = 960.0
_LABELS = 500.0
_BAR = 18.0
_LABEL_CHARS = 78
_LOWEST, _HIGHEST = 0.01, 10.0
_NEAR_LIMIT = 0.45
_PANEL_W, _PANEL_H, _LEGEND_H = 460.0, 230.0, 18.0
_FAMILY_GAP = 24.0


def target_plot(results: Results) -> str:
    """Draw a bar for each row with a target: the share of it that is used, on a log scale."""
    groups = [
        (one.name, [row for row in one.rows if row.used is not None]) for one in results.benchmarks
    ]
    groups = [(name, rows) for name, rows in groups if rows]
    height = 90 + sum(26 + _BAR * len(rows) for _, rows in groups)
    title = "Share of each target that is used; up to 1 it is met"
    plot = Drawing(_WIDTH, height, title)
    plot.text(12, 24, title, "title")
    plot.text(
        12, 42, "Log scale. Shorter is better; a bar beyond the line is a missed target.", "small"
    )
    for mark in (0.01, 0.1, 1, 10):
        x = _along(mark)
        plot.text(x, 62, f"{mark:g}", "small middle")
        plot.line(x, 68, x, height - 10, "limit" if mark == 1 else "grid")
    y = 68.0
    for name, rows in groups:
        y += 20
        plot.text(12, y, name.replace("_", " "), "head")
        y += 6
        for row in rows:
            assert row.used is not None
            verdict = "met" if row.used <= 1 else "missed"
            x = _along(row.used)
            plot.text(_LABELS - 8, y + 12, _cut(row.work), "small end")
            plot.box(_LABELS, y + 3, x - _LABELS, _BAR - 6, verdict)
            share = figure(row.used) if row.used <= _HIGHEST else f"over {_HIGHEST:g}"
            # Beside the line and not across it.
            at = _along(1) if _NEAR_LIMIT < row.used <= 1 else x
            plot.text(at + 5, y + 12, share, "bad" if verdict == "missed" else "small")
            y += _BAR
    return plot.finish()


def _along(used: float) -> float:
    clamped = min(max(used, _LOWEST), _HIGHEST)
    whole = math.log10(_HIGHEST / _LOWEST)
    return _LABELS + math.log10(clamped / _LOWEST) / whole * (_WIDTH - _LABELS - 70)


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def curve_plot(curves: Sequence[Curve]) -> str:
    """Draw a panel for each family of curves: what one unit costs, over how many there are."""
    families: dict[str, list[Curve]] = {}
    for curve in curves:
        families.setdefault(curve.family, []).append(curve)
    panels = list(families.items())
    heights = [
        max(_PANEL_H + _LEGEND_H * len(own) for _, own in panels[at : at + 2]) + _FAMILY_GAP
        for at in range(0, len(panels), 2)
    ]
    title = "What one unit costs, while there are more and more of them"
    plot = Drawing(_WIDTH, 60 + sum(heights), title)
    plot.text(12, 24, title, "title")
    words = (
        "Cost against the cheapest earlier point (1 = no growth), log scales; the dashed line is"
    )
    plot.text(12, 42, f"{words} the limit of what counts as flat.", "small")
    top = 60.0
    for at in range(0, len(panels), 2):
        for column, (family, own) in enumerate(panels[at : at + 2]):
            _panel(plot, 12 + column * (_PANEL_W + 16), top, family, own)
        top += heights[at // 2]
    return plot.finish()


def _panel(plot: Drawing, left: float, top: float, family: str, curves: list[Curve]) -> None:
    counts = [point.count for curve in curves for point in curve.points]
    shares = {id(curve): _shares(curve) for curve in curves}
    every = [share for own in shares.values() for share in own]
    low = min(0.5, *every)
    high = max(2.0, *(curve.within for curve in curves), *every) * 1.2
    x0, x1, y0, y1 = left + 44, left + _PANEL_W - 16, top + 26, top + _PANEL_H - 24
    span_x = math.log10(max(counts) / min(counts)) or 1.0

    def across(count: float) -> float:
        return x0 + math.log10(count / min(counts)) / span_x * (x1 - x0)

    def up(share: float) -> float:
        return y1 - math.log10(share / low) / math.log10(high / low) * (y1 - y0)

    plot.text(left, top + 14, family, "head")
    for mark in (0.1, 0.5, 1, 2, 5, 10, 50, 100):
        if low <= mark <= high:
            plot.line(x0, up(mark), x1, up(mark), "grid")
            plot.text(x0 - 6, up(mark) + 4, f"{mark:g}x", "small end")
    for count in sorted(set(counts)):
        if count == min(counts) or count == max(counts) or _is_power(count):
            plot.text(across(count), y1 + 16, _short(count), "small middle")
    limit = max(curve.within for curve in curves)
    plot.line(x0, up(limit), x1, up(limit), "limit")
    for number, curve in enumerate(curves):
        points = [
            (across(point.count), up(share))
            for point, share in zip(curve.points, shares[id(curve)], strict=True)
        ]
        plot.path(points, number)
        foot = top + _PANEL_H + 10 + _LEGEND_H * number
        plot.box(left + 4, foot - 9, 12, 10, f"d{number % COLOURS}")
        last = curve.points[-1]
        words = f"{curve.work}: {figure(last.cost)} {curve.unit}, {_short(last.count)}"
        plot.text(left + 22, foot, words, "bad" if curve.verdict == "grows" else "small")


def _shares(curve: Curve) -> list[float]:
    cheapest = min(point.cost for point in curve.points[:-1]) or 1.0
    return [max(point.cost / cheapest, 1e-3) for point in curve.points]


def _is_power(count: int) -> bool:
    return count in {10**exponent for exponent in range(8)}


def _short(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1_000_000:g}M"
    return f"{count / 1000:g}k" if count >= 1000 else str(count)


__all__ = ["curve_plot", "target_plot"]
