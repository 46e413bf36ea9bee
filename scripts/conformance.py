"""Print where every requirement row stands and fail when a claim has no passing test.

Reads the results that the full test run left in `build/requirements.json` when they belong to the
present tree; otherwise runs the marked tests first. Writes `build/conformance.json`.

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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from requirements.plugin import RESULTS, tree_fingerprint  # noqa: E402 - path set just above
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


def main() -> int:
    """Run the check and give the exit status."""
    rows = load_rows()
    ledger = load_ledger()
    results = _fresh_results()
    passed, failed = _by_row(results["tests"])
    if "--update" in sys.argv:
        _update(ledger, {row.id for row in rows if row.id in passed and row.id not in failed})
        ledger = load_ledger()
    problems = check_ledger(rows, ledger)
    for row_id in sorted(ledger.proven):
        if row_id in failed:
            problems.append(f"{row_id}: claimed as proven, but {failed[row_id][0]} did not pass")
        elif row_id not in passed:
            problems.append(f"{row_id}: claimed as proven, but no marked test passed in this run")
    problems += [
        f"{row_id}: proven by {nodes[0]} but not claimed; run `make conformance UPDATE=1`"
        for row_id, nodes in sorted(passed.items())
        if row_id not in ledger.proven and row_id not in failed
    ]
    _write(rows, ledger, passed, failed)
    _print(rows, ledger, passed, failed)
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


def _by_row(tests: list[dict[str, Any]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    passed: dict[str, list[str]] = {}
    failed: dict[str, list[str]] = {}
    for test in tests:
        for row_id in test["ids"]:
            (passed if test["passed"] else failed).setdefault(row_id, []).append(test["node"])
    return passed, failed


def _status(row: Row, ledger: Ledger, passed: dict[str, Any], failed: dict[str, Any]) -> str:
    if row.id in passed and row.id not in failed:
        return "proven"
    stands = ledger.reason(row)
    return stands[0] if stands else "missing"


def _write(
    rows: list[Row], ledger: Ledger, passed: dict[str, list[str]], failed: dict[str, list[str]]
) -> None:
    OUTPUT.parent.mkdir(exist_ok=True)
    table: list[dict[str, Any]] = []
    for row in rows:
        stands = ledger.reason(row)
        status = _status(row, ledger, passed, failed)
        entry: dict[str, Any] = {
            "id": row.id,
            "level": row.level,
            "status": status,
            "tests": passed.get(row.id, []) if status == "proven" else [],
        }
        if status != "proven" and stands:
            entry["reason"] = stands[1]
        table.append(entry)
    OUTPUT.write_text(json.dumps({"rows": table}, indent=1) + "\n", encoding="utf-8")


def _print(
    rows: list[Row], ledger: Ledger, passed: dict[str, list[str]], failed: dict[str, list[str]]
) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        counts[row.document, row.level, _status(row, ledger, passed, failed)] += 1
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
