"""Where the tests find the runtimes that plugins are written for; missing ones are failures."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def node() -> Path:
    """Return the real Node binary."""
    found = shutil.which("node")
    assert found, "node is missing: run scripts/setup --tests"
    return Path(found)


def npm_tool(package: str, program: str) -> Path:
    """Return a program of a package that scripts/setup --tests installs from the npm registry."""
    found = ROOT / "build" / "tools" / "node_modules" / package / program
    assert found.exists(), f"{package} is missing: run scripts/setup --tests"
    return found.resolve()


def bun() -> Path:
    """Return the real Bun binary that scripts/setup --tests installs."""
    found = ROOT / "build" / "tools" / "node_modules" / ".bin" / "bun"
    assert found.exists(), "bun is missing: run scripts/setup --tests"
    return found.resolve()
