"""What the tests of project tools share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.work_lab import WorkLab, work_lab
from kaged.base import Ids, ManualClock


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock, ids: Ids) -> AsyncIterator[WorkLab]:
    """Yield the project tools on a store of their own."""
    async with work_lab(tmp_path, clock, ids) as made:
        yield made
