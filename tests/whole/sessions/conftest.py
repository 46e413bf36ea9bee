"""Sessions for the tests of runs, subagents and their records."""

from __future__ import annotations

import pytest

from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.talk import Talk


@pytest.fixture
def talk(project: Project, model: ModelServer) -> Talk:
    """Return a session of the project, in which nothing was said yet; its root has no cage."""
    project.describe(cage="disabled")
    project.reload()
    return Talk(project, model)
