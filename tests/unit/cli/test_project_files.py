"""The files that are completed behind `@`: those that git would show, and the best first."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.cli.terminal.project_files import FRESH_S, ProjectFiles, walk

FILES = {
    ".gitignore": "*.log\n/build/\n!keep.log\ndocs/*.tmp\n# note\n",
    "a.log": "", "keep.log": "", "main.py": "", "build/out.py": "", "sub/build/in.py": "",
    "sub/.gitignore": "secret.py\n", "sub/secret.py": "", "secret.py": "",
    "docs/x.tmp": "", "docs/deep/y.tmp": "", "node_modules/m/i.js": "", ".git/config": "",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_what_git_ignores_is_left_out(root: Path) -> None:
    assert sorted(walk(str(root))) == [
        ".gitignore", "docs/deep/y.tmp", "keep.log", "main.py", "secret.py", "sub/.gitignore",
        "sub/build/in.py",
    ]  # fmt: skip


def test_links_are_not_followed_and_what_cannot_be_read_is_nothing(root: Path) -> None:
    (root / "loop").symlink_to(root)
    assert "loop" in list(walk(str(root)))
    assert not any(one.startswith("loop/") for one in walk(str(root)))
    assert list(walk(str(root / "absent"))) == []


def test_names_that_begin_so_come_first_and_a_new_file_is_found_later(root: Path) -> None:
    clock = ManualClock()
    files = ProjectFiles(str(root), clock)
    assert files.find("sec")[0] == "secret.py"
    assert files.find("build") == ["sub/build/in.py"]
    assert files.find("mnpy") == ["main.py"]
    assert files.find("nothing-like-it") == []
    (root / "second.py").write_text("", encoding="utf-8")
    assert "second.py" not in files.find("sec")
    clock.advance(FRESH_S + 1)
    files.find("sec")
    files.wait()
    assert "second.py" in files.find("sec")
