"""`search.grep` in a running daemon: what it finds, what it leaves out, what a cage hides."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.project import Project

MODES = ("content", "files_with_matches", "count")


def tree(project: Project, files: dict[str, str | bytes]) -> None:
    """Write files."""
    for path, content in files.items():
        project.write(path, content)


def grep(project: Project, pattern: str, agent: str = "primary", **more: Any) -> dict[str, Any]:
    """Search; it has to work."""
    got: dict[str, Any] = project.call("search.grep", agent, pattern=pattern, **more)
    return got


def files(project: Project, pattern: str, agent: str = "primary", **more: Any) -> list[str]:
    """Return the files that match, in the order of the answer."""
    return [one["file"] for one in grep(project, pattern, agent, **more)["matches"]]


def lines(project: Project, pattern: str, **more: Any) -> list[tuple[str, int]]:
    """Return files and line numbers."""
    got = grep(project, pattern, output_mode="content", **more)
    return [(one["file"], one["line"]) for one in got["matches"]]


@whole("AT-GREP-01")
def test_a_pattern_alone_searches_the_project_for_files(project: Project) -> None:
    tree(project, {"a.txt": "needle\n", "sub/b.txt": "a needle\n", "c.txt": "hay\n"})
    assert grep(project, "needle") == {
        "matches": [{"file": "./a.txt"}, {"file": "./sub/b.txt"}],
        "total_matches": 2,
        "total_files": 2,
        "truncated": False,
    }
    for bad in (
        {},
        {"pattern": 1},
        {"pattern": "x", "path": 1},
        {"pattern": "x", "include": ["*.ts"]},
        {"pattern": "x", "output_mode": "lines"},
        {"pattern": "x", "head_limit": 0},
        {"pattern": "x", "head_limit": "3"},
        {"pattern": "x", "unknown": 1},
    ):
        assert project.fail("search.grep", **bad)["code"] == "invalid_params", bad


@whole("AT-GREP-02", "AT-GREP-04", "AT-AMB-12")
def test_each_mode_has_its_entries_and_all_have_the_same_members(project: Project) -> None:
    tree(project, {"a.txt": "hit hit\nno\nhit\nhit\n", "b.txt": "hit\n"})
    got = {mode: grep(project, "hit", output_mode=mode) for mode in MODES}
    for mode, one in got.items():
        assert set(one) == {"matches", "total_matches", "total_files", "truncated"}, mode
        assert one["truncated"] is False
    assert got["files_with_matches"]["matches"] == [{"file": "./a.txt"}, {"file": "./b.txt"}]
    assert got["count"]["matches"] == [
        {"file": "./a.txt", "count": 3},
        {"file": "./b.txt", "count": 1},
    ]
    assert got["content"]["matches"] == [
        {"file": "./a.txt", "line": 1, "content": "hit hit"},
        {"file": "./a.txt", "line": 3, "content": "hit"},
        {"file": "./a.txt", "line": 4, "content": "hit"},
        {"file": "./b.txt", "line": 1, "content": "hit"},
    ]
    assert [got[mode]["total_matches"] for mode in MODES] == [4, 2, 4]


@whole("AT-GREP-03")
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_comes_with_its_number_and_without_its_end(project: Project, end: str) -> None:
    text = "let a\n" * 41 + "// TODO: handle errors" + end
    tree(project, {"src/main.ts": text, "src/other.ts": "let b\n"})
    assert grep(project, "TODO|FIXME", output_mode="content")["matches"] == [
        {"file": "./src/main.ts", "line": 42, "content": "// TODO: handle errors"}
    ]


@whole("AT-GREP-05")
@pytest.mark.parametrize(
    ("include", "found"),
    [
        ("*.ts", ["./a.ts", "./deep/er/d.ts"]),
        ("*.{ts,tsx}", ["./a.ts", "./deep/c.tsx", "./deep/er/d.ts"]),
        ("*.js", ["./b.js"]),
        ("deep/*.tsx", ["./deep/c.tsx"]),
        ("deep/**/*.ts", ["./deep/er/d.ts"]),
        ("d.*", ["./deep/er/d.ts"]),
        ("*.py", []),
    ],
)
def test_include_keeps_to_files_of_some_names(
    project: Project, include: str, found: list[str]
) -> None:
    names = ("a.ts", "b.js", "deep/c.tsx", "deep/er/d.ts")
    tree(project, dict.fromkeys(names, "hit\n"))
    assert files(project, "hit", include=include) == found


@whole("AT-GREP-06", "AT-GREP-07")
def test_a_limit_cuts_the_entries_and_the_total_counts_them_all(project: Project) -> None:
    tree(project, {"ten.txt": "hit\n" * 10, **{f"f{n}.txt": "hit\nhit\n" for n in range(4)}})
    got = grep(project, "hit", path="ten.txt", output_mode="content", head_limit=3)
    assert [one["line"] for one in got["matches"]] == [1, 2, 3]
    assert (got["total_matches"], got["truncated"]) == (10, True)
    whole_of_it = grep(project, "hit", path="ten.txt", output_mode="content", head_limit=10)
    assert (len(whole_of_it["matches"]), whole_of_it["truncated"]) == (10, False)
    some = grep(project, "hit", head_limit=2)
    assert (len(some["matches"]), some["total_matches"], some["truncated"]) == (2, 5, True)
    counted = grep(project, "hit", output_mode="count", head_limit=1)
    assert counted["matches"] == [{"file": "./f0.txt", "count": 2}]
    assert (counted["total_matches"], counted["truncated"]) == (18, True)


@whole("AT-GREP-09")
def test_an_answer_has_at_most_256_kb_of_whole_entries(project: Project) -> None:
    line = "hit " + "x" * 600
    tree(project, {f"f{n}.txt": f"{line}\n" * 500 for n in range(6)})
    got = grep(project, "hit", output_mode="content")
    assert 250_000 < len(json.dumps(got["matches"])) <= 262_144
    assert got["truncated"] is True
    assert {one["content"] for one in got["matches"]} == {line}
    assert got["total_matches"] > len(got["matches"])


@whole("AT-GREP-10", "AT-GREP-11")
def test_binary_and_ignored_files_are_left_out_in_a_folder_without_git(project: Project) -> None:
    tree(
        project,
        {
            "text.txt": "hit\n",
            "blob.txt": b"hit\0hit\n",
            ".gitignore": "build/\n*.log\n!kept.log\n",
            "build/out.txt": "hit\n",
            "x.log": "hit\n",
            "kept.log": "hit\n",
            "sub/.gitignore": "secret.txt\n",
            "sub/secret.txt": "hit\n",
            "sub/open.txt": "hit\n",
            "secret.txt": "hit\n",
        },
    )
    assert not (project.root / ".git").exists()
    found = ["./kept.log", "./secret.txt", "./sub/open.txt", "./text.txt"]
    assert files(project, "hit", include="*.{txt,log}") == found
    assert [name for name, _ in lines(project, "hit", include="*.{txt,log}")] == found


@whole("AT-GREP-13")
@pytest.mark.parametrize(
    "pattern", ["--files", "-e", "-v", "--", "-f/etc/passwd", "--pre=touch x", "-uuu"]
)
def test_a_pattern_that_looks_like_an_option_is_searched_as_it_is(
    project: Project, pattern: str
) -> None:
    tree(project, {"a.txt": f"say {pattern} here\n", "b.txt": "nothing\n"})
    assert files(project, pattern) == ["./a.txt"]
    assert files(project, "nothing", include="--files") == []
    assert files(project, "nothing", include="-v") == []
    assert not (project.root / "x").exists()


@whole("AT-GREP-14", "AT-AMB-12")
@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "unclosed group"), ("[a", "unclosed"), ("*x", "repetition"), ("(?P<n>x", "unclosed")],
)
def test_a_pattern_that_cannot_be_read_is_told_in_the_engines_words(
    project: Project, pattern: str, words: str
) -> None:
    project.write("a.txt", "x\n")
    refused = project.fail("search.grep", pattern=pattern)
    assert refused["code"] == "invalid_pattern"
    assert words in json.dumps(refused)


@whole("AT-GREP-15")
def test_a_single_file_can_be_searched_and_a_missing_path_is_told(project: Project) -> None:
    tree(project, {"src/main.ts": "hit\n", "src/other.ts": "hit\n"})
    assert files(project, "hit", path="./src/main.ts") == ["./src/main.ts"]
    assert files(project, "hit", path="src") == ["./src/main.ts", "./src/other.ts"]
    tree(project, {".gitignore": "out.txt\n", "out.txt": "hit\n"})
    assert files(project, "hit", path="out.txt") == ["./out.txt"]
    (project.root / "link.ts").symlink_to("src/main.ts")
    (project.root / "gone.ts").symlink_to("src/gone.ts")
    assert files(project, "hit", path="link.ts") == ["./src/main.ts"]
    for path in ("./nope", "gone.ts", "src/main.ts/x"):
        assert project.fail("search.grep", pattern="x", path=path)["code"] == "file_not_found"


@whole("AT-GREP-16")
def test_entries_are_in_order_and_neither_links_nor_git_are_searched(project: Project) -> None:
    names = ("b/z.txt", "a.txt", "B.txt", "b.txt", "b/a.txt", "c/d/e.txt")
    tree(project, dict.fromkeys(names, "hit\nHIT\nhit\n"))
    tree(project, {".git/config": "hit\n", "sub/.git/x": "hit\n"})
    (project.root / "link").symlink_to("b", target_is_directory=True)
    first = lines(project, "hit")
    assert first == sorted(first)
    assert {name for name, _ in first} == {f"./{name}" for name in names}
    assert {line for _, line in first} == {1, 3}
    assert all(lines(project, "hit") == first for _ in range(3))
    assert len(lines(project, "(?i)hit")) == 3 * len(names)
    assert files(project, "hit", path=".") == sorted(f"./{name}" for name in names)


@whole("AT-GREP-17")
def test_a_huge_line_is_cut(project: Project) -> None:
    tree(project, {"min.js": "hit " + "x" * 100_000 + "\n"})
    (one,) = grep(project, "hit", output_mode="content")["matches"]
    assert one["content"] == "hit " + "x" * 1996 + "[truncated]"


@whole("AT-GREP-18", "AT-AMB-09")
def test_a_caged_search_may_begin_inside_its_cage_or_above_it(
    project: Project, agent: Callable[..., str]
) -> None:
    tree(project, {"src/a/in.txt": "hit\n", "data/out.txt": "hit\n", "src-secret/x.txt": "hit\n"})
    caged = agent("caged", "ro:src/a")
    readable = "./src/a/in.txt"
    for path in ({}, {"path": "."}, {"path": "src"}, {"path": "src/a"}, {"path": readable}):
        got = grep(project, "hit", caged, **path)["matches"]
        assert [one["file"] for one in got if "outside_cage" not in one] == [readable], path
    for path in ("./data", "data/out.txt", "src-secret", "src/nothing"):
        refused = project.fail("search.grep", caged, pattern="hit", path=path)
        assert refused["code"] == "capability_denied", path


@whole("AT-GREP-19", "AT-AMB-08")
def test_hits_outside_the_cage_are_marked_and_tell_no_content(
    project: Project, agent: Callable[..., str]
) -> None:
    tree(project, {"src/in.txt": "hit in\n", "data/out.txt": "no\nhit s3cret\nhit more\n"})
    caged = agent("caged", "ro:src")
    got = grep(project, "hit", caged, output_mode="content")
    assert got["matches"] == [
        {"file": "./data/out.txt", "line": 2, "outside_cage": True},
        {"file": "./data/out.txt", "line": 3, "outside_cage": True},
        {"file": "./src/in.txt", "line": 1, "content": "hit in"},
    ]
    assert grep(project, "hit", caged)["matches"] == [
        {"file": "./data/out.txt", "outside_cage": True},
        {"file": "./src/in.txt"},
    ]
    assert grep(project, "hit", caged, output_mode="count")["matches"] == [
        {"file": "./data/out.txt", "count": 2, "outside_cage": True},
        {"file": "./src/in.txt", "count": 1},
    ]
