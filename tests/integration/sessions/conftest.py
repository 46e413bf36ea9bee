"""What the tests of sessions share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fakes.session_lab import SessionLab, session_lab
from kaged.base import Ids, ManualClock


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock, ids: Ids) -> AsyncGenerator[SessionLab]:
    """Yield the session service on a store of its own."""
    async with session_lab(tmp_path, clock, ids) as made:
        yield made
