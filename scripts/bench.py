"""Run the benchmarks, print one table, write build/bench/results.json, and on request the page.

Each `benchmarks/bench_*.py` runs in a process of its own and gives rows and curves. What was not
run again is kept from the results of an earlier run on the same machine. The exit status says
whether all of them came to their end, not whether targets were met: those stand in the table.
Never part of the tests: no test asserts a wall-clock time.

    python scripts/bench.py [name …]     only the named ones, e.g. `audit framing`
    python scripts/bench.py --docs       then rewrite docs/explanation/performance.md and its plots
    python scripts/bench.py --page       only rewrite the page, from the results that are there
    python scripts/bench.py --quick      small points, to see that all of it works
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from scoreboard.command import main  # pyright: ignore[reportMissingImports] - path set just above

if __name__ == "__main__":
    raise SystemExit(main())
