"""The Python of the host, where the daemon was started in the environment of a project."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.dap_lab import DapLab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path)
    yield made
    await made.close()


async def test_a_python_of_the_search_path_that_a_guest_may_write_is_not_taken(
    lab: DapLab,
) -> None:
    python = lab.write(".venv/bin/python3", "#!/bin/sh\n")
    python.chmod(0o755)
    lab.bridge.environ = {"PATH": f"{python.parent}:/usr/bin"}
    assert lab.bridge.python(caged=False) == str(python)
    lab.bridge.changeable = lambda path: path.startswith(str(lab.root))
    assert lab.bridge.python(caged=False) == sys.executable
    assert lab.bridge.python(caged=True) == "python3"
