from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from fakes.tool_lab import ToolLab
from kaged.base import JsonValue
from kaged.toolbox.ast import ast_tools
from kaged.workspace import FileChange
from requirements import requirement

RULE: dict[str, JsonValue] = {"f($X)": "g($X)"}
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
LOG: dict[str, JsonValue] = {"console.log($MSG)": "logger.debug($MSG)"}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[SearchLab]:
    root = tmp_path / "project"
    root.mkdir()
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


async def edit(lab: SearchLab, rewrites: Any, *fs: str, **more: Any) -> Any:
    result = await lab.call("edit.ast", *fs, rewrites=rewrites, **more)
    assert set(result) == KEYS
    json.dumps(result, allow_nan=False)
    return result


async def apply(lab: SearchLab, rewrites: Any, **more: Any) -> Any:
    return await edit(lab, rewrites, dry_run=False, **more)


@requirement("AT-EAST-01")
async def test_parameters_are_checked(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.ts": "console.log(1)\n"})
    parameters: Any = ast_tools(lab.ast, lab.engine)[1].definition.parameters
    properties = parameters["properties"]
    assert parameters["required"] == ["rewrites"]
    assert set(properties) == {
        "rewrites",
        "lang",
        "path",
        "glob",
        "dry_run",
        "max_replacements",
        "max_files",
    }
    assert properties["dry_run"]["default"] is True
    bad: list[dict[str, Any]] = [
        {"rewrites": {}},
        {"rewrites": {"a": 5}},
        {"rewrites": ["a"]},
        {},
        {"rewrites": LOG, "max_files": 0},
        {"rewrites": LOG, "max_replacements": 0},
        {"rewrites": LOG, "max_files": True},
        {"rewrites": LOG, "lang": "klingon"},
        {"rewrites": LOG, "dry_run": "no"},
    ]
    for params in bad:
        error = await lab.tool_lab().refusal_with("edit.ast", params)
        assert error.code == "invalid_params", params


@requirement("AT-EAST-02", "AT-EAST-03", "AT-EAST-05", "AT-EAST-06")
async def test_a_dry_run_reports_and_an_applied_one_writes(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/main.ts": 'let a;\n  console.log("x");\n'})
    file = lab.root / "src/main.ts"
    before, mtime = file.read_bytes(), file.stat().st_mtime_ns
    result = await edit(lab, LOG)
    assert result == {
        "changes": [
            {
                "path": "./src/main.ts",
                "before": 'console.log("x")',
                "after": 'logger.debug("x")',
                "byte_start": 9,
                "byte_end": 25,
                "start_line": 2,
                "start_column": 3,
                "end_line": 2,
                "end_column": 19,
            }
        ],
        "file_changes": [{"path": "./src/main.ts", "count": 1}],
        "total_replacements": 1,
        "files_touched": 1,
        "files_searched": 1,
        "applied": False,
        "limit_reached": False,
        "parse_errors": [],
    }
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, mtime)
    applied = await apply(lab, LOG)
    assert applied == {**result, "applied": True}
    assert file.read_text(encoding="utf-8") == 'let a;\n  logger.debug("x");\n'


@requirement("AT-EAST-04")
async def test_offsets_are_bytes_and_columns_count_from_one(lab: SearchLab) -> None:
    data = b"\xef\xbb\xbfs = '\xf0\x9f\x98\x80'; f(1)\nt = '\xc3\xa9'; f('\xc3\xbc')\n"
    write_tree(lab.root, {"a.py": data})
    result = await edit(lab, {"f($X)": "g($X)"})
    for change in result["changes"]:
        assert data[change["byte_start"] : change["byte_end"]].decode() == change["before"]
    assert [one["start_column"] for one in result["changes"]] == [10, 10]
    await apply(lab, {"f($X)": "g($X)"})
    assert (lab.root / "a.py").read_bytes() == data.replace(b"f(", b"g(")


@requirement("AT-EAST-07")
async def test_overlapping_edits_are_never_both_applied(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "foo(foo(1))\nfoo(2)\n"})
    result = await apply(lab, {"foo($A)": "bar($A)"})
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "bar(foo(1))\nbar(2)\n"
    assert result["total_replacements"] == 2
    write_tree(lab.root, {"a.py": "foo(1)\n"})
    result = await apply(lab, {"foo($A)": "first($A)", "foo(1)": "second()"})
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "first(1)\n"
    assert result["total_replacements"] == 1


