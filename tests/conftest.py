"""What every test may ask for. The requirement marker lives in tests/requirements."""

from __future__ import annotations

import gc

import pytest

from kaged.base import Ids, ManualClock
from kaged.base.open_files import raise_open_files
from kaged.base.signals import unmute_for_children

pytest_plugins = [
    "rootpart",
    "requirements.levels",
    "requirements.plugin",
    "sharing",
    "leftovers",
    "thorough",
]

# Who started this run may have made it deaf (`nohup`, `&`), and so everything that tests start.
unmute_for_children()
# As the daemon does: the tests have its spawner, and hundreds of cages, in their own process.
raise_open_files()


def pytest_configure() -> None:
    """Let nobody look for garbage while tests are collected: none of it is any."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage of tests only, from now on: what was collected stays until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    """Return sortable ids driven by the test's clock."""
    return Ids(clock)
