#!/usr/bin/env python3
"""Break one line for each of a sample of requirement rows; say whose tests do not notice.

    make mutate                      200 rows, seed 1
    make mutate ROWS=20 SEED=7       fewer rows, other choices
    make mutate ONLY="PH-AMB-60"     of these rows, areas (PH-AMB) or documents (PH)

For each row its marked tests are found and run once, unbroken, to learn which lines they run (kept
in build/mutate between runs). One line is chosen that they run, that few other tests run, and that
has the row's and the tests' words in it (`mutating.affinity`). It is broken in a copy of the tree:
a comparison turned, `and` for `or`, a statement, `raise` or `not` left out, a constant changed,
`return None`. Then the row's tests run: fast ones that run the line first, its whole tests last.

- noticed: a test of the row failed, or did not end in a time in which it ends unbroken.
- survived: no test of the row failed, nor another that runs this line, nor one that is near to it
  (imports its module, is in the folder of its package, or has a word of the break in its own text),
  as far as these come in 45 seconds.
- elsewhere: another test noticed, so the line carries another row; the next line is tried, up to
  three. A row of which all three lines are guarded elsewhere only counts as survived: its tests
  assert nothing of what they run and what speaks of the row.
- not applicable: no test of the row passes here unbroken, or they run nothing that can be broken.

The table is printed and written to build/mutate.json; less than 95 % noticed is exit code 1.

Why no ready-made runner: mutmut 3.8 stops at this suite's first test (it uses an attribute that
pytest 9 does not have), switches mutants inside one process, which a daemon started by a test never
sees, and knows functions where we want rows. cosmic-ray 8 edits the working tree and runs one fixed
test command for every mutation; with 12,000 tests that is hours per row.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mutating.affinity import Affinity
from mutating.breaking import Job, Verdict, break_row, make_job
from mutating.choosing import Chooser
from mutating.copies import ROOT
from mutating.measuring import FAST, Measured, measure, module_of
from mutating.noting import ROWS
from mutating.running import run
from mutating.workers import my_copy, start_workers

sys.path.insert(0, str(ROOT / "tests"))
from requirements.rows import load_rows

RESULT = ROOT / "build" / "mutate.json"
BAR = 0.95
TRIES = 3
COLLECT_S = 600.0


def main() -> int:
    """Sample, measure, break, report."""
    asked = _arguments()
    began = time.monotonic()
    with start_workers(asked.workers) as workers:
        proofs = _collected(workers, asked.workers)
        rows = _sample(proofs, asked)
        took = time.monotonic() - began
        print(f"mutate: {len(rows)} rows, seed {asked.seed}, after {took:.0f} s", flush=True)
        measured = Measured()
        needed = _needed(rows, proofs)
        measured.recall({module_of(node) for node in needed})
        measure(measured, needed, workers, asked.workers)
        print(f"mutate: measured after {time.monotonic() - began:.0f} s", flush=True)
        verdicts = _try(rows, proofs, measured, workers, asked.seed)
    return _report(verdicts, asked.seed, time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break lines and see whose tests notice.")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("only", nargs="*", help="rows, areas or documents to sample from")
    return parser.parse_args()


# -- which rows, which tests ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proof:
    """The tests of one row: those that are measured, and the whole ones that are asked besides.

    Where a row has whole tests only, these are measured.
    """

    tests: list[str]
    whole: list[str]


def _collected(workers: ProcessPoolExecutor, count: int) -> dict[str, Any]:
    """Return what every test of the tree proves; each worker looks at its share of the modules."""
    modules = sorted(str(one.relative_to(ROOT)) for one in ROOT.glob("tests/**/test_*.py"))
    shares = [modules[at::count] for at in range(count)]
    found: dict[str, Any] = {}
    for part in workers.map(_collect, filter(None, shares)):
        found |= part
    return {node: found[node] for node in sorted(found)}


def _collect(modules: list[str]) -> dict[str, Any]:
    """Return what the tests of modules prove. Called in a worker."""
    copy = my_copy()
    target = copy.root / "build" / "rows.json"
    target.unlink(missing_ok=True)
    env = {ROWS: str(target)}
    done = run(copy, modules, limit_s=COLLECT_S, options=["--collect-only", "-qq"], env=env)
    if not target.is_file():
        raise RuntimeError(f"the tests cannot be collected:\n{done.output[-3000:]}")
    return json.loads(target.read_text(encoding="utf-8"))


def _sample(proofs: dict[str, Any], asked: argparse.Namespace) -> dict[str, Proof]:
    """Return the chosen rows, each with its tests."""
    tests: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for node, told in proofs.items():
        for row, level in zip(told["ids"], told["levels"], strict=True):
            (whole if level == "whole" else tests).setdefault(row, []).append(node)
    known = sorted(row for row in {**whole, **tests} if _is_asked(row, asked.only))
    names = random.Random(asked.seed).sample(known, min(asked.rows, len(known)))
    return {
        row: Proof(tests[row], whole.get(row, [])) if row in tests else Proof(whole[row], [])
        for row in sorted(names)
    }


def _is_asked(row: str, only: Sequence[str]) -> bool:
    return not only or any(row == one or row.startswith(f"{one}-") for one in only)


def _needed(rows: dict[str, Proof], proofs: dict[str, Any]) -> list[str]:
    """Return the tests to measure: the rows', and fast neighbours, to know whose a line is."""
    own = {node for proof in rows.values() for node in proof.tests}
    modules = {module_of(node) for node in own if node.startswith(FAST)}
    return [node for node in proofs if node in own or module_of(node) in modules]


