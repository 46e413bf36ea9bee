"""`edit.ast` in a running daemon: what a dry run shows, what is written, all of it or none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly
from whole.harness.project import Project

LOG = {"console.log($MSG)": "logger.debug($MSG)"}
RENAME = {"old($A)": "new($A)"}
KEYS = {
    "changes",
    "file_changes",
    "total_replacements",
    "files_touched",
    "files_searched",
    "applied",
    "limit_reached",
    "parse_errors",
}


def edit(project: Project, rewrites: dict[str, str], agent: str = "primary", **more: Any) -> Any:
    """Rewrite; it has to work."""
    return project.call("edit.ast", agent, rewrites=rewrites, **more)


def apply(project: Project, rewrites: dict[str, str], agent: str = "primary", **more: Any) -> Any:
    """Rewrite on the disk; it has to work."""
    got = edit(project, rewrites, agent, dry_run=False, **more)
    assert got["applied"] is True
    return got


def refused(project: Project, agent: str = "primary", **params: Any) -> dict[str, Any]:
    """Rewrite in vain."""
    return project.fail("edit.ast", agent, **{"rewrites": RENAME, **params})


@whole("AT-EAST-01")
@pytest.mark.parametrize(
    "bad",
    [
        {"rewrites": {}},
        {"rewrites": {"a($X)": 1}},
        {"rewrites": {"a($X)": None}},
        {"rewrites": {"a($X)": "b($X)", "c($X)": ["d"]}},
        {"rewrites": "a -> b"},
        {"rewrites": None},
        {"lang": "klingon"},
        {"path": 1},
        {"glob": 1},
        {"dry_run": "no"},
        {"max_replacements": 0},
        {"max_files": 0},
        {"max_files": "2"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(project: Project, bad: dict[str, Any]) -> None:
    file = project.write("a.py", "old(1)\na(1)\n")
    params: dict[str, Any] = {"rewrites": RENAME, "dry_run": False, **bad}
    assert project.fail("edit.ast", **params)["code"] == "invalid_params"
    assert file.read_bytes() == b"old(1)\na(1)\n"


@whole("AT-EAST-02", "AT-EAST-03", "AT-EAST-05", "AT-EAST-06")
def test_a_dry_run_shows_the_changes_and_the_real_one_makes_them(project: Project) -> None:
    file = project.write("a.ts", "let a = 1\n  console.log(\n    a)\n")
    before = file.stat()
    shown = edit(project, LOG)
    assert set(shown) == KEYS
    assert shown["changes"] == [
        {
            "path": "./a.ts",
            "before": "console.log(\n    a)",
            "after": "logger.debug(a)",
            "byte_start": 12,
            "byte_end": 31,
            "start_line": 2,
            "start_column": 3,
            "end_line": 3,
            "end_column": 7,
        }
    ]
    counts = {key: shown[key] for key in KEYS - {"changes"}}
    assert counts == {
        "file_changes": [{"path": "./a.ts", "count": 1}],
        "total_replacements": 1,
        "files_touched": 1,
        "files_searched": 1,
        "applied": False,
        "limit_reached": False,
        "parse_errors": [],
    }
    after = file.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert file.read_text(encoding="utf-8").count("console.log") == 1
    made = apply(project, LOG)
    assert {**made, "applied": False} == shown
    assert file.read_text(encoding="utf-8") == "let a = 1\n  logger.debug(a)\n"


@whole("AT-EAST-04", "AT-AMB-36")
def test_places_are_bytes_of_the_file_and_lines_and_columns_from_one(project: Project) -> None:
    text = "# \N{GRINNING FACE} caf\xe9\nx = '\N{GRINNING FACE}'; old(2)\nold(3)\n"
    data = project.write("a.py", text).read_bytes()
    first, second = edit(project, RENAME)["changes"]
    for one in (first, second):
        assert data[one["byte_start"] : one["byte_end"]].decode() == one["before"]
    assert (first["start_line"], first["end_line"]) == (2, 2)
    assert first["before"] == "old(2)"
    assert first["end_column"] - first["start_column"] == 6
    places = ("start_line", "start_column", "end_line", "end_column")
    assert tuple(second[key] for key in places) == (3, 1, 3, 7)


@whole("AT-EAST-06")
def test_everything_in_every_file_is_rewritten(project: Project) -> None:
    project.write("a.ts", "console.log(1); console.log(2)\nconsole.log(3)\n")
    project.write("sub/b.ts", "if (x) { console.log(4) }\n")
    got = apply(project, LOG)
    assert (got["total_replacements"], got["files_touched"]) == (4, 2)
    assert project.read("a.ts") == "logger.debug(1); logger.debug(2)\nlogger.debug(3)\n"
    assert project.read("sub/b.ts") == "if (x) { logger.debug(4) }\n"


@whole("AT-EAST-07")
@pytest.mark.parametrize(
    ("code", "rewrites", "after", "count"),
    [
        ("foo(foo(1))\n", {"foo($A)": "bar($A)"}, "bar(foo(1))\n", 1),
        ("foo(foo(1)); foo(2)\n", {"foo($A)": "bar($A)"}, "bar(foo(1)); bar(2)\n", 2),
        ("f(1)\n", {"f($A)": "first($A)", "f(1)": "second()"}, "first(1)\n", 1),
        ("f(1)\n", {"f(1)": "second()", "f($A)": "first($A)"}, "second()\n", 1),
        ("f(g(1))\n", {"g($A)": "inner($A)", "f($A)": "outer($A)"}, "outer(g(1))\n", 1),
        # Both begin at the same place; the outer one ends later.
        ("f(1)(2)\n", {"$F($A)": "call($F, $A)"}, "call(f(1), 2)\n", 1),
        ("f(1)(2)\n", {"f(1)": "g", "$F($A)($B)": "call($F, $A, $B)"}, "call(f, 1, 2)\n", 1),
    ],
)
def test_of_edits_that_overlap_the_outer_and_the_first_wins(
    project: Project, code: str, rewrites: dict[str, str], after: str, count: int
) -> None:
    project.write("a.js", code)
    got = apply(project, rewrites)
    assert project.read("a.js") == after
    assert (got["total_replacements"], len(got["changes"])) == (count, count)


@whole("AT-EAST-08", "AT-EAST-10")
@pytest.mark.parametrize(
    ("code", "rewrites", "after"),
    [
        ("f(1, 2)\n", {"f($A, $B)": "f($B, $A)"}, "f(2, 1)\n"),
        ("f(a,  b , c)\n", {"f($$$ARGS)": "g(0, $$$ARGS)"}, "g(0, a,  b , c)\n"),
        ("f()\n", {"f($$$ARGS)": "g($$$ARGS)"}, "g()\n"),
        ("f('a' + x)\n", {"f($A)": "$A.$A"}, "'a' + x.'a' + x\n"),
        ("a(1)\n", {"a($X)": "b($X)", "b($X)": "c($X)"}, "b(1)\n"),
        ("a(1)\nb(2)\n", {"a($X)": "b($X)", "b($X)": "c($X)"}, "b(1)\nc(2)\n"),
        ("f(1)\nx\n", {"f($A)": ""}, "\nx\n"),
    ],
)
def test_templates_get_the_code_that_the_variables_stand_for(
    project: Project, code: str, rewrites: dict[str, str], after: str
) -> None:
    project.write("a.js", code)
    apply(project, rewrites)
    assert project.read("a.js") == after


@whole("AT-EAST-09")
def test_a_template_with_a_variable_of_nothing_is_refused(project: Project) -> None:
    project.write("a.js", "a(1)\n")
    for rewrites in ({"a($X)": "b($Y)"}, {"a($X)": "b($X)", "c($Z)": "d($$$X)"}):
        got = refused(project, rewrites=rewrites, dry_run=False)
        assert got["code"] == "invalid_params", rewrites
    assert project.read("a.js") == "a(1)\n"


@whole("AT-EAST-11")
def test_a_path_a_glob_and_gitignore_say_which_files_are_meant(project: Project) -> None:
    def fresh() -> None:
        for name in ("src/a.py", "src/b.py", "src/deep/c.py", "other/d.py", "src/build/e.py"):
            project.write(name, "old(1)\n")

    def changed(**more: Any) -> list[str]:
        fresh()
        got = apply(project, RENAME, **more)
        paths = [one["path"] for one in got["file_changes"]]
        on_disk = [
            f"./{one.relative_to(project.root)}"
            for one in project.root.rglob("*.py")
            if one.read_text(encoding="utf-8") == "new(1)\n"
        ]
        assert sorted(on_disk) == paths
        return paths

    project.write(".gitignore", "build/\n")
    assert changed(path="src/a.py") == ["./src/a.py"]
    assert changed(path="src") == ["./src/a.py", "./src/b.py", "./src/deep/c.py"]
    assert changed(path="src", glob="c.py") == ["./src/deep/c.py"]
    assert changed(glob="src/*.py") == ["./src/a.py", "./src/b.py"]
    assert changed(glob="!a.py", path="src") == ["./src/b.py", "./src/deep/c.py"]
    assert len(changed()) == 4


@whole("AT-EAST-12", "AT-EAST-13")
@pytest.mark.parametrize(
    ("limits", "replaced", "files", "reached"),
    [
        ({"max_replacements": 1}, 1, 1, True),
        ({"max_replacements": 3}, 3, 2, True),
        ({"max_replacements": 4}, 4, 2, False),
        ({"max_files": 1}, 2, 1, True),
        ({"max_files": 2}, 4, 2, False),
        ({"max_files": 1, "max_replacements": 1}, 1, 1, True),
        ({}, 4, 2, False),
    ],
    ids=str,
)
def test_limits_hold_over_all_files(
    project: Project, limits: dict[str, Any], replaced: int, files: int, reached: bool
) -> None:
    for name in ("a.py", "b.py"):
        project.write(name, "old(1)\nold(2)\n")
    got = apply(project, RENAME, **limits)
    counts = (got["total_replacements"], got["files_touched"], got["limit_reached"])
    assert counts == (replaced, files, reached)
    text = project.read("a.py") + project.read("b.py")
    assert (text.count("new("), text.count("old(")) == (replaced, 4 - replaced)


@whole("AT-EAST-14", "AT-AMB-39")
def test_the_language_is_taken_from_the_files_when_they_are_of_one(project: Project) -> None:
    project.write("one/a.ts", "old(1)\n")
    project.write("one/README", "words\n")
    project.write("one/notes.xyz", "words\n")
    assert edit(project, RENAME, path="one")["total_replacements"] == 1
    project.write("two/a.ts", "old(1)\n")
    project.write("two/b.js", "old(1)\n")
    mixed = refused(project, path="two")
    assert mixed["code"] == "invalid_params"
    said = str(mixed["data"]["detail"])
    assert "typescript" in said
    assert "javascript" in said
    assert edit(project, RENAME, path="two", lang="javascript")["files_searched"] == 1
    project.write("three/notes.xyz", "old(1)\n")
    for path in ("three", "three/notes.xyz", "one/README"):
        got = refused(project, path=path)
        assert (got["code"], bool(got["data"]["detail"])) == ("invalid_params", True), path


@whole("AT-EAST-15")
def test_a_broken_pattern_among_good_ones_changes_nothing(project: Project) -> None:
    project.write("a.ts", "console.log(1)\n")
    for rewrites in ({"console.log(": "x"}, {**LOG, "console.log(": "x"}):
        for dry_run in (True, False):
            got = refused(project, rewrites=rewrites, dry_run=dry_run)
            assert got["code"] == "invalid_pattern"
    assert project.read("a.ts") == "console.log(1)\n"


@whole("AT-EAST-16", "AT-EAST-17")
def test_a_broken_file_is_left_alone_and_told_and_alone_it_is_an_error(project: Project) -> None:
    broken = "console.log(1)\nfunction ( {{{\n"
    project.write("bad.ts", broken)
    project.write("good.ts", "console.log(2)\n")
    got = apply(project, LOG)
    assert [one["path"] for one in got["parse_errors"]] == ["./bad.ts"]
    assert got["parse_errors"][0]["reason"]
    assert [one["path"] for one in got["file_changes"]] == ["./good.ts"]
    assert (project.read("bad.ts"), project.read("good.ts")) == (broken, "logger.debug(2)\n")
    for dry_run in (True, False):
        alone = refused(project, rewrites=LOG, path="bad.ts", dry_run=dry_run)
        assert alone["code"] == "parse_error"
        assert alone["data"]["detail"]["path"] == "./bad.ts"
    assert project.read("bad.ts") == broken


@whole("AT-EAST-18")
@pytest.mark.parametrize("path", ["../../etc", "..", "/etc", "out", "src/../.."])
def test_nothing_outside_the_project_is_rewritten(project: Project, path: str) -> None:
    (project.root / "out").symlink_to("/etc")
    for dry_run in (True, False):
        got = refused(project, path=path, lang="python", dry_run=dry_run)
        assert got["code"] == "invalid_params"


@whole("AT-EAST-19", "AT-EAST-20", "AT-EAST-21")
def test_a_cage_says_what_is_shown_and_what_is_written(
    project: Project, agent: Callable[..., str]
) -> None:
    names = ("src/a.py", "src/vendor/b.py", "data/c.py")
    for name in names:
        project.write(name, f"old('{name}')\n")
    reader = agent("reader", "ro:src")
    writer = agent("writer", "rw:src", "ro:src/vendor")
    shown = edit(project, RENAME, reader, path="src")
    assert [one["path"] for one in shown["changes"]] == ["./src/a.py", "./src/vendor/b.py"]
    assert refused(project, reader, path="src", dry_run=False)["code"] == "capability_denied"
    assert refused(project, reader, path="data")["code"] == "capability_denied"
    # From above the cage a dry run tells nothing of the files outside it.
    above = edit(project, RENAME, reader)
    assert "c.py" not in str(above["changes"])
    got = refused(project, writer, path="src", dry_run=False)
    assert got["code"] == "capability_denied"
    assert "./src/vendor/b.py" in str(got["data"]["detail"])
    assert "./src/a.py" not in str(got["data"]["detail"])
    for name in names:
        assert project.read(name) == f"old('{name}')\n"
    apply(project, RENAME, writer, path="src", glob="!src/vendor/**")
    apply(project, RENAME, writer, path="src/a.py")
    assert project.read("src/a.py") == "new('src/a.py')\n"


@whole("AT-EAST-22")
def test_when_the_second_file_cannot_be_written_the_first_is_as_it_was(project: Project) -> None:
    for name in ("a/first.py", "b/second.py", "c/third.py"):
        project.write(name, "old(1)\n").chmod(0o640)
    for what, mode in (("b/second.py", 0o444), ("b", 0o555)):
        (project.root / what).chmod(mode)
        got = refused(project, dry_run=False)
        assert got["code"] == "file_write_failed", got
        for name in ("a/first.py", "b/second.py", "c/third.py"):
            assert project.read(name) == "old(1)\n"
        left = [one.name for one in project.root.rglob("*") if one.name.startswith(".kaged-")]
        assert left == []
        (project.root / what).chmod(0o755)
    apply(project, RENAME)


@whole("AT-EAST-22")
def test_files_that_were_written_already_are_restored_when_a_later_one_fails(
    project: Project,
) -> None:
    names = [f"f{number:02}.py" for number in range(60)]
    text = "old(1)\n" + "y = 1\n" * 500
    for _ in range(20):
        for name in names:
            project.write(name, text)
        theirs = project.write("theirs.txt", "theirs = 1\n")
        with ThreadPoolExecutor(1) as pool:
            body = {"rewrites": RENAME, "dry_run": False}
            applying = pool.submit(outcome, project, body)
            # All new files lie beside the old ones; they take their names one after the other.
            while len(unfinished(project)) < len(names) and not applying.done():
                pass
            theirs.replace(project.root / names[-1])
            code = applying.result()
        assert project.read(names[-1]) == "theirs = 1\n"
        if code:
            assert code == "file_changed_since_read"
            assert {project.read(name) for name in names[:-1]} == {text}
            assert unfinished(project) == []
            return
    pytest.fail("never caught at work")


def outcome(project: Project, params: dict[str, Any]) -> str:
    """Rewrite, perhaps in vain; returns the error's code, or nothing."""
    body = {"agent": "primary", "tool": "edit.ast", "params": params}
    got = project.daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
    return "" if got.is_success else str(got.json()["error"]["code"])


