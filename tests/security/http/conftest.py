"""A real daemon on real sockets, for the attacks in this folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from fakes.running_daemon import InProcess, daemon_in_process
from kaged.config.token_file import read_token, token_file


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[InProcess]:
    """Yield a daemon that answers on its sockets."""
    async with daemon_in_process(tmp_path / "h", serve=True) as daemon:
        yield daemon


@pytest.fixture
def token(served: InProcess) -> str:
    """Return the operator's bearer token."""
    return read_token(token_file(served.places), os.getuid())
