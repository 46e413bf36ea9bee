"""Folders for daemons whose sockets are really opened."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgm-") as folder:
        yield Path(folder).resolve()
