"""`search.ast` in a running daemon: patterns of code, their variables, and what a cage hides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.project import Project

SNIPPETS: dict[str, tuple[str, str, str]] = {
    "typescript": ("a.ts", "let x: number = f(1)", "f($A)"),
    "javascript": ("a.js", "let x = f(1)", "f($A)"),
    "tsx": ("a.tsx", "let x = <b>{f(1)}</b>", "f($A)"),
    "python": ("a.py", "x = f(1)", "f($A)"),
    "rust": ("a.rs", "fn main() { f(1); }", "f($A)"),
    "go": ("a.go", "package a\n\nfunc main() { f(1) }", "func main() { $$$A }"),
    "java": ("A.java", "class A { void g() { f(1); } }", "f($A)"),
    "c": ("a.c", "int main() { return f(1); }", "return $A;"),
    "cpp": ("a.cpp", "int main() { return f(1); }", "return $A;"),
    "css": ("a.css", "a { color: red }", "$S { color: red }"),
    "html": ("a.html", "<p>one</p>", "<p>one</p>"),
    "json": ("a.json", '{"a": 1}', '{"a": $A}'),
    "yaml": ("a.yaml", "a: 1", "a: $A"),
    # Further ones of the engine.
    "bash": ("a.sh", "echo one", "echo one"),
    "csharp": ("a.cs", "class A { void G() { F(1); } }", "F($A)"),
    "kotlin": ("a.kt", "fun main() { f(1) }", "f($A)"),
    "lua": ("a.lua", "f(1)", "f($A)"),
    "php": ("a.php", "<?php f(1);", "f($A)"),
    "ruby": ("a.rb", "f(1)", "f($A)"),
    "scala": ("a.scala", "object A { f(1) }", "f($A)"),
    "swift": ("a.swift", "f(1)", "f($A)"),
}
BROKEN = [
    ("console.log(", "typescript"),
    ("print(", "python"),
    ("def :", "python"),
    ("fn foo(", "rust"),
    ('{"a": ', "json"),
    ("foo bar baz", "javascript"),
    ("", "typescript"),
    ("", "python"),
    ("$$$", "python"),
    ("a(1)\nb(2)", "python"),
]


def search(project: Project, pattern: str, lang: str, agent: str = "primary", **more: Any) -> Any:
    """Search; it has to work."""
    return project.call("search.ast", agent, pattern=pattern, lang=lang, **more)


def contents(project: Project, pattern: str, lang: str, **more: Any) -> list[str]:
    """Return the code that matches."""
    return [one["content"] for one in search(project, pattern, lang, **more)["matches"]]


def variables(project: Project, pattern: str, lang: str) -> list[dict[str, str]]:
    """Return what the variables of a pattern stand for."""
    return [one["meta_variables"] for one in search(project, pattern, lang)["matches"]]


@whole("AT-AST-01", "AT-AST-04", "AT-AST-05")
def test_code_is_found_with_its_place_and_its_variables(project: Project) -> None:
    project.write("src/a.ts", 'let a = 1\nconsole.log("server started")\n')
    got = search(project, "console.log($MSG)", "typescript")
    assert (got["count"], len(got["matches"])) == (1, 1)
    expected = {
        "file": "./src/a.ts",
        "line": 2,
        "content": 'console.log("server started")',
        "meta_variables": {"MSG": '"server started"'},
        "context_before": [],
        "context_after": [],
    }
    assert {key: got["matches"][0][key] for key in expected} == expected


@whole("AT-AST-01")
@pytest.mark.parametrize(
    "bad",
    [
        {"lang": "python"},
        {"pattern": "f($A)"},
        {"pattern": 1, "lang": "python"},
        {"pattern": "f($A)", "lang": "python", "paths": "src"},
        {"pattern": "f($A)", "lang": "python", "paths": [1]},
        {"pattern": "f($A)", "lang": "python", "globs": "*.py"},
        {"pattern": "f($A)", "lang": "python", "context": -1},
        {"pattern": "f($A)", "lang": "python", "context": "2"},
        {"pattern": "f($A)", "lang": "python", "unknown": 1},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(project: Project, bad: dict[str, Any]) -> None:
    assert project.fail("search.ast", **bad)["code"] == "invalid_params"


@whole("AT-AST-02")
@pytest.mark.parametrize("lang", SNIPPETS)
def test_each_language_is_understood(project: Project, lang: str) -> None:
    file, code, pattern = SNIPPETS[lang]
    project.write(file, code + "\n")
    got = search(project, pattern, lang)
    assert [one["file"] for one in got["matches"]] == [f"./{file}"]


@whole("AT-AST-02")
def test_every_language_that_is_offered_is_taken(project: Project) -> None:
    (tool,) = [one for one in project.get("/tools")["tools"] if one["name"] == "search.ast"]
    offered = tool["parameters"]["properties"]["lang"]["enum"]
    assert set(SNIPPETS) <= set(offered)
    for lang in offered:
        body = {"agent": "primary", "tool": "search.ast"}
        params = {"pattern": "word", "lang": lang}
        path = f"/api/v1/projects/{project.id}/tools/call"
        got = project.daemon.client.post(path, json={**body, "params": params})
        assert got.is_success or got.json()["error"]["code"] == "invalid_pattern", lang


@whole("AT-AST-02", "AT-AST-03")
def test_an_unknown_language_is_refused_and_the_daemon_lives_on(project: Project) -> None:
    pid = project.daemon.get("/status")["pid"]
    project.write("a.py", "f(1)\n")
    for lang in ("klingon", "", "Python ", "PYTHON!", 7, None):
        refused = project.fail("search.ast", pattern="f($A)", lang=lang)
        assert refused["code"] == "invalid_params", lang
    assert contents(project, "f($A)", "python") == ["f(1)"]
    assert project.daemon.get("/status")["pid"] == pid


@whole("AT-AMB-45", "AT-FAIL-01")
def test_without_its_engine_the_daemon_does_not_start(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "ast_grep_py.py").write_text("raise ImportError('blocked')\n", encoding="utf-8")
    daemon = own()
    ended = daemon.cli("daemon", "run", code=None, env={"PYTHONPATH": str(blocked)})
    assert ended.code not in (0, None)
    assert "The engine for code search cannot be loaded" in ended.out + ended.err
    assert not list(daemon.home.rglob("*.sock"))  # it never listened
    daemon.start()
    assert daemon.get("/status")["version"]


@whole("AT-AST-05", "AT-AST-06", "AT-AST-07", "AT-AMB-47")
def test_a_variable_is_one_node_and_three_dollars_are_any_number(project: Project) -> None:
    project.write("a.js", "f()\nf(a)\nf(a, b)\nf(a,  /* x */ b , c)\n")
    assert contents(project, "f($A)", "javascript") == ["f(a)"]
    assert variables(project, "f($A)", "javascript") == [{"A": "a"}]
    assert contents(project, "f($$$)", "javascript")[:3] == ["f()", "f(a)", "f(a, b)"]
    assert len(contents(project, "f($$$)", "javascript")) == 4
    assert variables(project, "f($$$)", "javascript") == [{}, {}, {}, {}]
    named = variables(project, "f($$$ARGS)", "javascript")
    assert named[:3] == [{"ARGS": ""}, {"ARGS": "a"}, {"ARGS": "a, b"}]
    assert named[3]["ARGS"].startswith("a,  /* x */ b , c")
    both = variables(project, "f($FIRST, $$$REST)", "javascript")
    assert {"FIRST": "a", "REST": "b"} in both


@whole("AT-AST-08")
def test_a_variable_that_stands_twice_is_the_same_code_twice(project: Project) -> None:
    project.write("a.js", "x == x\nx == y\nf(1) == f(1)\nf(1) == f(2)\n")
    assert contents(project, "$A == $A", "javascript") == ["x == x", "f(1) == f(1)"]


@whole("AT-AST-09", "AT-EAST-15", "AT-EAST-27", "AT-FAIL-11")
@pytest.mark.parametrize(("pattern", "lang"), BROKEN, ids=str)
def test_a_broken_pattern_is_told_and_is_no_empty_result(
    project: Project, pattern: str, lang: str
) -> None:
    file = project.write(SNIPPETS[lang][0], SNIPPETS[lang][1])
    before = file.read_bytes()
    refused = project.fail("search.ast", pattern=pattern, lang=lang)
    assert refused["code"] == "invalid_pattern"
    assert refused["data"].get("fix") or refused["data"].get("detail"), refused
    # The same pattern gets the same word from who would rewrite it.
    for dry_run in (True, False):
        again = project.fail("edit.ast", rewrites={pattern: "x"}, lang=lang, dry_run=dry_run)
        assert again["code"] == "invalid_pattern"
    assert file.read_bytes() == before


@whole("AT-AST-10")
@pytest.mark.parametrize(
    ("file", "code", "lang", "pattern"),
    [
        ("a.py", "print(1)\n", "python", "print($X)"),
        ("a.py", "def f(a, b):\n    return a\n", "python", "def $F($$$A): $$$B"),
        ("a.rs", "fn f(a: u8) { g(a); h(); }\n", "rust", "fn $F($$$A) { $$$B }"),
        ("a.json", '{"a": [1, 2]}\n', "json", '{"a": $X}'),
        ("A.java", "class A { int f(int a) { return a; } }", "java", "$T $M($$$A) { $$$B }"),
        ("a.c", "int f(int a) { return a; }\n", "c", "$T $M($$$A) { $$$B }"),
        ("a.css", "p { color: red }\n", "css", "$S { color: $C }"),
    ],
)
def test_a_good_pattern_is_not_refused_for_its_variables(
    project: Project, file: str, code: str, lang: str, pattern: str
) -> None:
    project.write(file, code)
    assert search(project, pattern, lang)["count"] == 1


@whole("AT-AST-11")
def test_lines_around_a_match_come_as_many_as_asked_for(project: Project) -> None:
    project.write("a.py", "hit(0)\none\ntwo\nthree\nhit(1)\nfour\n\nfive\n")
    first, second = search(project, "hit($A)", "python", context=2)["matches"]
    assert (first["context_before"], first["context_after"]) == ([], ["one", "two"])
    assert (second["context_before"], second["context_after"]) == (["two", "three"], ["four", ""])
    for one in search(project, "hit($A)", "python", context=0)["matches"]:
        assert one["context_before"] == one["context_after"] == []


@whole("AT-AST-12")
def test_only_files_of_the_language_below_the_paths_and_by_the_globs_are_searched(
    project: Project,
) -> None:
    names = ("src/a.ts", "src/a.test.ts", "src/b.py", "src/c.js", "lib/d.ts", "src/deep/e.ts")
    for name in names:
        project.write(name, "hit(1)\n")

    def found(**more: Any) -> list[str]:
        return [one["file"] for one in search(project, "hit($A)", "typescript", **more)["matches"]]

    everything = ["./lib/d.ts", "./src/a.test.ts", "./src/a.ts", "./src/deep/e.ts"]
    assert found() == everything
    assert found(globs=["!**/*.test.ts"]) == [one for one in everything if one != "./src/a.test.ts"]
    assert found(paths=["src"]) == everything[1:]
    assert found(paths=["lib", "src/deep"]) == ["./lib/d.ts", "./src/deep/e.ts"]
    assert found(paths=["src/a.ts"]) == ["./src/a.ts"]
    assert found(globs=["*.test.ts", "d.ts"]) == ["./lib/d.ts", "./src/a.test.ts"]
    assert found(globs=["*.ts", "!d.ts"], paths=["lib"]) == []


@whole("AT-AST-13")
def test_words_in_comments_and_strings_are_no_code(project: Project) -> None:
    project.write(
        "a.ts",
        "// console.log(x)\nlet s = 'console.log(x)'\n/* console.log(x) */\nconsole.log( x )\n",
    )
    (one,) = search(project, "console.log($X)", "typescript")["matches"]
    assert (one["line"], one["content"]) == (4, "console.log( x )")


@whole("AT-AST-14", "AT-AST-15")
def test_a_cage_hides_the_code_outside_it(project: Project, agent: Callable[..., str]) -> None:
    project.write("src/in.py", "hit(1)\n")
    project.write("data/out.py", "\nhit('s3cret')\n")
    caged = agent("caged", "ro:src")
    got = search(project, "hit($A)", "python", caged, context=1)
    assert got["matches"][0] == {"file": "./data/out.py", "line": 2, "outside_cage": True}
    assert got["matches"][1]["meta_variables"] == {"A": "1"}
    assert "s3cret" not in str(got)
    assert search(project, "hit($A)", "python", caged, paths=["src"])["count"] == 1
    for paths in (["./src", "./data"], ["./data"], ["data/out.py", "."]):
        refused = project.fail("search.ast", caged, pattern="hit($A)", lang="python", paths=paths)
        assert refused["code"] == "capability_denied", paths


@whole("AT-AST-16")
def test_ignored_binary_and_unreadable_code_is_skipped_and_the_order_is_steady(
    project: Project,
) -> None:
    for name in ("b.py", "a/z.py", "a.py", "build/x.py"):
        project.write(name, "hit(2)\nhit(1)\n")
    project.write(".gitignore", "build/\n")
    project.write("blob.py", b"hit(1)\n\0\0")
    project.write("latin.py", b"hit('\xe9')\n")
    found = [(name, line) for name in ("./a.py", "./a/z.py", "./b.py") for line in (1, 2)]
    for _ in range(3):
        got = search(project, "hit($A)", "python")["matches"]
        assert [(one["file"], one["line"]) for one in got] == found


@whole("AT-AST-17")
def test_a_missing_path_and_one_that_leaves_the_project_are_told_apart(project: Project) -> None:
    project.write("a.py", "f(1)\n")
    for paths, code in (
        (["./nope"], "file_not_found"),
        (["a.py", "./nope"], "file_not_found"),
        (["../.."], "invalid_params"),
        (["a.py", "../.."], "invalid_params"),
    ):
        refused = project.fail("search.ast", pattern="f($A)", lang="python", paths=paths)
        assert refused["code"] == code, paths
