"""What the searches leave out, held against git's own verdict."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fakes.git_repo import git
from fakes.search_lab import SearchLab, opened_search_lab, write_tree

RULES = {
    ".gitignore": "# comment\n*.log\n!important.log\n/top-only\ndir-only/\na/**/z.txt\n"
    "**/anywhere.tmp\nb/*.x\n!b/keep.x\nspace\\ name\ntrailing   \n\\#hash\n\\!bang\n"
    "[ab]cd.txt\nq?.txt\ndeep/**\n"
    "!deep/not-back.txt\nstar*\n!star-back\n/anchored/inner\nno-ext\n*.PY\n",
    "sub/.gitignore": "*.txt\n!keep.txt\n/rooted\nother/\n",
    "sub/more/.gitignore": "!back.txt\nkeep.txt\n",
}
NAMES = [
    "a.log",
    "important.log",
    "sub/important.log",
    "sub/a.log",
    "top-only",
    "sub/top-only",
    "dir-only/x",
    "sub/dir-only/x",
    "a/z.txt",
    "a/q/z.txt",
    "a/q/r/z.txt",
    "z.txt",
    "anywhere.tmp",
    "sub/q/anywhere.tmp",
    "b/one.x",
    "b/keep.x",
    "b/c/one.x",
    "one.x",
    "#hash",
    "!bang",
    "acd.txt",
    "bcd.txt",
    "ccd.txt",
    "qa.txt",
    "qab.txt",
    "deep/f",
    "deep/e/f",
    "deep/not-back.txt",
    "star1",
    "star-back",
    "stars/in",
    "anchored/inner/x",
    "sub/anchored/inner",
    "no-ext",
    "sub/no-ext",
    "up.PY",
    "down.py",
    "sub/x.txt",
    "sub/keep.txt",
    "sub/rooted",
    "sub/deeper/rooted",
    "sub/other/f",
    "sub/more/back.txt",
    "sub/more/keep.txt",
    "sub/more/x.txt",
    "trailing",
    "excluded.md",
    "info.md",
    ".hidden",
    ".cfg/x.log",
    ".cfg/y",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work" / "project"
    write_tree(root, {**RULES, **dict.fromkeys(NAMES, "needle\n")})
    write_tree(root, {"space name": "needle\n"})
    return root


@pytest.fixture
async def lab(root: Path, tmp_path: Path) -> AsyncGenerator[SearchLab]:
    home = write_tree(tmp_path / "home", {".config/git/ignore": "info.md\n"})
    async with opened_search_lab(root, tmp_path / "cache", home=home) as made:
        yield made


def not_ignored_by_git(root: Path, home: Path, *below: str) -> set[str]:
    """Ask git which files are there and not ignored."""
    done = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--others",
            "--exclude-standard",
            *below,
        ],
        cwd=root,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"},
        check=True,
        capture_output=True,
    )
    return {f"./{os.fsdecode(name)}" for name in done.stdout.split(b"\0") if name}


async def test_the_searches_leave_out_exactly_what_git_ignores(
    lab: SearchLab, root: Path, tmp_path: Path
) -> None:
    git(root, "init", "--quiet")
    (root / ".git/info/exclude").write_text("excluded.md\n", encoding="utf-8")
    for below in ((), ("sub",), ("sub/more",), ("b",)):
        expected = not_ignored_by_git(root, tmp_path / "home", *below)
        found = await lab.call("search.grep", pattern="needle|.", path=f"./{'/'.join(below)}")
        assert {one["file"] for one in found["matches"]} == expected
    visible = {
        name
        for name in not_ignored_by_git(root, tmp_path / "home")
        if not any(part.startswith(".") for part in name[2:].split("/"))
    }
    listed = await lab.call("search.glob", pattern="**/*")
    assert set(listed["files"]) == visible


async def test_git_itself_says_so_for_every_single_file(
    lab: SearchLab, root: Path, tmp_path: Path
) -> None:
    git(root, "init", "--quiet")
    found = await lab.call("search.grep", pattern="needle")
    shown = {one["file"] for one in found["matches"]}
    names = [f"./{name}" for name in [*NAMES, "space name"]]
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "check-ignore", "--stdin", "-z"],
        cwd=root,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "GIT_CONFIG_NOSYSTEM": "1",
        },
        input="\0".join(names).encode(),
        check=True,
        capture_output=True,
    )
    ignored = {name.decode() for name in done.stdout.split(b"\0") if name}
    assert shown == set(names) - ignored
    assert ignored
    assert shown


async def test_a_project_below_the_top_of_its_repository_obeys_the_rules_above(
    lab: SearchLab, root: Path, tmp_path: Path
) -> None:
    git(root.parent, "init", "--quiet")
    write_tree(root.parent, {".gitignore": "ccd.txt\n"})
    # Above the repository nothing counts.
    write_tree(root.parent.parent, {".gitignore": "down.py\n"})
    expected = not_ignored_by_git(root, tmp_path / "home")
    found = await lab.call("search.grep", pattern="needle|.")
    assert {one["file"] for one in found["matches"]} == expected
    assert "./ccd.txt" not in expected
    assert "./down.py" in expected


async def test_rules_above_a_project_in_no_repository_do_not_count(
    lab: SearchLab, root: Path
) -> None:
    write_tree(root.parent, {".gitignore": "*\n"})
    found = await lab.call("search.grep", pattern="needle")
    names = {one["file"] for one in found["matches"]}
    assert "./down.py" in names
    assert "./a.log" not in names
    below = await lab.call("search.grep", pattern="needle", path="./sub")
    assert {one["file"] for one in below["matches"]} == {
        name for name in names if name.startswith("./sub/")
    }
    listed = await lab.call("search.glob", pattern="**/*", path="./sub")
    assert set(listed["files"]) == {name for name in names if name.startswith("./sub/")}


async def test_files_of_other_tools_ignore_nothing(lab: SearchLab, root: Path) -> None:
    write_tree(root, {".ignore": "down.py\n", ".rgignore": "ccd.txt\n"})
    found = await lab.call("search.grep", pattern="needle")
    assert {"./down.py", "./ccd.txt"} <= {one["file"] for one in found["matches"]}
