"""A lab with real workers for every test of scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fakes.lua_lab import LuaLab, lua_lab
from kaged.base import Ids, ManualClock


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock, ids: Ids) -> AsyncGenerator[LuaLab]:
    """Yield a project whose scripts run in real cages."""
    async with lua_lab(tmp_path, clock, ids) as made:
        yield made
