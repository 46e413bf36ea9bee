"""Print where every requirement row stands and fail when a claim has no passing test.

Reads the results that the full test run left in `build/requirements.json` when they belong to the
present tree; otherwise runs the marked tests first. What the root part (`make test-root`) left in
`build/requirements-root.json` counts as well; rows that only it can prove are named when it has not
run. Writes `build/conformance.json`.

Each row is proven at a level, the best of its tests: `whole` (the product as people use it),
`contract` (parts put together) or `unit` (a part alone). A row that tells what the host or the
daemon does and has no whole proof is shown as "in parts".

    python scripts/conformance.py            check and report
    python scripts/conformance.py --update   add newly proven rows to docs/requirements/status.yaml
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from requirements.levels import PROOFS  # noqa: E402 - path set just above
from requirements.plugin import RESULTS, ROOT_RESULTS, tree_fingerprint  # noqa: E402 - path set just above
from requirements.rows import (  # noqa: E402 - path set just above
    DOCUMENTS,
    LEDGER,
    LEVELS,
    Ledger,
    Row,
    check_ledger,
    load_ledger,
    load_rows,
)

OUTPUT = ROOT / "build" / "conformance.json"
WHOLE_AT_LEAST = 1520
"""So many rows are proven by the product as people use it; the number only grows."""


class Outcomes(NamedTuple):
    """What the tests said about the rows; `only_root` wait for the root part, which did not run."""

    passed: dict[str, list[str]]
    failed: dict[str, list[str]]
    only_root: set[str]
    levels: dict[str, str]


def main() -> int:
    """Run the check and return the exit status."""
    rows = load_rows()
    ledger = load_ledger()
    results = _fresh_results()
    tests = results["tests"] + _root_tests()
    outcomes = by_row(tests, left_to_root(results, tests))
    passed, failed = outcomes.passed, outcomes.failed
    if "--update" in sys.argv:
        _update(ledger, {row.id for row in rows if row.id in passed and row.id not in failed})
        ledger = load_ledger()
    problems = check_ledger(rows, ledger)
    for row_id in sorted(ledger.proven):
        if row_id in failed:
            problems.append(f"{row_id}: claimed as proven, but {failed[row_id][0]} did not pass")
        elif row_id not in passed and row_id not in outcomes.only_root:
            problems.append(f"{row_id}: claimed as proven, but no marked test passed in this run")
    problems += [
        f"{row_id}: proven by {nodes[0]} but not claimed; run `make conformance UPDATE=1`"
        for row_id, nodes in sorted(passed.items())
        if row_id not in ledger.proven and row_id not in failed
    ]
    problems += check_levels(rows, outcomes)
    _write(rows, ledger, outcomes)
    _print(rows, ledger, outcomes)
    if only_root := sorted(outcomes.only_root & ledger.proven):
        print(f"proven by the root part, which has not run here: {', '.join(only_root)}")
        print("  to see them proven: sudo make test-root, then this again")
    for problem in problems:
        print(f"  ! {problem}")
    print(f"conformance: {len(problems)} problem(s); table in {OUTPUT.relative_to(ROOT)}")
    return 1 if problems else 0


def _fresh_results() -> dict[str, Any]:
    if RESULTS.exists():
        data: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
        if data["full"] and data["fingerprint"] == tree_fingerprint():
            return data
    print("conformance: no results for this tree yet; running the tests", flush=True)
    RESULTS.unlink(missing_ok=True)
    subprocess.run([ROOT / "scripts" / "test"], check=False, env=os.environ, cwd=ROOT)
    if not RESULTS.exists():
        raise SystemExit("conformance: the test run wrote no results; see its output above")
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def _root_tests() -> list[dict[str, Any]]:
    """Return what the root part saw of the present tree; nothing when it did not run."""
    if not ROOT_RESULTS.exists():
        return []
    data: dict[str, Any] = json.loads(ROOT_RESULTS.read_text(encoding="utf-8"))
    return data["tests"] if data["fingerprint"] == tree_fingerprint() else []


def left_to_root(results: dict[str, Any], tests: list[dict[str, Any]]) -> set[str]:
    """Return the rows with a test that was left to the root part and has no outcome yet."""
    seen = {test["node"] for test in tests}
    left = [test for test in results["left_to_root"] if test["node"] not in seen]
    return {row_id for test in left for row_id in test["ids"]}


def by_row(tests: list[dict[str, Any]], waiting: set[str]) -> Outcomes:
    """Sort the tests' outcomes by row."""
    passed: dict[str, list[str]] = {}
    failed: dict[str, list[str]] = {}
    levels: dict[str, str] = {}
    for test in tests:
        for row_id, level in zip(test["ids"], test["levels"], strict=True):
            (passed if test["passed"] else failed).setdefault(row_id, []).append(test["node"])
            levels[row_id] = max(levels.get(row_id, PROOFS[0]), level, key=PROOFS.index)
    return Outcomes(passed, failed, waiting - passed.keys() - failed.keys(), levels)


