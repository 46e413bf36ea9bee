"""Scripts of a project of the test's own, on the module's daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.harness.scripts import Scripts


@pytest.fixture
def scripts(daemon: Daemon, project: Project) -> Iterator[Scripts]:
    """Yield the scripts of the test's project; none is loaded yet."""
    made = Scripts(daemon, project)
    yield made
    made.close()
