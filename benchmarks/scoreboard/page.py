"""The generated part of the performance page, as a pure function of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scoreboard.curve import Curve
from scoreboard.results import Result, Results
from scoreboard.row import Row
from scoreboard.words import amount, figure, ours_words, ratio_words, rounds_words, verdict_words

BEGIN = "<!-- measured: begin (rewritten by `make bench DOCS=1`) -->"
END = "<!-- measured: end -->"
TARGETS_SVG = "performance.svg"
CURVES_SVG = "performance-curves.svg"
BUSY_BY_CORES = 2
"""Load for each processor from which a run was not alone: it makes up to one itself."""
NOT_EXPLAINED = "Not explained yet."


def rewrite_page(page: str, results: Results, misses: Mapping[str, str]) -> str:
    """Return the page with its generated part made anew; the rest stays as people wrote it.

    Args:
        page: The page as it is.
        results: What was measured.
        misses: By the beginning of a row's work, why its target is missed.

    Raises:
        ValueError: the page has no place for it.
    """
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{measured_part(results, misses)}\n{END}{after}"


def measured_part(results: Results, misses: Mapping[str, str]) -> str:
    """Return everything between the marks."""
    parts = [_facts(results), _summary(results)]
    parts += [f"![Share of each target that is used]({TARGETS_SVG})"]
    parts += _missed(results.rows, misses)
    for one in results.benchmarks:
        parts += _benchmark(one)
    if results.curves:
        parts += ["### Curves", f"![What one unit costs by how many there are]({CURVES_SVG})"]
        parts += [_curve_table(results.curves), *_reasons(results.curves, misses)]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> str:
    machine = results.machine
    commits = sorted({one.commit for one in results.benchmarks if one.commit})
    days = sorted({one.measured_at[:10] for one in results.benchmarks if one.measured_at})
    loads = [one.load_before for one in results.benchmarks] or [0.0]
    took = sum(one.took_s for one in results.benchmarks) / 60
    lines = [
        f"- Processor: {machine.cpu}, {machine.cores} cores; {machine.memory_gib:g} GiB of memory",
        f"- Linux {machine.kernel}, Python {machine.python}",
        (
            f"- Commit {', '.join(commits) or 'unknown'} (a `+` means: with changes); "
            f"measured {' to '.join(dict.fromkeys(days[:1] + days[-1:]))}"
        ),
        (
            f"- Load of the machine before each benchmark: {min(loads):.1f} to {max(loads):.1f}; "
            f"{took:.0f} minutes in all"
        ),
    ]
    if max(loads) > BUSY_BY_CORES * machine.cores:
        lines.append(
            "- **The machine was busy with other work: ratios say something, times little.**"
        )
    if results.quick:
        lines.append("- **A quick run: the figures show only that the benchmarks work.**")
    return "\n".join(lines)


def _summary(results: Results) -> str:
    counts = Counter(row.verdict for row in results.rows)
    with_target = counts["met"] + counts["missed"]
    text = f"**{counts['met']} of {with_target} targets met, {counts['missed']} missed**"
    text += f"; figures without a target: {counts['no target']}."
    if counts["peer missing"]:
        text += f" Comparisons that lack their peer: {counts['peer missing']}."
    flat = sum(curve.verdict == "flat" for curve in results.curves)
    if results.curves:
        text += f" {flat} of {len(results.curves)} curves are flat."
    for one in results.crashed:
        text += f" **`bench_{one.name}` did not come to its end.**"
    return text


def _missed(rows: Sequence[Row], misses: Mapping[str, str]) -> list[str]:
    missed = [row for row in rows if row.verdict == "missed"]
    if not missed:
        return []
    lines = [
        f"- {_cell(row.work)}: {_measured(row)} ({_cell(row.target)}). {_why(row, misses)}"
        for row in missed
    ]
    return ["### Missed targets", "\n".join(lines)]


def _measured(row: Row) -> str:
    text = amount(row.ours, row.unit)
    if row.peer is not None:
        text += f" against {amount(row.peer, row.unit)}, {ratio_words(row)}"
    return text


def _why(row: Row | Curve, misses: Mapping[str, str]) -> str:
    fitting = [start for start in misses if row.work.startswith(start)]
    return misses[max(fitting, key=len)] if fitting else NOT_EXPLAINED


def _benchmark(one: Result) -> list[str]:
    if not one.rows and not one.error:
        return []
    parts = [f"### {one.name.replace('_', ' ')}"]
    if one.error:
        parts.append(f"Did not come to its end: `{_cell(one.error.splitlines()[-1][:200])}`")
    if one.rows:
        lines = [
            "| Work | Ours | Peer or floor | Its figure | Ratio | Target | Verdict | Rounds |",
            "|---|--:|---|--:|--:|---|---|--:|",
            *(_line(row) for row in one.rows),
        ]
        parts.append("\n".join(lines))
    return parts


def _line(row: Row) -> str:
    verdict = verdict_words(row)
    cells = [
        row.work,
        ours_words(row),
        row.against or "-",
        amount(row.peer, row.unit),
        ratio_words(row),
        row.target or "-",
        f"**{verdict}**" if row.verdict in {"missed", "peer missing"} else verdict,
        rounds_words(row),
    ]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _curve_table(curves: Sequence[Curve]) -> str:
    lines = [
        "| Curve | How many: what one costs | Last to cheapest | Verdict |",
        "|---|---|--:|---|",
    ]
    for one in curves:
        points = ", ".join(f"{point.count:,}: {figure(point.cost)}" for point in one.points)
        verdict = one.verdict if one.verdict == "flat" else f"**{one.verdict}**"
        growth = f"{figure(one.growth)}x of {figure(one.within)}x"
        cells = (f"{one.family}: {one.work} ({one.unit})", points, growth, verdict)
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines)


def _reasons(curves: Sequence[Curve], misses: Mapping[str, str]) -> list[str]:
    lines = [f"- {_cell(one.work)}: {one.reason}" for one in curves if one.reason]
    unexplained = [one for one in curves if one.verdict == "grows" and not one.reason]
    lines += [f"- {_cell(one.work)}: grows. {_why(one, misses)}" for one in unexplained]
    return ["\n".join(lines)] if lines else []


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


__all__ = ["BEGIN", "CURVES_SVG", "END", "TARGETS_SVG", "measured_part", "rewrite_page"]
