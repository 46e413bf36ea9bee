"""What every test may ask for. The requirement marker lives in tests/requirements."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from kaged.base import Ids, ManualClock

# No deadlines: they are wall-clock asserts. The full run is repeatable; a run by hand explores.
settings.register_profile("explore", deadline=None)
settings.register_profile("full", deadline=None, derandomize=True)
settings.load_profile("full" if os.environ.get("KAGED_FULL_RUN") else "explore")

pytest_plugins = ["requirements.plugin"]

# A run that was started in the background inherits a deaf ear for Ctrl-C and Ctrl-\\, and so would
# everything that tests start; a daemon listens for it in any case.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def clock() -> ManualClock:
    """Give a clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    """Give sortable ids driven by the test's clock."""
    return Ids(clock)
