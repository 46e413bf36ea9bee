"""Which Python debugs a project's code: the nearest environment's, unless that must not run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kaged.toolbox.dap.interpreter import Interpreter, find_interpreter, within_reach

USUAL = "/usr/bin/python3"


def environment(folder: Path, *, version: str = "3.11.2", key: str = "version") -> Path:
    """Make what `python -m venv`, uv and poetry make, as far as it is looked at."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("python3")
    (folder / "bin" / "python3").symlink_to("/usr/bin/env")
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\n{key} = {version}\n", encoding="utf-8")
    return folder


def nowhere(path: str) -> bool:
    assert path.startswith("/")
    return False


def below(*folders: Path) -> Callable[[str], bool]:
    return lambda path: any(
        path == str(one) or path.startswith(f"{one}/") or str(one).startswith(f"{path}/")
        for one in folders
    )


def found(
    root: Path,
    start: Path | None = None,
    *,
    caged: bool = False,
    readable: Callable[[str], bool] = lambda _path: True,
    changeable: Callable[[str], bool] = nowhere,
) -> Interpreter:
    return find_interpreter(
        str(start or root), str(root), USUAL, caged=caged, readable=readable, changeable=changeable
    )


def test_without_an_environment_it_is_the_usual_one(tmp_path: Path) -> None:
    assert found(tmp_path) == Interpreter(USUAL, "python3")
    (tmp_path / ".venv").mkdir()
    assert found(tmp_path) == Interpreter(USUAL, "python3"), "an empty folder is none"
    environment(tmp_path / "venv")
    (tmp_path / "venv/bin/python").unlink()
    assert found(tmp_path) == Interpreter(USUAL, "python3"), "half removed"


def test_the_nearest_one_counts_and_none_above_the_project(tmp_path: Path) -> None:
    root = tmp_path / "project"
    inner = root / "packages" / "one" / "src"
    inner.mkdir(parents=True)
    environment(tmp_path / ".venv")
    assert found(root, inner).note == ""
    assert found(root, inner).path == USUAL
    assert found(root, tmp_path).path == USUAL
    environment(root / "venv")
    assert found(root, inner).shown == "venv/bin/python"
    environment(root / ".venv")
    assert found(root, inner).shown == ".venv/bin/python"
    environment(root / "packages" / "one" / ".venv")
    assert found(root, inner) == Interpreter(
        str(root / "packages/one/.venv/bin/python"), "packages/one/.venv/bin/python"
    )
    assert found(root).shown == ".venv/bin/python"


@pytest.mark.parametrize("key", ["version", "version_info"])
def test_what_debugpy_cannot_work_in_is_not_used_and_that_is_said(tmp_path: Path, key: str) -> None:
    environment(tmp_path / ".venv", version="3.7.9", key=key)
    said = found(tmp_path)
    assert said.path == USUAL
    assert "debugpy needs Python 3.8 or newer, and it is 3.7" in said.note
    environment(tmp_path / "new" / ".venv", version="3.8.0", key=key)
    assert found(tmp_path / "new").note == ""


def test_a_cage_uses_what_it_shows(tmp_path: Path) -> None:
    root, other = tmp_path / "project", tmp_path / "other"
    place = environment(root / ".venv")
    shown = below(root)
    inside = found(root, caged=True, readable=shown, changeable=lambda _path: True)
    assert inside.path == str(place / "bin/python"), "in its own cage it may be written"
    hidden = found(root, caged=True, readable=below(root / "src"))
    assert (hidden.path, hidden.note) == (
        USUAL,
        ".venv/bin/python is not used: your cage does not show it",
    )
    (other / "bin").mkdir(parents=True)
    (other / "bin/python3").write_text("#!/bin/sh\n", encoding="utf-8")
    (other / "bin/python3").chmod(0o755)
    (place / "bin/python3").unlink()
    (place / "bin/python3").symlink_to(other / "bin/python3")
    assert "links to a Python that your cage does not show" in (
        found(root, caged=True, readable=shown).note
    )
    assert found(root, caged=True, readable=below(root, other)).note == ""


def test_outside_of_cages_nothing_runs_that_a_guest_may_write(tmp_path: Path) -> None:
    root, other = tmp_path / "project", tmp_path / "other"
    place = environment(root / ".venv")
    environment(other)
    assert found(root, changeable=nowhere).path == str(place / "bin/python")
    for part in ("", "bin", "bin/python", "bin/python3", "lib/python3.11/site-packages"):
        said = found(root, changeable=below(place / part))
        assert said.path == USUAL, part
        assert "may write that environment" in said.note
    # The interpreter that it links to, and the libraries around that one.
    (place / "bin/python3").unlink()
    (place / "bin/python3").symlink_to(other / "bin/python3")
    for part in ("bin/python3", "lib"):
        assert found(root, changeable=below(other / part)).path == USUAL, part
    # A folder that is a link: the link itself, and where it leads.
    (root / ".venv").rename(tmp_path / "moved")
    (root / ".venv").symlink_to(tmp_path / "moved")
    assert found(root, changeable=below(tmp_path / "moved" / "lib")).path == USUAL
    assert found(root, changeable=lambda path: path == str(root / ".venv")).path == USUAL
    assert found(root).path == str(root / ".venv/bin/python")


def test_links_without_an_end_count_as_within_reach(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(tmp_path / "python")
    assert within_reach(str(tmp_path / "python"), lambda path: path == "/")
    assert not within_reach(sys.executable, nowhere)
