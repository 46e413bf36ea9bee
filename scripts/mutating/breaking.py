"""`break_row`: break a line for a row in a worker's copy and let the row's tests say what they see.

The row's tests run in stages, those first that are cheap and run the line. What a failing test says
counts only if it is known to pass without the break.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutating.choosing import Chooser, Target, naming, nearness
from mutating.copies import Copy
from mutating.measuring import (
    FAST,
    Measured,
    function_of,
    module_of,
    one_of_each,
    runners,
)
from mutating.mutations import Mutation
from mutating.running import BUSY, FAILED, PASSED, Done, crowd, run

OTHERS = 40  # tests of other rows that are asked about a line, at most
OTHERS_S = 45.0  # and for so long
SLOW_S = 60.0  # of tests of a row that take longer together only a few are asked
START_S = 30.0  # what a run may take besides its tests
REST = 24  # cases that were not measured are all asked up to this number
REST_S = 30.0  # what each of them may take
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+)$", re.MULTILINE)


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
    state: str = ""  # what it was about, as a hash: it holds as long as that stays
    used_s: float = 0.0  # of processors, measuring included

    @property
    def file(self) -> str:
        """The broken file."""
        return self.place.partition(":")[0]


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
    others: Callable[[], Stage]  # asked for only when the row's tests say nothing


def make_job(
    row: str,
    target: Target,
    nodes: Sequence[str],
    rest: Sequence[str],
    proofs: Mapping[str, Any],
    chooser: Chooser,
    measured: Measured,
) -> Job:
    """Return who is asked about a break: a row's measured tests, the rest of them, then others."""

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
        kept = stage if cost(stage) <= SLOW_S else one_of_each(stage)
        own.append(Stage(kept, START_S + 4 * cost(kept)))
    if rest:
        few = one_of_each(rest) if len(rest) > REST else list(rest)
        own.append(Stage(few, START_S + REST_S * len(few), known=False))

    def others() -> Stage:
        seen = {node: measured.tests[node].seconds for node in chooser.others(target, nodes)}
        seen |= runners(target.file, target.mutation.line)
        cheap = sorted(seen, key=lambda node: (not node.startswith(FAST), seen[node]))
        found = [node for node in cheap if node not in {*nodes, *rest}][:OTHERS]
        limit_s = START_S + 4 * sum(seen[node] for node in found)
        # What has not been measured may well be about this line: it is asked, too, for a while.
        left_out = {*nodes, *rest, *found}
        near = [node for node in proofs if node not in left_out]
        named = naming(near, target.mutation, OTHERS)
        named.sort(key=lambda node: not node.startswith(FAST))
        ranks = {module: nearness(module, target.file, nodes) for module in map(module_of, near)}
        near = [node for node in near if ranks[module_of(node)] is not None]
        near = _cases(near, {module for module, rank in ranks.items() if rank == 0})
        near.sort(key=lambda node: ranks[module_of(node)] or 0)
        found += dict.fromkeys([*named, *near])
        return Stage(found, limit_s + (OTHERS_S if named or near else 0.0))

    return Job(row, target.file, target.mutation, target.place, own, others)


def _cases(nodes: Sequence[str], nearest: Container[str]) -> list[str]:
    """Return one case of each test, and all of those in the nearest modules that have not many."""
    counts = Counter(map(function_of, nodes))
    kept = {*one_of_each(nodes)}
    return [
        node
        for node in nodes
        if node in kept or (module_of(node) in nearest and counts[function_of(node)] <= REST)
    ]


def break_row(jobs: Sequence[Job], copy: Copy) -> Verdict:
    """Try the breaks of one row in a copy until its tests notice one or nobody does."""
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
            others = job.others()
            suspect = _first_failure(copy, others) if others.nodes else ""
        finally:
            copy.write(path, source)
        # A neighbour counts only if it is the break that it fails of.
        if not suspect or _first_failure(copy, Stage([suspect], others.limit_s)):
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
        failed = _failed(done, stage)
        asked = [failed] if failed else stage.nodes
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
    done = _run(copy, stage.nodes, stage.limit_s * crowd())
    return _failed(done, stage) if done.code == FAILED else ""


def _failed(done: Done, stage: Stage) -> str:
    """Return which test of a stage failed; the name of a case may look like a reason."""
    found = _FAILED.search(done.output)
    said = "" if found is None else found[1]
    names = [node for node in stage.nodes if said == node or said.startswith(f"{node} - ")]
    return max(names, key=len, default="")


def _run(copy: Copy, nodes: Sequence[str], limit_s: float) -> Done:
    return run(copy, nodes, limit_s=limit_s, options=["-x", "--tb=no"])


def _said(job: Job, verdict: str, tests: int, began: float, why: str, lines: int) -> Verdict:
    took = round(time.monotonic() - began, 1)
    return Verdict(job.row, verdict, job.place, str(job.mutation), tests, took, why, lines)
