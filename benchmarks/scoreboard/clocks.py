"""Processors whose clock can measure: on some virtual machines the clock of one stands still.

When a machine was saved and brought back, the counter of one processor may be behind that of the
others. The kernel then shows the same time over and over there, until the next tick of another one:
steps of 4 to 50 ms, in which a call of ten microseconds costs nothing, or a negative amount.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_READINGS = 2_000
"""A few hundred microseconds: less than one tick, many times what one reading takes."""


def keep_to_steady_clocks(read: Callable[[], float] = time.perf_counter) -> list[int]:
    """Stay off the processors whose clock stands still; return those.

    Raises:
        RuntimeError: there is no other processor.
    """
    before = os.sched_getaffinity(0)
    coarse: list[int] = []
    for processor in sorted(before):
        os.sched_setaffinity(0, {processor})
        if len({read() for _ in range(_READINGS)}) < _READINGS // 10:
            coarse.append(processor)
    steady = before.difference(coarse)
    os.sched_setaffinity(0, steady or before)
    if not steady:
        raise RuntimeError("no processor of this machine has a clock that can measure")
    return coarse


__all__ = ["keep_to_steady_clocks"]
