from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.plugin_lab import PluginLab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[PluginLab]:
    """Yield a plugin host with real cages; short timeouts, no real backoff."""
    made = PluginLab(tmp_path, initialize_timeout_s=10.0, config_patience_s=0.5)
    await made.open()
    yield made
    await made.close()
