"""Running benchmarks: the table, the file of results, the page; and one that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from scoreboard.page import BEGIN, END  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the benchmarks
from scoreboard.running import run_all  # noqa: E402  # pyright: ignore[reportMissingImports] - likewise

WAIT_S = 110


def test_a_quick_run_prints_the_table_and_writes_results_and_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Performance\n\n{BEGIN}\n{END}\n", encoding="utf-8")
    results = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, "scripts/bench.py", "--quick", "--docs", "decision"),
            *("scale_accounts", "--results", str(results), "--docs-page", str(page)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1/2] decision" in done.stderr
    assert "3 curves in" in done.stderr
    assert "tool-permission decision" in done.stdout
    assert "0 crashed" in done.stdout
    assert "\x1b" not in done.stdout
    data = json.loads(results.read_text(encoding="utf-8"))
    assert data["quick"] is True
    assert set(data["machine"]) == {"cpu", "cores", "memory_gib", "kernel", "python"}
    assert [one["name"] for one in data["benchmarks"]] == ["decision", "scale_accounts"]
    first, second = data["benchmarks"]
    assert [row["unit"] for row in first["rows"]] == ["µs"] * 3
    assert {"load_before", "load_after", "commit", "measured_at"} <= set(first)
    assert [len(curve["points"]) for curve in second["curves"]] == [2, 2, 2]
    text = page.read_text(encoding="utf-8")
    assert "### decision" in text
    assert "### Curves" in text
    assert (tmp_path / "performance.svg").is_file()
    assert (tmp_path / "performance-curves.svg").is_file()


def test_a_benchmark_that_fails_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    crash, alone, fine = (tmp_path / f"bench_{name}.py" for name in ("crash", "alone", "fine"))
    crash.write_text("def run():\n    raise ValueError('no such luck')\n", encoding="utf-8")
    alone.write_text(
        "from scoreboard import PeerMissing\n"
        "def run():\n    raise PeerMissing('it cannot be installed')\n",
        encoding="utf-8",
    )
    fine.write_text(
        "from scoreboard import row\nprint('chatter')\ndef run():\n    return [row('w', 1, '')]\n",
        encoding="utf-8",
    )
    word = StringIO()
    found = run_all([crash, alone, fine], quick=True, word=word, output=tmp_path / "out")
    assert "no such luck" in found[0].error
    assert [one.verdict for one in found[1].rows] == ["peer missing"]
    assert found[1].rows[0].problem == "it cannot be installed"
    assert [one.work for one in found[2].rows] == ["w"]
    assert "[1/3] crash: CRASHED" in word.getvalue()
    assert (tmp_path / "out" / "fine.log").read_text(encoding="utf-8") == "chatter\n"


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/bench.py", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 2
    assert "no benchmark nothing; there are ash_sb, ast, audit" in done.stdout


def test_the_figures_of_a_quick_run_never_reach_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/bench.py", "--quick", "--docs", "decision"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 2
    assert "do not belong on the page" in done.stderr
