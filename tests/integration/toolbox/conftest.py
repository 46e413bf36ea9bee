"""What the tests of the toolbox share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.lsp_lab import LspLab
from kaged.toolbox.files import file_tools


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LspLab]:
    """Yield a project with a planned language server for Python, and the file tools."""
    made = LspLab(tmp_path, tools=file_tools())
    yield made
    await made.close()
