"""An agent in a cage does not write the program that the host starts outside every cage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.project import Project

ASK = {"action": "symbols", "path": "./a.py"}
CODE = "lsp_program_writable"


def _project(daemon: Daemon, root: Path, *command: str, fs: list[Any] | None = None) -> Project:
    """Write a project whose agent may write it, and whose language server is its own program."""
    project = Project(root)
    project.write("a.py", "one = 1\n")
    cage = {"fs": [{"mode": "rw", "path": "."}, *(fs or [])], "capabilities": ["shell"]}
    server = {"lang": "python", "command": [*command]}
    project.describe(cage=cage, top={"lsp": {"servers": [server]}})
    return daemon.load(project)


def _leaves(project: Project) -> tuple[str, Path]:
    """Return a script that leaves a mark where no cage of the project reaches, and the mark."""
    mark = project.root.parent / "ran-outside"
    return f"#!/bin/sh\necho ran > {mark}\n", mark


def _plant(project: Project, path: str) -> Path:
    script, mark = _leaves(project)
    done = project.call(
        "shell.bash", command=f"cat > {path} <<'END'\n{script}END\nchmod 755 {path}"
    )
    assert done["exit_code"] == 0, done
    return mark


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (["./tools/server"], "tools/server"),
        (["tools/server", "--stdio"], "tools/server"),
        (["/bin/sh", "./tools/server"], "tools/server"),
        (["/usr/bin/env", "sh", "tools/server"], "tools/server"),
        (["/bin/sh", "./a/../tools/server"], "tools/server"),
        (["/usr/bin/python3", "--config=tools/server"], "tools/server"),
    ],
)
def test_a_program_that_an_agent_may_write_is_not_started(
    daemon: Daemon, tmp_path: Path, command: list[str], path: str
) -> None:
    root = tmp_path / "p"
    (root / "tools").mkdir(parents=True)
    (root / "a").mkdir()
    (root / path).write_text("#!/bin/sh\n", encoding="utf-8")
    (root / path).chmod(0o755)
    project = _project(daemon, root, *command)
    mark = _plant(project, path)
    refused = project.fail("code.lsp", **ASK)
    assert refused["code"] == CODE
    assert f"it would run {path} outside" in refused["message"]
    assert not mark.exists()


def test_a_link_that_an_agent_may_turn_around_counts(daemon: Daemon, tmp_path: Path) -> None:
    root, outside = tmp_path / "p", tmp_path / "bin"
    root.mkdir()
    outside.mkdir()
    (outside / "server").write_text("#!/bin/sh\n", encoding="utf-8")
    (outside / "server").chmod(0o755)
    (root / "second").symlink_to(outside / "server")
    (root / ".kaged").mkdir()
    (root / ".kaged/first").symlink_to("../second")
    project = _project(daemon, root, ".kaged/first")
    refused = project.fail("code.lsp", **ASK)
    assert refused["code"] == CODE
    assert "it would run second outside" in refused["message"]
    assert project.call("shell.bash", command="rm second")["exit_code"] == 0
    mark = _plant(project, "second")
    assert project.fail("code.lsp", **ASK)["code"] == CODE
    assert not mark.exists()


@pytest.mark.parametrize("place", ["tools", ".kaged/tools"])
def test_a_program_out_of_every_agents_reach_is_started(
    daemon: Daemon, tmp_path: Path, place: str
) -> None:
    root = tmp_path / "p"
    (root / place).mkdir(parents=True)
    script, mark = _leaves(Project(root))
    (root / place / "server").write_text(script, encoding="utf-8")
    (root / place / "server").chmod(0o755)
    held = [{"mode": "ro", "path": "tools"}] if place == "tools" else None
    project = _project(daemon, root, f"./{place}/server", fs=held)
    planted = project.call("shell.bash", command=f"echo x > {place}/server")
    assert planted["exit_code"] != 0
    # It is no language server, and ends: but it was started.
    assert project.fail("code.lsp", **ASK)["code"] != CODE
    assert mark.exists()


def test_what_the_operator_names_is_the_operators_word(tmp_path: Path, model: ModelServer) -> None:
    root = tmp_path / "p"
    root.mkdir()
    script, mark = _leaves(Project(root))
    (root / "server").write_text(script, encoding="utf-8")
    (root / "server").chmod(0o755)
    config = f'[lsp.servers.python]\ncommand = ["{root}/server"]\n'
    daemon = Daemon(tmp_path / "h", config=config, local=model.local_toml())
    daemon.start()
    try:
        project = daemon.load(Project(root))
        project.write("a.py", "one = 1\n")
        assert project.fail("code.lsp", **ASK)["code"] != CODE
        assert mark.exists()
    finally:
        daemon.close()


@pytest.mark.parametrize("named", ["built in", "by name in config.toml"])
def test_a_program_that_is_found_in_the_project_by_its_name_counts(
    tmp_path: Path, model: ModelServer, named: str
) -> None:
    """The daemon was started in a virtual environment that lies in the project."""
    root = tmp_path / "p"
    project = Project(root, cage={"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]})
    project.write("a.py", "one = 1\n")
    names = ("pyright-langserver", "basedpyright-langserver", "pylsp", "my-server")
    for name in names:
        project.write(f".venv/bin/{name}", "#!/bin/sh\n").chmod(0o755)
    config = "" if named == "built in" else '[lsp.servers.python]\ncommand = ["my-server"]\n'
    path = f"{root}/.venv/bin:{os.environ['PATH']}"
    daemon = Daemon(tmp_path / "h", config=config, local=model.local_toml(), env={"PATH": path})
    daemon.start()
    try:
        daemon.load(project)
        marks = [_plant(project, f".venv/bin/{name}") for name in names]
        refused = project.fail("code.lsp", **ASK)
        assert refused["code"] == CODE, refused
        assert not any(mark.exists() for mark in marks)
    finally:
        daemon.close()


def test_an_agent_without_a_cage_has_no_wall_to_get_around(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path / "p"
    project = Project(root)
    script, mark = _leaves(project)
    project.write("server", script).chmod(0o755)
    project.write("a.py", "one = 1\n")
    server = {"lang": "python", "command": ["./server"]}
    project.describe(cage="disabled", top={"lsp": {"servers": [server]}})
    daemon.load(project)
    assert project.fail("code.lsp", **ASK)["code"] != CODE
    assert mark.exists()
