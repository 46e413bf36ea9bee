"""`break_row`: break a line for a row in a worker's copy and let the row's tests say what they see.

The row's tests run in stages, those first that are cheap and run the line. What a failing test says
counts only if it is known to pass without the break.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutating.choosing import Chooser, Target, naming, nearness
from mutating.copies import Copy
from mutating.measuring import FAST, Measured, module_of
from mutating.mutations import Mutation
from mutating.running import FAILED, PASSED, Done, run
from mutating.workers import my_copy

OTHERS = 40  # tests of other rows that are asked about a line, at most
OTHERS_S = 45.0  # and for so long
SLOW_S = 60.0  # of tests of a row that take longer together only a few are asked
START_S = 30.0  # what a run may take besides its tests
WHOLE_S = 30.0  # what a whole test may take; those are not measured
BUSY = 5.0  # times the limit, when tests do not keep it unbroken either
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one row."""

    row: str
    verdict: str
    place: str = ""
    mutation: str = ""
    tests: int = 0
    seconds: float = 0.0
    why: str = ""
    lines: int = 0  # how many were broken; more than one where others guard the first


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests of a row that run together, and how long they may take."""

    nodes: list[str]
    limit_s: float
    known: bool = True  # to pass without a break


@dataclass(frozen=True, slots=True)
class Job:
    """One break to try: the row's tests in the order of their cost, then others that run it."""

    row: str
    file: str
    mutation: Mutation
    place: str
    own: list[Stage]
    others: Stage


def make_job(
    row: str,
    target: Target,
    nodes: Sequence[str],
    whole: Sequence[str],
    proofs: Mapping[str, Any],
    chooser: Chooser,
    measured: Measured,
) -> Job:
    """Return who is asked about a break: a row's measured tests, its whole ones, then others."""

    def cost(some: Iterable[str]) -> float:
        return sum(measured.tests[node].seconds for node in some)

    reached = [node for node in nodes if measured.reaches(node, target.file, target.mutation.line)]
    stages = [
        [node for node in reached if node.startswith(FAST)],
        [node for node in reached if not node.startswith(FAST)],
        # Not seen to run the line. A process that was killed while it was measured told nothing.
        [node for node in nodes if node not in set(reached)],
    ]
    own: list[Stage] = []
    for stage in filter(None, stages):
        kept = stage if cost(stage) <= SLOW_S else _one_of_each(stage)
        own.append(Stage(kept, START_S + 4 * cost(kept)))
    if whole:
        few = _one_of_each(whole) if len(whole) * WHOLE_S > 4 * SLOW_S else list(whole)
        own.append(Stage(few, START_S + WHOLE_S * len(few), known=False))
    others = [node for node in chooser.others(target, nodes) if node.startswith(FAST)]
    others = sorted(others, key=lambda node: measured.tests[node].seconds)[:OTHERS]
    limit_s = START_S + 4 * cost(others)
    # What has not been measured may well be about this line: it is asked, too, for a while.
    left_out = {*nodes, *whole, *others}
    near = [node for node in proofs if node not in left_out]
    named = naming(near, target.mutation, OTHERS)
    named.sort(key=lambda node: not node.startswith(FAST))
    ranks = {module: nearness(module, target.file, nodes) for module in map(module_of, near)}
    near = [node for node in near if ranks[module_of(node)] is not None]
    near.sort(key=lambda node: ranks[module_of(node)] or 0)
    others += dict.fromkeys([*named, *near])
    limit_s += OTHERS_S if named or near else 0.0
    return Job(row, target.file, target.mutation, target.place, own, Stage(others, limit_s))


def _one_of_each(nodes: Sequence[str]) -> list[str]:
    """Return one case of each test function."""
    return list({node.partition("[")[0]: node for node in nodes}.values())


def break_row(jobs: list[Job]) -> Verdict:
    """Try the breaks of one row until its tests notice one or nobody does. Called in a worker."""
    copy = my_copy()
    began = time.monotonic()
    count = 0
    seen: list[str] = []
    for job in jobs:
        path = copy.source / job.file
        source = path.read_bytes()
        copy.write(path, job.mutation.applied(source))
        try:
            for stage in job.own:
                count += len(stage.nodes)
                how = _noticed(copy, path, source, stage)
                if how is not None:
                    return _said(job, "noticed", count, began, how, len(seen) + 1)
            suspect = _first_failure(copy, job.others) if job.others.nodes else ""
        finally:
            copy.write(path, source)
        # A neighbour counts only if it is the break that it fails of.
        if not suspect or _first_failure(copy, Stage([suspect], job.others.limit_s)):
            return _said(job, "survived", count, began, "; ".join(seen), len(seen) + 1)
        seen.append(f"{job.place} ({job.mutation}) is noticed by others only")
    return _said(jobs[-1], "survived", count, began, "; ".join(seen), len(seen))


def _noticed(copy: Copy, path: Path, source: bytes, stage: Stage) -> str | None:
    """Return how the tests of a stage noticed the break that is in place; None if they did not."""
    done = _run(copy, stage.nodes, stage.limit_s)
    if done.code is None and not _ends(copy, path, source, stage):
        done = _run(copy, stage.nodes, BUSY * stage.limit_s)
    if done.code == PASSED:
        return None
    if not stage.known or done.code not in (FAILED, None):  # or not even begun, for some reason
        found = _FAILED.search(done.output)
        asked = [found[1]] if found else stage.nodes
        if not _passes(copy, path, source, Stage(asked, BUSY * stage.limit_s)):
            return None
    return "took too long" if done.code is None else ""


def _ends(copy: Copy, path: Path, source: bytes, stage: Stage) -> bool:
    """Return whether tests end in their time without the break: the machine may be busy."""
    return _unbroken(copy, path, source, stage) is not None


def _passes(copy: Copy, path: Path, source: bytes, stage: Stage) -> bool:
    """Return whether tests pass without the break."""
    return _unbroken(copy, path, source, stage) == PASSED


def _unbroken(copy: Copy, path: Path, source: bytes, stage: Stage) -> int | None:
    broken = path.read_bytes()
    copy.write(path, source)
    try:
        return _run(copy, stage.nodes, stage.limit_s).code
    finally:
        copy.write(path, broken)


def _first_failure(copy: Copy, stage: Stage) -> str:
    """Run tests until one fails; return that one, or nothing when none did in this time."""
    done = _run(copy, stage.nodes, stage.limit_s * _crowd())
    found = _FAILED.search(done.output) if done.code == FAILED else None
    return found[1] if found else ""


def _crowd() -> float:
    """Return how many want each processor now: on a busy machine tests do less in a time."""
    return min(BUSY, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _run(copy: Copy, nodes: Sequence[str], limit_s: float) -> Done:
    return run(copy, nodes, limit_s=limit_s, options=["-x", "--tb=no"])


def _said(job: Job, verdict: str, tests: int, began: float, why: str, lines: int) -> Verdict:
    took = round(time.monotonic() - began, 1)
    return Verdict(job.row, verdict, job.place, str(job.mutation), tests, took, why, lines)
