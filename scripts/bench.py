"""Run every benchmark in a process of its own, print one table, write build/bench.json.

Each `benchmarks/bench_*.py` has `run() -> list[dict]` with rows of
`{work, ours, unit, against, peer, ratio, target, verdict}`. Peers live in environments of their own
under build/. Never part of the tests: no test asserts a wall-clock time.

    python scripts/bench.py [name ...]     only the named files, e.g. `audit framing`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench.json"
FIELDS = ("work", "ours", "unit", "against", "peer", "ratio", "target", "verdict")
_RUN_ONE = (
    "import json, runpy, sys; rows = runpy.run_path(sys.argv[1])['run']();"
    "open(sys.argv[2], 'w', encoding='utf-8').write(json.dumps(rows))"
)


def main() -> int:
    """Run the chosen benchmarks; exit 1 when one could not run or missed its target."""
    chosen = [f"bench_{name.removeprefix('bench_')}.py" for name in sys.argv[1:]]
    files = [
        path
        for path in sorted((ROOT / "benchmarks").glob("bench_*.py"))
        if not chosen or path.name in chosen
    ]
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for path in files:
        print(f"bench: {path.name}", flush=True)
        got = _run_one(path)
        if got is None:
            broken.append(path.name)
        else:
            rows += got
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    _print_table(rows)
    for name in broken:
        print(f"  ! {name} did not finish; its output is above")
    missed = [row["work"] for row in rows if row["verdict"] != "met"]
    print(f"bench: {len(rows) - len(missed)} met, {len(missed)} missed, {len(broken)} broken")
    return 1 if missed or broken else 0


def _run_one(path: Path) -> list[dict[str, Any]] | None:
    out = ROOT / "build" / f"{path.stem}.json"
    out.parent.mkdir(exist_ok=True)
    out.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    subprocess.run(
        [sys.executable, "-c", _RUN_ONE, str(path), str(out)], check=False, cwd=ROOT, env=env
    )
    if not out.exists():
        return None
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    return [{field: row.get(field) for field in FIELDS} for row in rows]


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="kaged benchmarks", title_justify="left")
    for field in FIELDS:
        table.add_column(field, justify="right" if field in {"ours", "peer", "ratio"} else "left")
    for row in rows:
        table.add_row(*(_cell(row[field]) for field in FIELDS))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


if __name__ == "__main__":
    raise SystemExit(main())
