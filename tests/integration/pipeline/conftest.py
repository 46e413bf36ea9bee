"""A spawner on this very machine, for caged plugins."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.stocked_cache import stocked
from kaged.cage import CageSettings, Spawner


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    """Yield a spawner with the strongest back ends of this machine."""
    folder = Path(tempfile.mkdtemp(prefix="kaged-pipeline-cache-"))
    folder.chmod(0o755)
    found = Spawner(CageSettings(cache_dir=stocked(folder)))
    yield found
    await found.close()
    shutil.rmtree(folder, ignore_errors=True)
