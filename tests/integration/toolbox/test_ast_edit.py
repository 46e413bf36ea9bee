from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from fakes.tool_lab import ToolLab
from kaged.base import JsonValue, SystemClock
from kaged.toolbox.ast import ast_tools
from kaged.workspace.locks import FileLocks
from kaged.workspace.workspace import Workspace
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
async def test_files_with_syntax_errors_are_left_alone_and_reported(lab: SearchLab) -> None:
    broken = ("const = ;\n", "function f( {\n", "console.log(1\n", "if (x) { a()\n")
    texts = {f"bad{number}.ts": f"console.log(2)\n{one}" for number, one in enumerate(broken)}
    write_tree(lab.root, {**texts, "good.ts": "console.log(1)\n"})
    result = await apply(lab, LOG)
    assert [one["path"] for one in result["parse_errors"]] == [f"./{name}" for name in texts]
    assert all(one["reason"] for one in result["parse_errors"])
    assert {name: (lab.root / name).read_text(encoding="utf-8") for name in texts} == texts
    assert (lab.root / "good.ts").read_text(encoding="utf-8") == "logger.debug(1)\n"
    assert result["files_searched"] == 5


@requirement("AT-EAST-17")
async def test_a_single_file_that_cannot_be_parsed_is_an_error(lab: SearchLab) -> None:
    for data in (b"const = ;\n", b"console.log('\xff')\n", b"a\0b"):
        write_tree(lab.root, {"bad.ts": data})
        for path in ("./bad.ts", "./"):
            error = await lab.refusal("edit.ast", rewrites=LOG, path=path, dry_run=False)
            assert (error.code, error.number) == ("parse_error", -32000), data
            assert "./bad.ts" in json.dumps(error.detail)
        assert (lab.root / "bad.ts").read_bytes() == data


@requirement("AT-EAST-24", "AT-AMB-38")
async def test_the_read_record_is_refreshed_and_locks_are_kept(lab: SearchLab) -> None:
    from kaged.toolbox.files import file_tools

    write_tree(lab.root, {"a.ts": "console.log(1)\n"})
    impatient = Workspace(str(lab.root), locks=FileLocks(SystemClock(), 0.05))
    tools = [*file_tools(), *ast_tools(lab.ast, lab.engine)]
    tool_lab = ToolLab(lab.root, tools, workspace=impatient)
    await tool_lab.call("file.read", path="./a.ts")
    await tool_lab.call("edit.ast", rewrites=LOG, dry_run=False)
    await tool_lab.call("edit.text", path="./a.ts", old_string="debug", new_string="info")
    assert (lab.root / "a.ts").read_text(encoding="utf-8") == "logger.info(1)\n"
    write_tree(lab.root, {"b.ts": "console.log(1)\n"})  # never read, and rewritten all the same
    async with tool_lab.workspace.locks.reading(str(lab.root / "b.ts")):
        busy = await tool_lab.refusal("edit.ast", rewrites=LOG, path="./b.ts", dry_run=False)
    assert busy.code == "file_busy"
    await tool_lab.call("edit.ast", rewrites=LOG, path="./b.ts", dry_run=False)
    assert (lab.root / "b.ts").read_text(encoding="utf-8") == "logger.debug(1)\n"
    pair = {"c.ts": "console.log(2)\n", "d.ts": "console.log(2)\n"}
    write_tree(lab.root, pair)
    for held in pair:  # the first and the second: neither is written while one is in use
        async with tool_lab.workspace.locks.reading(str(lab.root / held)):
            busy = await tool_lab.refusal("edit.ast", rewrites=LOG, dry_run=False)
        assert busy.code == "file_busy", held
        assert {name: (lab.root / name).read_text(encoding="utf-8") for name in pair} == pair


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
