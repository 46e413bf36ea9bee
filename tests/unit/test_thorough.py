"""A short run takes one case of each kind, a thorough one all of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thorough

CASES = ["pipe a", "pipe b", "open a", "pipe c"]


def kind(case: str) -> str:
    return case.partition(" ")[0]


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the settings as `make fuzz` sets them, and as they were afterwards."""
    with monkeypatch.context() as patched:
        patched.setenv("KAGED_FUZZ_SEED", "7")
        importlib.reload(thorough)
        yield
    importlib.reload(thorough)


def test_a_short_run_takes_the_first_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "THOROUGH", False)
    assert thorough.sample(CASES, kind) == ["pipe a", "open a"]
    assert thorough.examples(6) == 6


@pytest.mark.usefixtures("seeded")
def test_a_thorough_run_takes_all_by_its_seed() -> None:
    assert thorough.sample(CASES, kind) == CASES
    assert thorough.examples(6) > 6
    assert thorough.SEED == 7


@given(st.booleans())
def test_a_property_has_a_longer_form_without_saying_so(
    request: pytest.FixtureRequest, drawn: bool
) -> None:
    mark = request.node.get_closest_marker("thorough")
    assert mark is not None, drawn
    assert mark.kwargs == {"random": True}


def test_a_property_draws_few_cases_in_the_full_run_and_many_in_a_thorough_one() -> None:
    few, many = (settings.get_profile(name).max_examples for name in ("full", "fuzz"))
    assert few == thorough.FEW
    assert many == thorough.examples(few)
    assert settings.get_profile("full").derandomize
