"""The scoreboard: verdicts, curves, results in a file, the page and its plots."""

from __future__ import annotations

import ast
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from scoreboard import Curve, Point, Row, at_least, at_most, peer_missing, row  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the benchmarks
from scoreboard.machine import Machine  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise
from scoreboard.page import BEGIN, END, rewrite_page  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise
from scoreboard.plot import curve_plot, target_plot  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise
from scoreboard.results import Result, Results  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise
from scoreboard.words import ratio_words  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise

MACHINE = Machine("A <fine> processor", 2, 8.0, "6.1", "3.11.7")
MET = row("quick work", 1.0, "ms", against="a floor", peer=2.0, target=at_most(3, 1.0, "ms"))
MISSED = row("slow | work", 9.0, "ms", against="a floor", peer=3.0, target=at_most(2, 3.0, "x"))
SHOWN = row("shown work", 5.0, "MiB")
GONE = peer_missing("compared work", "some peer", "it cannot be installed")
FLAT = Curve("things 1 to 100", "a thing", "things", "ms", (Point(1, 2.0), Point(100, 1.0)))
GROWS = Curve("things 1 to 100", "a page", "things", "ms", (Point(1, 1.0), Point(100, 4.0)))
PAGE = f"# Performance\n\nWritten by hand.\n\n{BEGIN}\nold figures\n{END}\n\nAlso by hand.\n"


def results(*found: Any, curves: Any = (), error: str = "", **more: Any) -> Any:
    one = Result("sample", tuple(found), tuple(curves), 4.2, 0.5, 0.7, "abc", "2026-01-02T", error)
    return Results(MACHINE, (one,), **more)


@pytest.mark.parametrize(
    ("target", "used"),
    [
        (at_most(10, 5, "ms"), 0.5),
        (at_most(10, 10, "ms"), 1.0),
        (at_most(10, 12, "ms"), 1.2),
        (at_most(10, -1, "ms added"), 0.0),
        (at_most(0, 0, "left over"), 0.0),
        (at_least(100, 200, "calls/s"), 0.5),
        (at_least(100, 80, "calls/s"), 1.25),
    ],
)
def test_a_target_says_how_much_of_it_is_used(target: Any, used: float) -> None:
    assert target.used == pytest.approx(used)
    made = row("work", 1.0, "ms", target=target)
    assert made.verdict == ("met" if used <= 1 else "missed")


def test_anything_over_a_target_of_nothing_misses_it() -> None:
    assert row("work", 1.0, "", target=at_most(0, 1, "left over")).verdict == "missed"
    assert row("work", 0.0, "/s", target=at_least(5, 0, "/s")).verdict == "missed"


def test_without_a_target_or_a_peer_the_verdict_says_so() -> None:
    assert SHOWN.verdict == "no target"
    assert GONE.verdict == "peer missing"


def test_below_one_ours_is_cheaper_for_times_and_rates_alike() -> None:
    assert row("w", 10.0, "ms", peer=20.0).ratio == 0.5
    assert row("w", 20.0, "calls/s", peer=10.0).ratio == 0.5
    assert ratio_words(row("w", 1.0, "ms", peer=20.0)) == "20x faster"
    assert ratio_words(row("w", 1.0, "MiB", peer=20.0)) == "20x less"
    assert ratio_words(row("w", 3.0, "ms", peer=2.0)) == "1.5x"


def test_rounds_and_their_spread_come_from_the_samples() -> None:
    made = row("w", 2.0, "ms", samples=[1.0, 2.0, 3.0])
    assert (made.rounds, made.spread) == (3, pytest.approx(0.5))
    assert row("w", 2.0, "ms", samples=[2.0]).spread is None
    assert row("w", 2.0, "ms").rounds is None


def test_a_curve_is_judged_against_its_cheapest_point_and_not_a_dear_first_one() -> None:
    points = (Point(1, 100.0), Point(10, 1.0), Point(100, 3.0))
    hidden = Curve("f", "w", "things", "ms", points)
    assert hidden.growth == 3.0
    assert hidden.verdict == "grows"
    assert FLAT.verdict == "flat"


def test_results_are_the_same_after_a_file(tmp_path: Path) -> None:
    found = results(MET, MISSED, SHOWN, GONE, curves=[FLAT, GROWS], error="x")
    found.write(tmp_path / "deep" / "results.json")
    assert Results.read(tmp_path / "deep" / "results.json") == found


