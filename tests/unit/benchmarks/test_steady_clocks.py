"""Benchmarks stay off processors whose clock stands still."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from scoreboard.clocks import keep_to_steady_clocks  # pyright: ignore[reportMissingImports] - beside the benchmarks


@pytest.fixture(autouse=True)
def processors() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_a_processor_whose_clock_stands_still_is_not_used(processors: set[int]) -> None:
    bad, ticks = min(processors), iter(range(10**9))

    def read() -> float:
        return 0.0 if os.sched_getaffinity(0) == {bad} else float(next(ticks))

    if len(processors) == 1:
        pytest.skip("needs a second processor")
    assert keep_to_steady_clocks(read) == [bad]
    assert os.sched_getaffinity(0) == processors - {bad}


def test_nothing_is_left_out_where_all_clocks_run(processors: set[int]) -> None:
    assert keep_to_steady_clocks(time.thread_time) == []
    assert os.sched_getaffinity(0) == processors


def test_without_any_clock_that_runs_it_is_said_and_nothing_is_changed(
    processors: set[int],
) -> None:
    with pytest.raises(RuntimeError, match="no processor"):
        keep_to_steady_clocks(lambda: 0.0)
    assert os.sched_getaffinity(0) == processors