# -- breaking ---------------------------------------------------------------------------------


def _try(
    rows: dict[str, Proof],
    proofs: dict[str, Any],
    measured: Measured,
    workers: ProcessPoolExecutor,
    seed: int,
) -> list[Verdict]:
    chooser = Chooser(measured, Affinity.of_source())
    texts = {row.id: row.says for row in load_rows()}
    waiting: dict[str, list[Job]] = {}
    verdicts: list[Verdict] = []
    for row, proof in rows.items():
        passing = [node for node in proof.tests if (one := measured.tests.get(node)) and one.passed]
        rng = random.Random(f"{seed} {row}")
        targets = chooser.targets(texts.get(row, ""), passing, rng)[:TRIES]
        waiting[row] = [
            make_job(row, one, passing, proof.whole, proofs, chooser, measured) for one in targets
        ]
        if not targets:
            why = "runs nothing that can be broken" if passing else "no test passes unbroken"
            verdicts.append(Verdict(row, "not applicable", why=why))
    running = {workers.submit(break_row, jobs): row for row, jobs in waiting.items() if jobs}
    for number, done in enumerate(as_completed(running), 1):
        verdict = done.result()
        verdicts.append(verdict)
        print(f"{number:4} {_line(verdict)}", flush=True)
    return sorted(verdicts, key=lambda one: one.row)


# -- telling ----------------------------------------------------------------------------------


def _line(one: Verdict) -> str:
    why = f"\n       {one.why}" if one.why else ""
    cost = f"{one.tests:>3} tests {one.seconds:>5.0f} s"
    return f"{one.row:<12} {one.verdict:<14} {cost}  {one.place}  {one.mutation}{why}"


def _used_s() -> float:
    """Return how much processor time the workers and all that they ran have used; they ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _report(verdicts: list[Verdict], seed: int, seconds: float) -> int:
    counts = Counter(one.verdict for one in verdicts)
    tried = counts["noticed"] + counts["survived"]
    share = counts["noticed"] / tried if tried else 1.0
    at_once = sum(one.verdict == "noticed" and one.lines == 1 for one in verdicts)
    print(f"\n{'row':<12} {'verdict':<14} {'cost':>17}  place  mutation")
    for one in verdicts:
        print(_line(one))
    print(
        f"\nmutate: {counts['noticed']} of {tried} noticed ({share:.1%}; "
        f"{at_once} at the first line), {counts['survived']} survived, "
        f"{counts['not applicable']} not applicable; "
        f"seed {seed}, {seconds:.0f} s, {_used_s():.0f} s of processors"
    )
    content = {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(_used_s(), 1),
        "noticed": counts["noticed"],
        "noticed_at_first_line": at_once,
        "survived": counts["survived"],
        "not_applicable": counts["not applicable"],
        "rows": [asdict(one) for one in verdicts],
    }
    Path(RESULT).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
