"""Figures as people read them."""

from __future__ import annotations

from scoreboard.row import Row

_LESS = {"MB", "MiB", "MiB more", "KiB", "descriptors", "bytes"}


def figure(value: float | None) -> str:
    """Write a figure with about three digits that count."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def amount(value: float | None, unit: str) -> str:
    """Write a figure with its unit."""
    return "-" if value is None else f"{figure(value)} {unit}".rstrip()


def ours_words(row: Row) -> str:
    """Write our figure; a comparison that was not made may have none."""
    return "-" if row.problem and not row.unit else amount(row.ours, row.unit)


def ratio_words(row: Row) -> str:
    """Write ours to the peer's cost; well below 1 turned round, as people say it."""
    if row.ratio is None:
        return "-"
    if row.ratio >= 0.5:
        return f"{figure(row.ratio)}x"
    return f"{figure(1 / row.ratio)}x {'less' if row.unit in _LESS else 'faster'}"


def verdict_words(row: Row) -> str:
    """Write the verdict and how much of the target was used."""
    if row.problem:
        return f"peer missing: {row.problem}"
    if row.used is None:
        return row.verdict
    share = "over" if row.used > 100 else f"{row.used:.0%}"
    return f"{row.verdict} ({share})"


def rounds_words(row: Row) -> str:
    """Write how many rounds there were and how far they lie apart."""
    if row.rounds is None:
        return "-"
    return f"{row.rounds}" if row.spread is None else f"{row.rounds}, ±{row.spread / 2:.0%}"


__all__ = ["amount", "figure", "ours_words", "ratio_words", "rounds_words", "verdict_words"]
