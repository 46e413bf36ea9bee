"""Folders to try configuration files in."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.config.trials import OperatorFiles, ProjectFolder


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    """Return an empty project folder."""
    return ProjectFolder(tmp_path / "sample")


@pytest.fixture
def operator(tmp_path: Path) -> OperatorFiles:
    """Return an operator without files."""
    return OperatorFiles(tmp_path)
