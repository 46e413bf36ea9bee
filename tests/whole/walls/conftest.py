"""A project in git whose agents can write all of it, and the operator's own git."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.harness.scripts import git, repository

CAGE = {"fs": [{"mode": "rw", "path": "./"}], "capabilities": ["shell"]}
TOOLS = {name: {"enabled": True} for name in ("file.*", "edit.*", "shell.*", "outside.*")}


def repository_project(daemon: Daemon, root: Path) -> Project:
    """Return a loaded project that is a repository with one commit."""
    project = Project(root, cage=CAGE, tools=TOOLS)
    project.write(".gitignore", ".kaged/\nran\n")
    repository(root, {"a.txt": "one\n", ".gitignore": ".kaged/\nran\n"})
    git("config", "user.name", "t", cwd=root)
    git("config", "user.email", "t@t", cwd=root)
    return daemon.load(project)


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a repository that an agent in a cage can write."""
    return repository_project(daemon, tmp_path / f"p{os.urandom(3).hex()}")


@pytest.fixture
def sh(project: Project) -> Callable[..., dict[str, object]]:
    """Return what runs a command in the agent's cage and gives its result."""
    return lambda command: project.call("shell.bash", command=command)


@pytest.fixture
def commits(project: Project) -> Callable[[], bool]:
    """Return the operator's next commit, outside every cage: whether it ran something planted."""

    def commit() -> bool:
        git("add", "-A", cwd=project.root, home=project.root)
        git("status", cwd=project.root, home=project.root)
        git("commit", "-q", "--allow-empty", "-m", "mine", cwd=project.root, home=project.root)
        return (project.root / "ran").exists()

    return commit
