"""The processes that run tests, each in a copy of its own, and nothing left when they end.

They end with the process that started them, however that ends, and take their tests along.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mutating.copies import ROOT, Copy
from mutating.running import adopt_orphans

COPIES = ROOT / "build" / "mutate"
_mine: list[Copy] = []


def my_copy() -> Copy:
    """Return the copy of this worker's process."""
    return _mine[0]


def start_workers(count: int) -> ProcessPoolExecutor:
    """Make copies and the processes that work in them."""
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(count):
        numbers.put(number)
    return ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin, initargs=(numbers, str(COPIES))
    )


def _begin(numbers: multiprocessing.Queue[int], folder: str) -> None:
    adopt_orphans()
    copy = Copy(Path(folder) / f"copy-{numbers.get()}")
    copy.make()
    _mine.append(copy)