def check_levels(rows: list[Row], outcomes: Outcomes, at_least: int = WHOLE_AT_LEAST) -> list[str]:
    """List the areas that nobody tried as a whole, and a number of whole proofs that fell."""
    whole = {row_id for row_id, level in outcomes.levels.items() if level == "whole"}
    whole -= outcomes.failed.keys()
    areas = {row.area for row in rows if row.id in outcomes.passed}
    bare = sorted(areas - {row.area for row in rows if row.id in whole})
    problems = [f"{area}: no row of it is proven whole" for area in bare]
    if len(whole) < at_least:
        problems.append(f"{len(whole)} rows are proven whole; {at_least} were before")
    return problems


def in_parts(row: Row, outcomes: Outcomes) -> bool:
    """Return whether a row about the running program is proven by parts of it only."""
    return row.is_wiring and row.id in outcomes.passed and outcomes.levels[row.id] != "whole"


def _status(row: Row, ledger: Ledger, outcomes: Outcomes) -> str:
    if row.id in outcomes.passed and row.id not in outcomes.failed:
        return "proven"
    if row.id in outcomes.only_root & ledger.proven:
        return "root part"
    stands = ledger.reason(row)
    return stands[0] if stands else "missing"


def _write(rows: list[Row], ledger: Ledger, outcomes: Outcomes) -> None:
    OUTPUT.parent.mkdir(exist_ok=True)
    table: list[dict[str, Any]] = []
    for row in rows:
        stands = ledger.reason(row)
        status = _status(row, ledger, outcomes)
        entry: dict[str, Any] = {
            "id": row.id,
            "level": row.level,
            "status": status,
            "tests": outcomes.passed.get(row.id, []) if status == "proven" else [],
        }
        if status == "proven":
            entry["proof"] = "in parts" if in_parts(row, outcomes) else outcomes.levels[row.id]
        if status != "proven" and stands:
            entry["reason"] = stands[1]
        table.append(entry)
    OUTPUT.write_text(json.dumps({"rows": table}, indent=1) + "\n", encoding="utf-8")


def _print(rows: list[Row], ledger: Ledger, outcomes: Outcomes) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        counts[row.document, row.level, _status(row, ledger, outcomes)] += 1
    print(f"{'document':<22}" + "".join(f"{level:>14}" for level in LEVELS) + f"{'all':>14}")
    for document in (*DOCUMENTS, "total"):
        cells: list[str] = []
        for level in (*LEVELS, "all"):
            some = {
                key: n
                for key, n in counts.items()
                if document in {key[0], "total"} and level in {key[1], "all"}
            }
            proven = sum(n for key, n in some.items() if key[2] == "proven")
            cells.append(f"{proven}/{sum(some.values())}")
        print(f"{document:<22}" + "".join(f"{cell:>14}" for cell in cells))
    _print_levels(rows, ledger, outcomes)


def _print_levels(rows: list[Row], ledger: Ledger, outcomes: Outcomes) -> None:
    """Print how the proven rows of each area are proven."""
    columns = (*PROOFS, "in parts")
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        if _status(row, ledger, outcomes) == "proven":
            proof = outcomes.levels[row.id]
            for key in (row.area, "total"):
                counts.setdefault(key, Counter())[proof] += 1
                counts[key]["in parts"] += in_parts(row, outcomes)
    print(f"\n{'proven as':<22}" + "".join(f"{name:>14}" for name in columns))
    for area, seen in sorted(counts.items(), key=lambda item: (item[0] == "total", item[0])):
        print(f"{area:<22}" + "".join(f"{seen[name]:>14}" for name in columns))


def _update(ledger: Ledger, proven: set[str]) -> None:
    """Rewrite the proven list; what lost its proof stays and is reported, never dropped quietly."""
    text = LEDGER.read_text(encoding="utf-8")
    head, found, _ = text.partition("\nproven:")
    if not found:
        raise SystemExit(f"{LEDGER}: no `proven:` list at the end of the file")
    ids = sorted(ledger.proven | proven)
    LEDGER.write_text(head + "\nproven:\n" + "".join(f"  - {i}\n" for i in ids), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