def unfinished(project: Project) -> list[str]:
    """Return the new files that do not have their names yet."""
    return [one.name for one in project.root.iterdir() if one.name.startswith(".kaged-tmp-")]


@whole("AT-EAST-23")
def test_each_changed_file_is_on_record_with_its_count(daemon: Daemon, project: Project) -> None:
    project.write("a.py", "old(1)\nold(2)\n")
    project.write("b.py", "old(1)\n")
    project.write("c.py", "other(1)\n")
    edit(project, RENAME)
    apply(project, RENAME)

    def rows() -> list[dict[str, Any]]:
        return [one["data"] for one in daemon.audit("file.edited", project_id=project.id)]

    common = {"caller": "primary", "tool_name": "edit.ast"}
    assert exactly(2, rows) == [
        {"path": "./a.py", "replacements": 2, **common},
        {"path": "./b.py", "replacements": 1, **common},
    ]


@whole("AT-EAST-24", "AT-AMB-38")
def test_no_reading_is_needed_and_what_was_rewritten_counts_as_read(
    project: Project, agent: Callable[..., str]
) -> None:
    other = agent("other", "rw:.")
    for name in ("a.py", "b.py"):
        project.write(name, "old(1)\n")
    project.call("file.read", path="a.py")
    project.call("file.read", other, path="b.py")
    apply(project, RENAME)  # b.py was never read by this agent
    for name in ("a.py", "b.py"):
        project.call("edit.text", path=name, old_string="new", new_string="newer")
    # For another agent the file has changed.
    got = project.fail("file.write", other, path="b.py", content="x")
    assert got["code"] == "file_changed_since_read"


@whole("AT-EAST-25", "AT-EAST-26")
def test_changes_are_in_order_and_what_stays_the_same_is_none(project: Project) -> None:
    project.write("b.py", "old(2)\nold(1)\n")
    project.write("a/z.py", "x = old(3), old(4)\n")
    project.write("c.py", "other(1)\n")
    project.write("notes.md", "old(1)\n")
    got = edit(project, RENAME, lang="python")
    places = [(one["path"], one["byte_start"]) for one in got["changes"]]
    assert places == sorted(places)
    assert len(places) == 4
    assert (got["files_searched"], got["files_touched"]) == (3, 2)
    same = apply(project, {"old($A)": "old($A)"}, lang="python")
    assert (same["changes"], same["total_replacements"], same["files_touched"]) == ([], 0, 0)
    some = edit(project, {"old($A)": "old(1)"}, lang="python")
    assert "old(1)" not in [one["before"] for one in some["changes"]]
