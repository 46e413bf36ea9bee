"""A lab of outside servers for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.outside_lab import OutsideLab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[OutsideLab]:
    """Yield a lab; what it started ends with the test."""
    made = OutsideLab(tmp_path)
    yield made
    await made.close()
