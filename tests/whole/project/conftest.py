"""Sessions for the tests of issues, todos, questions and workflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.talk import Talk


@pytest.fixture
def talk(project: Project, model: ModelServer) -> Talk:
    """Return a session of the project, in which nothing was said yet."""
    return Talk(project, model)


@pytest.fixture
def another(project: Project, model: ModelServer) -> Callable[[], Talk]:
    """Return a maker of further sessions."""
    return lambda: Talk(project, model)
