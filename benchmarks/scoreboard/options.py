"""What a run is asked for beside the names of its benchmarks."""

from __future__ import annotations

import os

QUICK_KEY = "KAGED_BENCH_QUICK"


def quick() -> bool:
    """Return whether this run only shows that the benchmarks work; its figures do not count."""
    return os.environ.get(QUICK_KEY) == "1"


def counts(full: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
    """Return the points of a curve: the full ones, or in a quick run the small ones."""
    return small if quick() else full


__all__ = ["QUICK_KEY", "counts", "quick"]
