"""A daemon for projects that somebody else wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        server = ModelServer(Path(folder))
        yield server
        server.close()


@pytest.fixture(scope="module")
def module_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    made = Daemon(module_path / "h", local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()
