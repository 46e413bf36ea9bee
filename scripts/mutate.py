#!/usr/bin/env python3
"""Break one line for each of a sample of requirement rows; say whose tests do not notice.

    make mutate                      200 rows, seed 1
    make mutate ROWS=20 SEED=7       fewer rows, other choices
    make mutate ONLY="PH-AMB-60"     of these rows, areas (PH-AMB) or documents (PH)
    make mutate RESUME=1             what the last run of this seed noticed is not tried again, as
                                     long as the row's tests and the broken file are unchanged

For each row its marked tests are found and run once, unbroken, to learn which lines they run (kept
in build/mutate between runs). One line is chosen that they run, that few other tests run, and that
has the row's and the tests' words in it (`mutating.affinity`). It is broken in a copy of the tree:
a comparison turned, `and` for `or`, a statement, `raise` or `not` left out, a constant changed,
`return None`. Then the row's tests run: fast ones that run the line first, its whole tests last.
Each run of tests is a process of its own, and so is the server that forks its daemons and commands:
what runs is what the copy has.

- noticed: a test of the row failed, or did not end in a time in which it ends unbroken.
- survived: no test of the row failed, nor another that was seen to run this line (for whichever
  row it was measured), nor one that is near to it (imports its module, is in the folder of its
  package, or has a word of them in text or name), as far as these come in 45 seconds.
- elsewhere: another test noticed, so the line carries another row; the next line is tried, up to
  three. A row of which all three lines are guarded elsewhere only counts as survived: its tests
  assert nothing of what they run and what speaks of the row.
- not applicable: no test of the row passes here unbroken, or they run nothing that can be broken.

Cheap rows come first, and what is known so far is in build/mutate.json all the time. At the end the
table is printed; less than 95 % noticed is exit code 1.

Why no ready-made runner: mutmut 3.8 stops at this suite's first test (it uses an attribute that
pytest 9 does not have), switches mutants inside one process, which a daemon started by a test never
sees, and knows functions where we want rows. cosmic-ray 8 edits the working tree and runs one fixed
test command for every mutation; with 12,000 tests that is hours per row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from typing import Any

from mutating.breaking import Verdict
from mutating.collecting import collect
from mutating.copies import ROOT
from mutating.trying import Plan, make_plan, state_of, try_row
from mutating.workers import start_workers

sys.path.insert(0, str(ROOT / "tests"))
from requirements.rows import load_rows

RESULT = ROOT / "build" / "mutate.json"
BAR = 0.95


def main() -> int:
    """Sample, measure, break, report."""
    asked = _arguments()
    began = time.monotonic()
    with start_workers(asked.workers) as workers:
        plans = _sample(collect(workers, asked.workers), asked)
        verdicts = _kept(plans) if asked.resume else []
        took = time.monotonic() - began
        print(
            f"mutate: {len(plans)} rows, seed {asked.seed}, {len(verdicts)} known, "
            f"after {took:.0f} s",
            flush=True,
        )
        done = {one.row for one in verdicts}
        running = [workers.submit(try_row, plan) for plan in plans if plan.row not in done]
        for number, one in enumerate(as_completed(running), 1):
            verdicts.append(one.result())
            print(f"{number:4} {_line(verdicts[-1])}", flush=True)
            _write(verdicts, asked.seed, time.monotonic() - began)
    return _report(verdicts, asked.seed, time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break lines and see whose tests notice.")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("only", nargs="*", help="rows, areas or documents to sample from")
    return parser.parse_args()


def _sample(proofs: dict[str, Any], asked: argparse.Namespace) -> list[Plan]:
    """Return the chosen rows, each with its tests, the cheap ones first."""
    parts: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for node, told in proofs.items():
        for row, level in zip(told["ids"], told["levels"], strict=True):
            (whole if level == "whole" else parts).setdefault(row, []).append(node)
    known = sorted(row for row in {**whole, **parts} if _is_asked(row, asked.only))
    names = random.Random(asked.seed).sample(known, min(asked.rows, len(known)))
    texts = {row.id: row.says for row in load_rows()}
    plans = [
        make_plan(row, texts.get(row, ""), asked.seed, parts.get(row, []), whole.get(row, []))
        for row in sorted(names)
    ]
    return sorted(plans, key=lambda plan: plan.cost)


def _is_asked(row: str, only: Sequence[str]) -> bool:
    return not only or any(row == one or row.startswith(f"{one}-") for one in only)


def _kept(plans: Sequence[Plan]) -> list[Verdict]:
    """Return what the last run noticed of these rows, and what is still about the same."""
    if not RESULT.is_file():
        return []
    by_row = {plan.row: plan for plan in plans}
    last = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    found = [Verdict(**one) for one in last if one["row"] in by_row]
    return [
        one
        for one in found
        if one.verdict == "noticed" and one.state == state_of(by_row[one.row], [one.file])
    ]


# -- telling ----------------------------------------------------------------------------------


def _line(one: Verdict) -> str:
    why = f"\n       {one.why}" if one.why else ""
    cost = f"{one.tests:>3} tests {one.used_s:>5.0f} s"
    return f"{one.row:<12} {one.verdict:<14} {cost}  {one.place}  {one.mutation}{why}"


def _write(verdicts: Sequence[Verdict], seed: int, seconds: float) -> Counter[str]:
    """Write what is known so far; returns how often each verdict was given."""
    counts = Counter(one.verdict for one in verdicts)
    content = {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": _used_s(verdicts),
        "noticed": counts["noticed"],
        "noticed_at_first_line": _at_once(verdicts),
        "survived": counts["survived"],
        "not_applicable": counts["not applicable"],
        "rows": [asdict(one) for one in sorted(verdicts, key=lambda one: one.row)],
    }
    RESULT.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return counts


def _used_s(verdicts: Sequence[Verdict]) -> float:
    return round(sum(one.used_s for one in verdicts), 1)


def _at_once(verdicts: Sequence[Verdict]) -> int:
    return sum(one.verdict == "noticed" and one.lines == 1 for one in verdicts)


def _report(verdicts: Sequence[Verdict], seed: int, seconds: float) -> int:
    counts = _write(verdicts, seed, seconds)
    tried = counts["noticed"] + counts["survived"]
    share = counts["noticed"] / tried if tried else 1.0
    print(f"\n{'row':<12} {'verdict':<14} {'cost':>17}  place  mutation")
    for one in sorted(verdicts, key=lambda one: one.row):
        print(_line(one))
    print(
        f"\nmutate: {counts['noticed']} of {tried} noticed ({share:.1%}; "
        f"{_at_once(verdicts)} at the first line), {counts['survived']} survived, "
        f"{counts['not applicable']} not applicable; "
        f"seed {seed}, {seconds:.0f} s, {_used_s(verdicts):.0f} s of processors for these rows"
    )
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
