from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.plugin_lab import PluginLab
from fakes.project_stage import ProjectStage


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[PluginLab]:
    """Yield a plugin host with real cages; short timeouts, no real backoff."""
    made = PluginLab(tmp_path, initialize_timeout_s=10.0, config_patience_s=0.5)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def stage(lab: PluginLab, tmp_path: Path) -> AsyncIterator[ProjectStage]:
    """Yield the lab with a supervisor and one project."""
    made = ProjectStage(lab, tmp_path)
    yield made
    await made.supervisor.stop_all()
