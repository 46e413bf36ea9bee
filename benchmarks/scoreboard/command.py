"""The command behind `make bench`: run, print the table, keep the results, write the page."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scoreboard.clocks import keep_to_steady_clocks
from scoreboard.machine import this_machine
from scoreboard.page import CURVES_SVG, TARGETS_SVG, rewrite_page
from scoreboard.plot import curve_plot, target_plot
from scoreboard.results import Result, Results
from scoreboard.running import OUTPUT, run_all
from scoreboard.table import show

ROOT = Path(__file__).resolve().parents[2]
RESULTS = OUTPUT / "results.json"
QUICK_RESULTS = OUTPUT / "quick.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
MISSES = ROOT / "benchmarks" / "misses.toml"


def main(argv: list[str] | None = None) -> int:
    """Run what is asked for; exit 1 when a benchmark did not come to its end."""
    wanted = _wanted(argv)
    if wanted.page:
        write_page(Results.read(wanted.results), wanted.docs_page)
        return 0
    files = {path.stem.removeprefix("bench_"): path for path in _files()}
    names = [name.removeprefix("bench_") for name in wanted.names] or list(files)
    if unknown := [name for name in names if name not in files]:
        print(f"bench: no benchmark {', '.join(unknown)}; there are {', '.join(files)}")
        return 2
    try:
        coarse = keep_to_steady_clocks()
    except RuntimeError as error:
        print(f"bench: {error}")
        return 2
    if coarse:
        left_out = ", ".join(map(str, coarse))
        print(f"bench: the clock of processor {left_out} stands still: it is not used")
    earlier = Results.read(wanted.results) if wanted.results.is_file() else None
    machine = this_machine()

    def keep(found: Sequence[Result]) -> None:
        Results(machine, tuple(found), wanted.quick).beside(earlier).write(wanted.results)

    found = run_all([files[name] for name in names], quick=wanted.quick, keep=keep)
    mine = Results(machine, tuple(found), wanted.quick)
    show([*mine.rows, *mine.curves])
    for one in mine.crashed:
        print(f"bench: bench_{one.name} did not come to its end: {one.error}")
    verdicts = [row.verdict for row in mine.rows]
    print(
        f"bench: {verdicts.count('met')} met, {verdicts.count('missed')} missed, "
        f"{verdicts.count('no target')} without a target, {verdicts.count('peer missing')} "
        f"without their peer, {len(mine.crashed)} crashed; details in {wanted.results}"
    )
    if wanted.docs:
        write_page(Results.read(wanted.results), wanted.docs_page)
    return 1 if mine.crashed else 0


def write_page(results: Results, page: Path) -> None:
    """Rewrite the generated part of the page, and its plots beside it."""
    misses: dict[str, str] = tomllib.loads(MISSES.read_text(encoding="utf-8"))
    text = rewrite_page(page.read_text(encoding="utf-8"), results, misses)
    page.write_text(text, encoding="utf-8")
    page.with_name(TARGETS_SVG).write_text(target_plot(results), encoding="utf-8")
    if results.curves:
        page.with_name(CURVES_SVG).write_text(curve_plot(results.curves), encoding="utf-8")
    print(f"bench: wrote {page}")


def _files() -> list[Path]:
    return sorted((ROOT / "benchmarks").glob("bench_*.py"))


def _wanted(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the benchmarks and print one table.")
    parser.add_argument("names", nargs="*", help="only these, e.g. audit framing")
    parser.add_argument("--quick", action="store_true", help="small points, figures for nobody")
    parser.add_argument("--docs", action="store_true", help="rewrite the performance page too")
    parser.add_argument("--page", action="store_true", help="only rewrite the page")
    parser.add_argument("--results", type=Path, help="where results are kept")
    parser.add_argument("--docs-page", type=Path, default=PAGE, help="the page to rewrite")
    wanted = parser.parse_args(argv)
    if wanted.results is None:
        wanted.results = QUICK_RESULTS if wanted.quick else RESULTS
    if wanted.quick and (wanted.docs or wanted.page) and wanted.docs_page == PAGE:
        parser.error("the figures of a quick run do not belong on the page")
    return wanted


__all__ = ["main", "write_page"]
