"""The whole list of protected paths, as the reference page has it, in cages and file tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.walls.conftest import TOOLS
from whole.walls.test_protected_paths import planting

DOCS = Path(__file__).resolve().parents[3] / "docs"
AT_ONCE = 15
"""A result names only so many paths."""
Sh = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Return one of this module's own: so many events are folded, also those of other tests."""
    return fresh_daemon


def listed(kind: str) -> list[str]:
    """Return a path for each of one class, as the reference page has them."""
    page = (DOCS / "reference/protected-paths.md").read_text(encoding="utf-8")
    part = page.partition(f"<!-- {kind}: made")[2].partition("<!-- end of")[0]
    firsts = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
    return [one.replace("*", "x") for cell in firsts for one in re.findall(r"`([^`]+)`", cell)]


def test_every_path_of_the_page_is_taken_back_or_named(project: Project, sh: Sh) -> None:
    run = [one for one in listed("run") if not one.startswith((".git/", ".kaged/"))]
    named = listed("reviewed")
    assert len(run) > 100
    assert len(named) > 50
    kept = [one for one in run if "/" not in one][::10]
    for path in kept:
        project.write(path, "mine\n")
    paths = [*run, *named]
    for _ in range(2):  # the second time takes back again what came back
        results = [
            sh("; ".join(map(planting, paths[at : at + AT_ONCE])))
            for at in range(0, len(paths), AT_ONCE)
        ]
        for key, wanted in (("taken_back", run), ("to_review", named)):
            found = {one["path"] for result in results for one in result.get(key, ())}
            assert found == set(wanted)
        for path in run:
            file = project.root / path
            assert (file.read_text(encoding="utf-8") if file.exists() else "") == (
                "mine\n" if path in kept else ""
            ), path
        assert [one for one in named if not (project.root / one).is_file()] == []
        sh("rm -rf " + " ".join(named))


def test_the_work_of_every_day_is_written_by_cages_and_by_tools(project: Project, sh: Sh) -> None:
    daily = ("package.json", "pyproject.toml", "Cargo.toml", "build.rs", ".env", ".cargo/bin/x")
    result = sh("; ".join(map(planting, daily)))
    assert not result.get("taken_back"), result
    assert not result.get("to_review"), result
    for path in daily:
        project.call("file.read", path=path)
        project.call("file.write", path=path, content="{}\n")
        assert project.read(path) == "{}\n"


def test_a_link_in_place_of_a_folder_with_protected_files_goes(project: Project, sh: Sh) -> None:
    """The folder is harmless under its own name, and the protected file in it may come later."""
    project.write("theirs/a.txt", "a\n")
    (project.root / "mise").symlink_to("theirs")  # the operator's own
    for _ in range(2):
        result = sh("mkdir -p conf lib; ln -s lib tools; ln -s conf .yarn; ln -s conf .CARGO; ls")
        assert {one["path"] for one in result["taken_back"]} == {".yarn", ".CARGO"}, result
    links = {one.name: str(one.readlink()) for one in project.root.iterdir() if one.is_symlink()}
    assert links == {"mise": "theirs", "tools": "lib"}
    result = sh("echo '[alias]' > conf/config.toml; rm mise; ln -s conf mise; ls")
    assert [one["path"] for one in result["taken_back"]] == ["mise"], result
    assert not (project.root / "mise").is_symlink()
    result = sh("mv conf .cargo; mkdir -p .cargo/registry; touch .cargo/c")
    assert [one["path"] for one in result["taken_back"]] == [".cargo/config.toml"], result
    assert (project.root / ".cargo/c").exists()


def test_a_grant_of_a_folder_alone_hides_nothing_in_it(daemon: Daemon, tmp_path: Path) -> None:
    cage = {
        "fs": [{"mode": "ro", "path": "./"}, {"mode": "rw", "path": "./sub/.cargo"}],
        "capabilities": ["shell"],
    }
    project = Project(tmp_path / "p", cage=cage, tools=TOOLS)
    project.write("sub/.cargo/registry/a", "a\n")
    daemon.load(project)
    for command in ("echo x > config.toml", "mv r config; echo x > r"):
        result = project.call("shell.bash", command=f"echo x > r; {command}", cwd="sub/.cargo")
        assert len(result["taken_back"]) == 1, result
    assert sorted(one.name for one in (project.root / "sub/.cargo").iterdir()) == ["r", "registry"]


def test_file_tools_refuse_every_path_of_the_page(project: Project) -> None:
    every = [one for one in listed("run") if not one.startswith((".git/", ".kaged/"))]
    for path in (*every, *(f"sub/{one.upper()}/x" for one in every)):
        error = project.fail("file.create", path=path, content="x")
        assert error["code"] == "path_protected", (path, error)
    assert not (project.root / "sub").exists()