@requirement("AT-EAST-08")
async def test_templates_take_captured_text(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1, 2)\nh(a,  b)\nk()\ndel_me(1)\n"})
    await apply(
        lab,
        {
            "f($A, $B)": "f($B, $A)",
            "h($$$X)": "i([$$$X])",
            "k($$$X)": "m($$$X)",
            "del_me($Y)": "",
        },
    )
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "f(2, 1)\ni([a,  b])\nm()\n\n"


@requirement("AT-EAST-09")
async def test_a_template_cannot_use_what_its_pattern_does_not_bind(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "a(1)\n"})
    for template in ("b($Y)", "b($$$Y)", "b($_)"):
        error = await lab.refusal("edit.ast", rewrites={"a($X)": template}, lang="python")
        assert error.code == "invalid_params"


@requirement("AT-EAST-10")
async def test_all_rewrites_see_the_original_text(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "a(1)\nb(2)\n"})
    await apply(lab, {"a($X)": "b($X)", "b($X)": "c($X)"})
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "b(1)\nc(2)\n"


@requirement("AT-EAST-11")
async def test_path_and_glob_choose_the_files(lab: SearchLab) -> None:
    names = ("a.ts", "d/b.ts", "d/b.test.ts", "build/c.ts")
    write_tree(lab.root, {**dict.fromkeys(names, "console.log(1)\n"), ".gitignore": "build/\n"})

    async def files(**more: Any) -> list[str]:
        result = await edit(lab, LOG, **more)
        return [one["path"] for one in result["file_changes"]]

    assert await files(path="./a.ts") == ["./a.ts"]
    assert await files() == ["./a.ts", "./d/b.test.ts", "./d/b.ts"]
    assert await files(path="./d") == ["./d/b.test.ts", "./d/b.ts"]
    assert await files(glob="*.test.ts") == ["./d/b.test.ts"]
    assert await files(glob="!*.test.ts") == ["./a.ts", "./d/b.ts"]
    await apply(lab, LOG, path="./a.ts")
    assert "logger" in (lab.root / "a.ts").read_text(encoding="utf-8")
    assert "logger" not in (lab.root / "d/b.ts").read_text(encoding="utf-8")
    await apply(lab, LOG)
    assert "logger" in (lab.root / "d/b.ts").read_text(encoding="utf-8")
    assert "logger" not in (lab.root / "build/c.ts").read_text(encoding="utf-8")


