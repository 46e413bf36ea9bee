from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kaged.config import init_project, load_project
from raising import raises_code
from requirements import requirement


def test_a_new_project_loads_without_a_word(tmp_path: Path) -> None:
    root = tmp_path / "My Project 2"
    root.mkdir()
    report = init_project(root)
    assert report.created == (
        ".kaged/.gitignore",
        ".kaged/prompts/primary.md",
        ".kaged/project.yaml",
    )
    assert (root / ".kaged" / "tmp").is_dir()
    ignored = (root / ".kaged" / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"tmp/", "*.local.*"} <= set(ignored)
    loaded = load_project(root)
    assert loaded.warnings == ()
    assert loaded.value.slug == "my-project-2"
    assert loaded.value.primary.system_prompt.text.startswith("You are the primary agent")


def test_the_commented_examples_of_a_new_project_file_are_valid(tmp_path: Path) -> None:
    init_project(tmp_path)
    path = tmp_path / ".kaged" / "project.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    begin = next(n for n, line in enumerate(lines) if "subagents:" in line and "#" in line)
    opened = [
        line.replace("# ", "", 1) if n >= begin and line.lstrip().startswith("# ") else line
        for n, line in enumerate(lines)
        if "Jobs with a name" not in line
    ]
    path.write_text("\n".join(opened) + "\n", encoding="utf-8")
    loaded = load_project(tmp_path)
    assert list(loaded.value.primary.subagents) == ["reviewer"]
    assert list(loaded.value.workflows) == ["release-notes"]


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".kaged").mkdir()
    mine = tmp_path / ".kaged" / "project.yaml"
    mine.write_text("mine", encoding="utf-8")
    report = init_project(tmp_path)
    assert mine.read_text(encoding="utf-8") == "mine"
    assert report.kept == (".kaged/project.yaml",)
    assert init_project(tmp_path).created == ()


def test_a_link_in_place_of_the_directory_or_a_file_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "project"
    root.mkdir()
    (root / ".kaged").symlink_to(outside)
    with raises_code("project_init_refused", match="not a directory"):
        init_project(root)
    assert list(outside.iterdir()) == []
    (root / ".kaged").unlink()
    (root / ".kaged").mkdir()
    (root / ".kaged" / "project.yaml").symlink_to(outside / "new.yaml")
    assert ".kaged/project.yaml" in init_project(root).kept
    assert list(outside.iterdir()) == []


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with raises_code("project_init_refused", match="not a directory"):
        init_project(tmp_path / "no")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with raises_code("project_init_refused", match="No space left"):
        init_project(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / ".kaged" / ".gitignore").exists()
    assert init_project(tmp_path).kept == ()


@requirement("AT-ASK-07")
def test_a_new_project_ignores_its_scratch_files_and_keeps_an_older_list(tmp_path: Path) -> None:
    fresh, older = tmp_path / "fresh", tmp_path / "older"
    fresh.mkdir()
    (older / ".kaged").mkdir(parents=True)
    (older / ".kaged" / ".gitignore").write_text("mine\n", encoding="utf-8")
    for root in (fresh, older):
        init_project(root)
        assert (root / ".kaged" / "tmp").is_dir()
    ignored = (fresh / ".kaged" / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"tmp/", "*.local.*"} <= set(ignored)
    assert (older / ".kaged" / ".gitignore").read_text(encoding="utf-8") == "mine\n"
