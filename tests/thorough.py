"""How much of a long test a run does: the same short sample every time, or everything.

`make test` takes at least one case of each kind, the same ones in every run. `make fuzz` sets
KAGED_FUZZ_SEED: then every combination is tried, and random tests draw many more by that seed,
KAGED_FUZZ_TIMES as many (40).
A test that has such a longer form carries `@pytest.mark.thorough`, with `random=True` where another
seed means other cases. Tests of properties (`@given`) have one by nature, and get the mark here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")

_given = os.environ.get("KAGED_FUZZ_SEED", "")
THOROUGH = bool(_given)
SEED = int(_given or 11)
_TIMES_MORE = int(os.environ.get("KAGED_FUZZ_TIMES") or 40)
_GOAL_PERCENT = int(os.environ.get("KAGED_FUZZ_GOAL") or 0)
LONGEST_S = 1200
FEW = 25
"""How many cases a short run draws where a test does not say."""


def examples(few: int) -> int:
    """Return how many random cases to draw where a short run draws `few`."""
    return few * _TIMES_MORE if THOROUGH else few


def counted(few: int, many: int, goal: int) -> int:
    """Return how much a test does: in a short run, in `make fuzz`, and where all is asked for.

    KAGED_FUZZ_GOAL=100 asks for that: the numbers of the reliability page, which take hours. A
    smaller one is the percentage of them that there is time for.
    """
    if not THOROUGH:
        return few
    return goal * _GOAL_PERCENT // 100 if _GOAL_PERCENT else many


def sample(cases: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Return all cases, or the first of each kind in a short run."""
    if THOROUGH:
        return list(cases)
    first: dict[Hashable, T] = {}
    for case in cases:
        first.setdefault(kind(case), case)
    return list(first.values())


# No deadlines: they are wall-clock asserts. `make test` and `make check` are repeatable and short;
# a run by hand explores, and `make fuzz` does so at length.
# For the same reason no complaint that examples are made slowly: beside other tests they are.
_explore = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", _explore)
settings.register_profile("full", _explore, derandomize=True, max_examples=FEW)
settings.register_profile("fuzz", _explore, max_examples=examples(FEW))
if THOROUGH:
    settings.load_profile("fuzz")
else:
    _repeatable = os.environ.get("KAGED_FULL_RUN") or os.environ.get("KAGED_SHORT_RUN")
    settings.load_profile("full" if _repeatable else "explore")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of properties: another seed means other cases."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.thorough(random=True))
            if THOROUGH and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONGEST_S))
