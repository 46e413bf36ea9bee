"""A host's service capabilities for every test of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.service_lab import ServiceLab
from kaged.base import ManualClock


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ServiceLab]:
    """Yield a host with one provider (`gog.email`)."""
    found = await ServiceLab(tmp_path, clock).open()
    await found.register()
    yield found
    await found.close()


@pytest.fixture
async def empty_lab(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ServiceLab]:
    """Yield a host without providers."""
    found = await ServiceLab(tmp_path, clock).open()
    yield found
    await found.close()
