"""How much of a long test a run does: the same short sample every time, or everything.

`make test` takes at least one case of each kind, the same ones in every run. `make fuzz` sets
KAGED_FUZZ_SEED: then every combination is tried, and random tests draw many more by that seed,
KAGED_FUZZ_TIMES as many (40).
A test that has such a longer form carries `@pytest.mark.thorough`, with `random=True` where another
seed means other cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")

_given = os.environ.get("KAGED_FUZZ_SEED", "")
THOROUGH = bool(_given)
SEED = int(_given or 11)
_TIMES_MORE = int(os.environ.get("KAGED_FUZZ_TIMES") or 40)


def examples(few: int) -> int:
    """Return how many random cases to draw where a short run draws `few`."""
    return few * _TIMES_MORE if THOROUGH else few


def sample(cases: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Return all cases, or the first of each kind in a short run."""
    if THOROUGH:
        return list(cases)
    first: dict[Hashable, T] = {}
    for case in cases:
        first.setdefault(kind(case), case)
    return list(first.values())
