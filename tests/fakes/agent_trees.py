"""Agent trees from a project file that a test writes down."""

from __future__ import annotations

from pathlib import Path

from kaged.config.agents import AgentTree, resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.project import load_project
from kaged.config.reading import Loaded


def write_project(root: Path, text: str) -> Path:
    """Write `.kaged/project.yaml` below a folder and return the folder."""
    (root / ".kaged").mkdir(parents=True, exist_ok=True)
    (root / ".kaged" / "project.yaml").write_text(text, encoding="utf-8")
    return root


def load_tree(root: Path, text: str | None = None) -> AgentTree:
    """Load the project in a folder, after writing `text` as its file if given."""
    if text is not None:
        write_project(root, text)
    return resolve_agents(load_project(root), Loaded(DaemonConfig()), Loaded(LocalConfig()))


__all__ = ["load_tree", "write_project"]
