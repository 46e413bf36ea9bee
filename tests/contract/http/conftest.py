"""A real daemon on an empty home, for the conversations in this folder."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncGenerator[InProcess]:
    """Yield a daemon whose application is called without a socket."""
    async with daemon_in_process(tmp_path / "h") as daemon:
        yield daemon


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[InProcess]:
    """Yield a daemon that answers on its sockets."""
    async with daemon_in_process(tmp_path / "h", serve=True) as daemon:
        yield daemon


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the root of a project with two agents."""
    return make_project(tmp_path / "sample")
