"""`search.glob` in a running daemon: patterns, order, limits, and what a cage hides."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.project import Project

LONG_AGO = 1_600_000_000


def aged(project: Project, *paths: str) -> None:
    """Write files, each a second younger than the one before."""
    for number, path in enumerate(paths):
        os.utime(project.write(path, "x\n"), (LONG_AGO + number, LONG_AGO + number))


def glob(project: Project, pattern: str, agent: str = "primary", **more: Any) -> dict[str, Any]:
    """Look for files; it has to work."""
    got: dict[str, Any] = project.call("search.glob", agent, pattern=pattern, **more)
    return got


def found(project: Project, pattern: str, **more: Any) -> list[str]:
    """Return the files, in the order of their names."""
    return sorted(glob(project, pattern, **more)["files"])


@whole("AT-GLOB-01", "AT-GLOB-02")
def test_files_are_found_by_pattern_below_a_folder(
    project: Project, agent: Callable[..., str]
) -> None:
    free = agent("free", cage="disabled")
    aged(project, "src/a.test.ts", "src/deep/b.test.ts", "src/c.ts", "other/d.test.ts")
    assert glob(project, "**/*.test.ts", free, path="./src") == {
        "files": ["./src/deep/b.test.ts", "./src/a.test.ts"],
        "count": 2,
        "truncated": False,
        "total": 2,
    }
    assert glob(project, "**/*.test.ts")["count"] == 3
    for bad in ({}, {"pattern": 1}, {"pattern": "*", "path": 1}, {"pattern": "*", "unknown": 1}):
        assert project.fail("search.glob", **bad)["code"] == "invalid_params", bad


@whole("AT-GLOB-02")
@pytest.mark.parametrize(
    ("pattern", "path", "names"),
    [
        ("src/*.ts", ".", ["src/a.ts", "src/b1.ts"]),
        ("src/**/*.ts", ".", ["src/a.ts", "src/b1.ts", "src/x/y/c.ts"]),
        ("**/y/*", ".", ["src/x/y/c.ts"]),
        ("src/?.ts", ".", ["src/a.ts"]),
        ("src/b[0-9].ts", ".", ["src/b1.ts"]),
        ("src/[!b]*.ts", ".", ["src/a.ts"]),
        ("src/{a,b1}.{ts,js}", ".", ["src/a.js", "src/a.ts", "src/b1.ts"]),
        ("x/**", "src", ["src/x/y/c.ts"]),
        ("y/c.ts", "src/x", ["src/x/y/c.ts"]),
        ("top.md", "src", []),
        ("x/*.ts", "src", []),
        ("A.ts", "src", []),
    ],
)
def test_each_kind_of_pattern_is_held_against_the_path_below_the_folder(
    project: Project, pattern: str, path: str, names: list[str]
) -> None:
    aged(project, "src/a.ts", "src/a.js", "src/b1.ts", "src/x/y/c.ts", "top.md")
    assert found(project, pattern, path=path) == [f"./{name}" for name in names]


@whole("AT-GLOB-03", "AT-GLOB-08")
def test_the_newest_come_first_equal_ones_by_path_and_only_files_come(project: Project) -> None:
    aged(project, "c.txt", "a.txt", "sub/b.txt")
    for name in ("y.txt", "x.txt", "sub/z.txt"):
        os.utime(project.write(name, ""), (LONG_AGO - 50, LONG_AGO - 50))
    (project.root / "folder.txt").mkdir()
    os.mkfifo(project.root / "pipe.txt")
    got = glob(project, "**/*.txt")["files"]
    newest = ["./sub/b.txt", "./a.txt", "./c.txt"]
    assert got == [*newest, "./sub/z.txt", "./x.txt", "./y.txt"]


@whole("AT-GLOB-04", "AT-GLOB-05")
def test_of_more_than_a_hundred_the_newest_hundred_come(project: Project) -> None:
    names = [f"f{(n * 37) % 150:03}.txt" for n in range(150)]
    aged(project, *names)
    got = glob(project, "*.txt")
    assert got["files"] == [f"./{name}" for name in names[:-101:-1]]
    assert (got["count"], got["truncated"]) == (100, True)
    for name in names[:50]:
        (project.root / name).unlink()
    exact = glob(project, "*.txt")
    assert (exact["count"], exact["truncated"]) == (100, False)


@whole("AT-GLOB-07")
def test_ignored_files_and_git_are_left_out(project: Project) -> None:
    aged(project, "a.js", "a.min.js", "build/x.js", ".git/h.js", "sub/.git/h.js")
    aged(project, "sub/no.js", "sub/yes.js", "no.js")
    project.write(".gitignore", "build/\n*.min.js\n")
    project.write("sub/.gitignore", "no.js\n")
    assert found(project, "**/*.js") == ["./a.js", "./no.js", "./sub/yes.js"]
    assert found(project, "{build,.git,sub/.git}/*.js") == []
    assert found(project, "**/.git/*.js") == []


@whole("AT-GLOB-08")
def test_hidden_files_come_when_the_pattern_names_their_dot(project: Project) -> None:
    aged(project, "a.txt", ".env", "sub/.env", "real/b.txt")
    (project.root / "linked").symlink_to("real", target_is_directory=True)
    assert found(project, "**/*") == ["./a.txt", "./real/b.txt"]
    assert found(project, "**/.env") == ["./.env", "./sub/.env"]
    assert found(project, "**/b.txt") == ["./real/b.txt"]
    # One that names a dot somewhere has named it there, and nowhere else.
    aged(project, ".cfg/c.txt", ".cfg/.own")
    assert found(project, ".cfg/*") == ["./.cfg/c.txt"]


@whole("AT-GLOB-09")
@pytest.mark.parametrize(
    "params",
    [
        {"pattern": "../*"},
        {"pattern": "src/../../*"},
        {"pattern": "*", "path": "../"},
        {"pattern": "*", "path": "src/../.."},
        {"pattern": "*", "path": "out"},
        {"pattern": "../../*", "path": "src"},
        {"pattern": "{../*,*}"},
    ],
    ids=str,
)
def test_nothing_climbs_out_of_the_project(project: Project, params: dict[str, str]) -> None:
    aged(project, "src/a.txt")
    (project.root / "out").symlink_to("/etc")
    assert project.fail("search.glob", **params)["code"] == "invalid_params"


@whole("AT-GLOB-10", "AT-GLOB-11", "AT-AMB-11")
def test_a_caged_agent_finds_its_own_files_and_hears_of_others_apart(
    project: Project, agent: Callable[..., str]
) -> None:
    aged(project, "data/old.txt", "src/a.txt", "data/x.txt", "src/b.txt", "src-secret/y.txt")
    caged = agent("caged", "ro:src")
    assert glob(project, "**/*.txt", caged) == {
        "files": ["./src/b.txt", "./src/a.txt"],
        "count": 2,
        "truncated": False,
        "total": 2,
        "outside_cage": ["./src-secret/y.txt", "./data/x.txt", "./data/old.txt"],
    }
    inside = glob(project, "*.txt", caged, path="src")
    assert inside["files"] == ["./src/b.txt", "./src/a.txt"]
    assert not inside.get("outside_cage")
    for path in ("./data", "src-secret"):
        refused = project.fail("search.glob", caged, pattern="*", path=path)
        assert refused["code"] == "capability_denied", path
    aged(project, *(f"data/{n:03}.txt" for n in range(120)))
    many = glob(project, "**/*.txt", caged)
    assert (many["count"], len(many["outside_cage"]), many["truncated"]) == (2, 100, True)
    assert many["outside_cage"][0] == "./data/119.txt"


@whole("AT-GLOB-12")
def test_a_broken_pattern_and_a_missing_folder_are_told_apart(project: Project) -> None:
    aged(project, "a.txt")
    for pattern in ("[", "{a", "a[z-", "{a,{b}"):
        assert project.fail("search.glob", pattern=pattern)["code"] == "invalid_pattern", pattern
    refused = project.fail("search.glob", pattern="*", path="./nope")
    assert refused["code"] == "file_not_found"
