"""What the tests of the store share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.store_home import StoreHome
from kaged.base import Ids, ManualClock


@pytest.fixture
async def home(tmp_path: Path, clock: ManualClock, ids: Ids) -> AsyncIterator[StoreHome]:
    """Yield a folder for a database; what is opened through it is closed at the end."""
    home = StoreHome(tmp_path, clock, ids)
    yield home
    await home.close()