def test_what_was_not_measured_again_is_kept_only_from_the_same_kind_of_run() -> None:
    other = Results(MACHINE, (Result("another", (SHOWN,)),))
    new = results(MET)
    assert [one.name for one in new.beside(other).benchmarks] == ["another", "sample"]
    assert new.beside(results(MISSED)) == new
    assert new.beside(None) == new
    assert new.beside(Results(MACHINE, other.benchmarks, quick=True)) == new
    elsewhere = Machine("Another processor", 64, 8.0, "6.1", "3.11.7")
    assert new.beside(Results(elsewhere, other.benchmarks)) == new


def test_the_page_keeps_what_people_wrote_and_shows_every_row() -> None:
    page = rewrite_page(PAGE, results(MET, MISSED, SHOWN, GONE, curves=[FLAT, GROWS]), {})
    assert page.startswith("# Performance\n\nWritten by hand.\n")
    assert page.endswith(f"{END}\n\nAlso by hand.\n")
    assert "old figures" not in page
    assert "**1 of 2 targets met, 1 missed**; figures without a target: 1." in page
    assert "Comparisons that lack their peer: 1." in page
    assert "1 of 2 curves are flat." in page
    assert "| quick work | 1 ms | a floor | 2 ms | 0.5x | ≤ 3 ms | met (33%) | - |" in page
    assert "**missed (150%)**" in page
    assert "**peer missing: it cannot be installed**" in page
    assert "slow \\| work" in page
    assert rewrite_page(page, results(MET), {}) == rewrite_page(PAGE, results(MET), {})


def test_the_page_explains_a_miss_with_the_longest_beginning_that_fits() -> None:
    why = {"slow": "Because.", "slow | w": "Because of that.", "quick": "Not shown."}
    page = rewrite_page(PAGE, results(MET, MISSED), why)
    assert "(≤ 2x). Because of that.\n" in page
    assert "Not shown." not in page
    assert "Not explained yet." in rewrite_page(PAGE, results(MISSED), {})
    grown = rewrite_page(PAGE, results(curves=[FLAT, GROWS]), {"a page": "It is long."})
    assert "- a page: grows. It is long.\n" in grown
    assert "Missed targets" not in rewrite_page(PAGE, results(MET), {})


def test_the_page_says_which_benchmark_crashed_and_whether_the_run_was_quick() -> None:
    page = rewrite_page(PAGE, results(error="exit code 1:\nValueError: no"), {})
    assert "**`bench_sample` did not come to its end.**" in page
    assert "`ValueError: no`" in page
    assert "A quick run" in rewrite_page(PAGE, results(MET, quick=True), {})


def test_the_page_says_when_the_machine_was_busy_with_other_work() -> None:
    busy = Results(MACHINE, (Result("sample", (MET,), load_before=4.5),))
    assert "The machine was busy" in rewrite_page(PAGE, busy, {})
    assert "The machine was busy" not in rewrite_page(PAGE, results(MET), {})


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        rewrite_page("# Performance\n", results(MET), {})


def test_the_plots_are_pictures_for_light_and_dark_that_show_what_is_missed() -> None:
    bars = target_plot(results(MET, MISSED, SHOWN))
    lines = curve_plot([FLAT, GROWS])
    for text in (bars, lines):
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme:dark" in text
    assert bars.count('class="met"') == bars.count('class="missed"') == 1
    assert "shown work" not in bars
    assert lines.count("<polyline") == 2
    assert lines.count('class="bad"') == 1


def test_every_benchmark_gives_rows_or_curves() -> None:
    files = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    assert len(files) >= 28
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        run = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "run"]
        assert len(run) == 1, file
        assert run[0].returns is not None, file
        assert ast.unparse(run[0].returns) in {"list[Row]", "list[Curve]"}, file


def test_every_peer_is_pinned_to_one_version() -> None:
    files = sorted((ROOT / "benchmarks" / "peers").glob("*.txt"))
    assert [file.stem for file in files] == ["ast-grep", "cpex", "mcp", "ripgrep"]
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            assert "==" in line, f"{file}: {line}"


def test_a_row_cannot_claim_a_verdict_of_its_own() -> None:
    data = {**MISSED.as_json(), "verdict": "met"}
    assert Row.from_json(data).verdict == "missed"
