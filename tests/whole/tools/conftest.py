"""What tests of the tools share: projects whose agents have cages of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whole.harness.project import Project

FILE_TOOLS = ("file.*", "edit.*", "search.*", "shell.*", "code.lsp")


@pytest.fixture
def agent(project: Project) -> Callable[..., str]:
    """Return a maker of subagents: `agent("reader", "ro:src")`; returns the agent's path.

    Each has the tools for files and commands, and a cage with these folders; without any it has
    the cage that `cage` says.
    """
    known: dict[str, Any] = {}

    def make(key: str, *folders: str, cage: object = None, **more: object) -> str:
        entries = [dict(zip(("mode", "path"), one.split(":"), strict=True)) for one in folders]
        known[key] = {
            "model": "default",
            "system_prompt": "You help.",
            "cage": cage or {"fs": entries, **more},
            "tools": {name: {"enabled": True} for name in FILE_TOOLS},
        }
        project.describe(subagents=known)
        project.reload()
        return f"primary.subagents.{key}"

    return make
