"""What a step costs while many sessions run at once, and what a new session costs among many.

Everything but the model is real, as in `bench_loop`: a step is a model turn that calls an empty
tool, and its two entries are durable before the next one. A step counts CPU time of the process,
which other programs do not bend. A new session counts bare commits on the same disk at the same
time, since waiting for the disk is most of it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import uvloop

from bench_loop import BenchModel, _Bench, _opened
from scoreboard import Curve, Point, counts, show
from scoreboard.commits import BareCommits

POINTS = counts((1, 10, 50, 200, 500), (1, 4))
STEPS = 5
LEAST_RUNS = 60
LEAST_ROUNDS = 2
CREATES = 40


def run() -> list[Curve]:
    """Measure both curves."""
    return uvloop.run(_run())


async def _run() -> list[Curve]:
    root = Path(tempfile.mkdtemp(prefix="kaged-bench-scale-"))
    steps: list[Point] = []
    creates: list[Point] = []
    commits = BareCommits(root / "peer.db")
    try:
        async with _opened(root) as bench:
            bench.models.model = BenchModel(STEPS)
            await _together(bench, 1)
            for count in POINTS:
                rounds = max(LEAST_ROUNDS, min(LEAST_RUNS, POINTS[-1]) // count)
                # The best round counts: whatever else the machine does only ever adds.
                took = min([await _together(bench, count) for _ in range(rounds)])
                steps.append(Point(count, took * 1000))

                async def create(_number: int) -> None:
                    await bench.transcript.create("prj", cwd="/", model=None)

                creates.append(Point(count, await commits.times(create, CREATES)))
        commits.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return [
        Curve(
            "sessions 1 to 500",
            "a step, all sessions running at once",
            "sessions",
            "CPU ms each",
            tuple(steps),
        ),
        Curve(
            "sessions 1 to 500",
            "a session made beside as many and more",
            "sessions",
            "bare commits",
            tuple(creates),
        ),
    ]


async def _together(bench: _Bench, count: int) -> float:
    """Let that many sessions run at once; return the CPU seconds for each step."""
    sessions = [
        (await bench.transcript.create("prj", cwd="/", model=None)).id for _ in range(count)
    ]
    started = time.process_time()
    runs = await asyncio.gather(*(bench.driver.send(one, "Go") for one in sessions))
    ends = await asyncio.gather(*(bench.driver.wait(one) for one in runs))
    took = time.process_time() - started
    assert all(end.status == "completed" for end in ends)
    return took / (count * (STEPS + 1))


if __name__ == "__main__":
    show(run())