@requirement("AT-EAST-12", "AT-EAST-13")
async def test_limits_cut_and_say_so(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\nf(2)\n", "b.py": "f(3)\n"})
    rules = {"f($X)": "g($X)"}
    for limits, changed, files, reached in (
        ({"max_replacements": 1}, 1, 1, True),
        ({"max_replacements": 2}, 2, 1, True),
        ({"max_replacements": 3}, 3, 2, False),
        ({"max_files": 1}, 2, 1, True),
        ({"max_files": 2}, 3, 2, False),
        ({"max_files": 1, "max_replacements": 1}, 1, 1, True),
    ):
        result = await edit(lab, rules, **limits)
        got = (result["total_replacements"], result["files_touched"], result["limit_reached"])
        assert got == (changed, files, reached), limits
    await apply(lab, rules, max_replacements=1)
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "g(1)\nf(2)\n"
    await apply(lab, rules, max_files=1)
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "g(1)\ng(2)\n"
    assert (lab.root / "b.py").read_text(encoding="utf-8") == "f(3)\n"


@requirement("AT-EAST-14", "AT-AMB-39")
async def test_the_language_is_told_from_the_files_or_asked_for(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.ts": "console.log(1)\n", "README": "x\n", "README.md": "x\n"})
    assert (await edit(lab, LOG))["total_replacements"] == 1
    write_tree(lab.root, {"b.js": "console.log(1)\n", "notes.xyz": "console.log(1)\n"})
    mixed = await lab.refusal("edit.ast", rewrites=LOG)
    assert mixed.code == "invalid_params"
    assert "typescript" in json.dumps(mixed.as_json())
    assert "javascript" in json.dumps(mixed.as_json())
    lone = await lab.refusal("edit.ast", rewrites=LOG, path="./notes.xyz")
    assert lone.code == "invalid_params"
    assert "xyz" in json.dumps(lone.as_json())
    write_tree(lab.root, {"none/x.txt": "x\n"})
    empty = await lab.refusal("edit.ast", rewrites=LOG, path="./none")
    assert empty.code == "invalid_params"
    assert (await edit(lab, LOG, lang="javascript"))["file_changes"] == [
        {"path": "./b.js", "count": 1}
    ]
    named = await edit(lab, LOG, lang="javascript", path="./notes.xyz")
    assert named["total_replacements"] == 1


async def test_headers_go_with_the_code_beside_them(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.h": "int f();\n", "a.cpp": "int x = g(1);\n"})
    result = await edit(lab, {"int x = $V;": "int y = $V;"})
    assert (result["files_searched"], result["files_touched"]) == (2, 1)


@requirement("AT-EAST-15", "AT-EAST-27")
async def test_a_broken_pattern_changes_nothing_and_is_the_same_error_as_in_a_search(
    lab: SearchLab,
) -> None:
    write_tree(lab.root, {"a.ts": "console.log(1)\n"})
    error = await lab.refusal("edit.ast", rewrites={**LOG, "console.log(": "x"}, dry_run=False)
    assert error.code == "invalid_pattern"
    assert (lab.root / "a.ts").read_text(encoding="utf-8") == "console.log(1)\n"
    search = await lab.refusal("search.ast", pattern="console.log(", lang="typescript")
    assert (search.code, str(search), search.detail) == (error.code, str(error), error.detail)


@requirement("AT-EAST-16")
@pytest.mark.parametrize(
    "broken", ["const = ;\n", "function f( {\n", "console.log(1\n", "if (x) { a()\n"]
)
async def test_a_file_with_syntax_errors_is_left_alone_and_reported(
    lab: SearchLab, broken: str
) -> None:
    text = "console.log(2)\n" + broken
    write_tree(lab.root, {"bad.ts": text, "good.ts": "console.log(1)\n"})
    result = await apply(lab, LOG)
    (entry,) = result["parse_errors"]
    assert entry["path"] == "./bad.ts"
    assert entry["reason"]
    assert (lab.root / "bad.ts").read_text(encoding="utf-8") == text
    assert (lab.root / "good.ts").read_text(encoding="utf-8") == "logger.debug(1)\n"
    assert result["files_searched"] == 2


@requirement("AT-EAST-17")
@pytest.mark.parametrize("data", [b"const = ;\n", b"console.log('\xff')\n", b"a\0b"])
async def test_a_single_file_that_cannot_be_parsed_is_an_error(lab: SearchLab, data: bytes) -> None:
    write_tree(lab.root, {"bad.ts": data})
    for path in ("./bad.ts", "./"):
        error = await lab.refusal("edit.ast", rewrites=LOG, path=path, dry_run=False)
        assert (error.code, error.number) == ("parse_error", -32000)
        assert "./bad.ts" in json.dumps(error.detail)
    assert (lab.root / "bad.ts").read_bytes() == data


@requirement("AT-EAST-18")
@pytest.mark.parametrize("path", ["../../etc", "/etc", "..", "a/../../b"])
async def test_a_path_out_of_the_project_is_refused(lab: SearchLab, path: str) -> None:
    error = await lab.refusal("edit.ast", rewrites=LOG, path=path)
    assert error.code == "invalid_params"


@requirement("AT-EAST-19")
async def test_a_read_only_cage_allows_the_dry_run_alone(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/a.ts": "console.log(1)\n"})
    dry = await edit(lab, LOG, "ro ./src", path="./src")
    assert dry["total_replacements"] == 1
    error = await lab.refusal("edit.ast", "ro ./src", rewrites=LOG, path="./src", dry_run=False)
    assert (error.code, error.detail) == ("capability_denied", "rw:fs:./src")
    done = await edit(lab, LOG, "rw ./src", path="./src", dry_run=False)
    assert done["applied"] is True


@requirement("AT-EAST-20")
async def test_one_file_that_may_not_be_written_keeps_all_as_they_are(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/a.ts": "console.log(1)\n", "src/vendor/v.ts": "console.log(2)\n"})
    tool_lab = lab.tool_lab("rw ./src", "ro ./src/vendor")
    error = await tool_lab.refusal("edit.ast", rewrites=LOG, path="./src", dry_run=False)
    assert (error.code, error.number) == ("capability_denied", -32001)
    assert "./src/vendor/v.ts" in json.dumps(error.detail)
    assert (lab.root / "src/a.ts").read_text(encoding="utf-8") == "console.log(1)\n"
    assert "tool.denied" in tool_lab.audit.names()
    assert "file.edited" not in tool_lab.audit.names()
    result = await tool_lab.call(
        "edit.ast", rewrites=LOG, path="./src", glob="!vendor/**", dry_run=True
    )
    assert result["files_touched"] == 2


@requirement("AT-EAST-21")
async def test_a_dry_run_shows_nothing_of_files_outside_the_cage(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/a.ts": "console.log(1)\n", "data/b.ts": "console.log('canary')\n"})
    result = await edit(lab, LOG, "ro ./src")
    assert [one["path"] for one in result["changes"]] == ["./src/a.ts"]
    assert "canary" not in json.dumps(result)
    assert result["files_searched"] == 1


@requirement("AT-EAST-22")
async def test_a_write_that_fails_takes_the_others_back(lab: SearchLab) -> None:
    names = ("a.ts", "b.ts", "c.ts")
    write_tree(lab.root, dict.fromkeys(names, "console.log(1)\n"))
    (lab.root / "b.ts").chmod(0o444)
    tool_lab = lab.tool_lab()
    error = await tool_lab.refusal("edit.ast", rewrites=LOG, dry_run=False)
    assert error.code == "file_write_failed"
    for name in names:
        assert (lab.root / name).read_text(encoding="utf-8") == "console.log(1)\n"
    assert {one.name for one in lab.root.iterdir()} == set(names)
    assert "file.edited" not in tool_lab.audit.names()


async def test_every_changed_file_is_audited_and_announced(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.ts": "console.log(1)\nconsole.log(2)\n", "b.ts": "console.log(3)\n"})
    tool_lab = lab.tool_lab()
    heard: list[FileChange] = []
    tool_lab.workspace.changes.subscribe(heard.append)
    await tool_lab.call("edit.ast", rewrites=LOG)
    assert "file.edited" not in tool_lab.audit.names()
    assert heard == []
    await tool_lab.call("edit.ast", rewrites=LOG, dry_run=False)
    edited = tool_lab.audit.of("file.edited")
    assert [(one["path"], one["replacements"]) for one in edited] == [("./a.ts", 2), ("./b.ts", 1)]
    assert all(one["caller"] == "primary" and one["project_id"] == "prj_1" for one in edited)
    assert [(one.kind.value, one.path.relative) for one in heard] == [
        ("changed", "./a.ts"),
        ("changed", "./b.ts"),
    ]


@requirement("AT-EAST-24", "AT-AMB-38")
async def test_the_read_record_is_refreshed_and_locks_are_kept(lab: SearchLab) -> None:
    from kaged.toolbox.files import file_tools

    write_tree(lab.root, {"a.ts": "console.log(1)\n"})
    tool_lab = ToolLab(lab.root, [*file_tools(), *ast_tools(lab.ast, lab.engine)])
    await tool_lab.call("file.read", path="./a.ts")
    await tool_lab.call("edit.ast", rewrites=LOG, dry_run=False)
    await tool_lab.call("edit.text", path="./a.ts", old_string="debug", new_string="info")
    assert (lab.root / "a.ts").read_text(encoding="utf-8") == "logger.info(1)\n"
    write_tree(lab.root, {"b.ts": "console.log(1)\n"})  # never read, and rewritten all the same
    async with tool_lab.workspace.locks.reading(str(lab.root / "b.ts")):
        tool_lab.workspace.locks._wait_limit_s = 0.05
        busy = await tool_lab.refusal("edit.ast", rewrites=LOG, path="./b.ts", dry_run=False)
    assert busy.code == "file_busy"
    await tool_lab.call("edit.ast", rewrites=LOG, path="./b.ts", dry_run=False)
    assert (lab.root / "b.ts").read_text(encoding="utf-8") == "logger.debug(1)\n"


@requirement("AT-EAST-25")
async def test_changes_are_ordered_and_identities_left_out(lab: SearchLab) -> None:
    write_tree(lab.root, {f"{name}.py": "a(1); b(2)\na(3)\n" for name in "zyxabc"})
    same = await edit(lab, {"a($X)": "a($X)"})
    assert same["changes"] == []
    assert same["files_touched"] == 0
    result = await edit(lab, {"b($X)": "c($X)", "a($X)": "d($X)"})
    order = [(one["path"], one["byte_start"]) for one in result["changes"]]
    assert order == sorted(order)
    assert len(order) == 18


@requirement("AT-EAST-26")
async def test_searched_and_touched_files_are_counted(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n", "b.py": "x\n", "c.py": "y\n"})
    result = await edit(lab, {"f($X)": "g($X)"})
    assert (result["files_searched"], result["files_touched"]) == (3, 1)


async def test_line_endings_and_modes_stay(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": b"\xef\xbb\xbff(1)\r\nx\r\n"})
    (lab.root / "a.py").chmod(0o755)
    await apply(lab, {"f($X)": "g(\n    $X\n)"})
    assert (lab.root / "a.py").read_bytes() == b"\xef\xbb\xbfg(\r\n    1\r\n)\r\nx\r\n"
    assert (lab.root / "a.py").stat().st_mode & 0o777 == 0o755


async def test_a_file_changed_between_look_and_write_stops_everything(
    lab: SearchLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n", "b.py": "f(2)\n"})
    tool_lab = lab.tool_lab()
    real = tool_lab.workspace.locks.mutating

    def meddling(paths: Any) -> Any:
        (lab.root / "b.py").write_text("f(3)\n", encoding="utf-8")
        return real(paths)

    monkeypatch.setattr(tool_lab.workspace.locks, "mutating", meddling)
    error = await tool_lab.refusal("edit.ast", rewrites=RULE, dry_run=False)
    assert error.code == "file_changed_since_read"
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "f(1)\n"
    assert (lab.root / "b.py").read_text(encoding="utf-8") == "f(3)\n"


async def test_when_the_time_is_up_nothing_is_written(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n", "b.py": "f(2)\n"})
    lab.ast_settings = replace(lab.ast_settings, time_s=0.0)
    error = await lab.refusal("edit.ast", rewrites=RULE, lang="python", dry_run=False)
    assert error.code == "ast_time_up"
    assert (lab.root / "a.py").read_text(encoding="utf-8") == "f(1)\n"
    dry = await lab.call("edit.ast", rewrites=RULE, lang="python")
    assert (dry["limit_reached"], dry["timed_out"]) == (True, True)


async def test_a_thousand_files_are_rewritten_all_at_once(lab: SearchLab) -> None:
    write_tree(lab.root, {f"d{n % 10}/f{n}.py": f"f({n})\n" for n in range(1000)})
    result = await apply(lab, {"f($X)": "g($X)"})
    assert result["files_touched"] == 1000
    for number in (0, 500, 999):
        text = (lab.root / f"d{number % 10}/f{number}.py").read_text(encoding="utf-8")
        assert text == f"g({number})\n"
