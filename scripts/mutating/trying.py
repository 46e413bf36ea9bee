"""`try_row`: measure a row's tests, choose lines, break them.

What is chosen depends on nothing but the row, its tests and the seed, so that a row has the same
breaks in every sample.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mutating.affinity import Affinity
from mutating.breaking import Job, Verdict, break_row, make_job
from mutating.choosing import Chooser
from mutating.collecting import KEPT
from mutating.measuring import FAST, MeasuringFailed, hashes, measure, module_of, one_of_each
from mutating.running import used_s
from mutating.workers import my_copy

TRIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A row, what it says, and its tests: those that are measured, and the rest of them.

    Whole tests are measured only where a row has no others, and of slow ones one case each.
    """

    row: str
    says: str
    seed: int
    tests: list[str]
    rest: list[str]

    @property
    def cost(self) -> int:
        """How dear it is: 0 where all tests are fast, 2 where only whole daemons are measured."""
        slow = [node for node in self.tests if not node.startswith(FAST)]
        return 0 if not slow else 1 if any("tests/whole/" not in node for node in slow) else 2


def make_plan(row: str, says: str, seed: int, parts: list[str], whole: list[str]) -> Plan:
    """Return a row's plan; `parts` are its tests that start no daemon, `whole` those that do."""
    chosen, rest = (parts, whole) if parts else (whole, [])
    fast = [node for node in chosen if node.startswith(FAST)]
    slow = one_of_each(node for node in chosen if not node.startswith(FAST))
    tests = [*fast, *slow]
    return Plan(row, says, seed, tests, [*(one for one in chosen if one not in set(tests)), *rest])


def try_row(plan: Plan) -> Verdict:
    """Return whether the tests of a row notice a break. Called in a worker."""
    before_s = used_s()
    verdict = _tried(plan)
    return replace(verdict, used_s=round(used_s() - before_s, 1))


def _tried(plan: Plan) -> Verdict:
    proofs, copy = _proofs(), my_copy()
    jobs: list[Job] = []
    passing: list[str] = []
    # Where a row's parts run nothing but a table, its whole tests say what there is to break.
    for nodes in filter(None, (plan.tests, one_of_each(plan.rest))):
        try:
            measured = measure(plan.row, nodes, proofs, copy)
        except MeasuringFailed as failed:
            return Verdict(plan.row, "not applicable", why=f"cannot be measured: {failed}")
        passing = [node for node in nodes if (one := measured.tests.get(node)) and one.passed]
        rest = [node for node in (*plan.tests, *plan.rest) if node not in set(nodes)]
        chooser = Chooser(measured, _affinity())
        rng = random.Random(f"{plan.seed} {plan.row}")
        jobs = [
            make_job(plan.row, one, passing, rest, proofs, chooser, measured)
            for one in chooser.targets(plan.says, passing, rng)[:TRIES]
        ]
        if jobs:
            break
    if not jobs:
        why = "runs nothing that can be broken" if passing else "no test passes unbroken"
        return Verdict(plan.row, "not applicable", why=why)
    verdict = break_row(jobs, copy)
    return replace(verdict, state=state_of(plan, [verdict.file]))


def state_of(plan: Plan, files: Iterable[str]) -> str:
    """Return what a verdict was about: a hash of the row's tests and of the broken files."""
    modules = {module_of(node) for node in (*plan.tests, *plan.rest)}
    told = hashes([*sorted(modules), *sorted(files)])
    return hashlib.sha256(json.dumps([plan.seed, plan.tests, told]).encode()).hexdigest()


@cache
def _proofs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))["tests"]
    return found


@cache
def _affinity() -> Affinity:
    return Affinity.of_source()
