from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from kaged.toolbox.search import (
    GrepOutcome,
    GrepQuery,
    ListOutcome,
    OutsideHits,
    Scope,
    SearchSettings,
    search_tools,
)
from kaged.toolbox.search.records import RawCount, RawHit, Sieve
from requirements import requirement


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
async def lab(root: Path, tmp_path: Path) -> AsyncGenerator[SearchLab]:
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


def files_of(result: Any) -> list[str]:
    return [one["file"] for one in result["matches"]]


@requirement("AT-GREP-05")
async def test_include_restricts_the_files_in_every_mode(lab: SearchLab) -> None:
    names = ("a.ts", "c.tsx", "d.js", "deep/er/b.ts", "include:py")
    write_tree(lab.root, dict.fromkeys(names, "hit\n"))
    for include, expected in {
        "*.{ts,tsx}": ["./a.ts", "./c.tsx", "./deep/er/b.ts"],
        "deep/*.ts": [],
        "[ab].ts": ["./a.ts", "./deep/er/b.ts"],
        "!*.ts": ["./c.tsx", "./d.js", "./include:py"],
        "!deep/**": ["./a.ts", "./c.tsx", "./d.js", "./include:py"],
        "include:py": ["./include:py"],
    }.items():
        for mode in ("content", "count", "files_with_matches"):
            result = await lab.call("search.grep", pattern="hit", include=include, output_mode=mode)
            assert files_of(result) == expected, include


async def test_include_counts_from_the_path_or_from_the_root(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/a/x.ts": "hit\n", "src/b/y.ts": "hit\n"})
    for include in ("a/*.ts", "src/a/*.ts"):
        result = await lab.call("search.grep", pattern="hit", include=include, path="./src")
        assert files_of(result) == ["./src/a/x.ts"]


async def test_an_include_that_cannot_be_read_is_an_invalid_pattern(lab: SearchLab) -> None:
    for include in ("*.{ts", "a[.ts", "{a,b}" * 9):
        error = await lab.refusal("search.grep", pattern="x", include=include)
        assert error.code == "invalid_pattern", include


async def test_a_hot_file_does_not_hide_the_others(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": "hit\n" * 100, "b.txt": "hit\n", "c.txt": "hit\n"})
    result = await lab.call("search.grep", pattern="hit", output_mode="content", head_limit=30)
    assert len(result["matches"]) == 30
    assert {"./a.txt", "./b.txt", "./c.txt"} == set(files_of(result))
    assert result["total_matches"] == 102
    order = [(one["file"], one["line"]) for one in result["matches"]]
    assert order == sorted(order)


def program(folder: Path, text: str) -> str:
    path = folder / "engine.sh"
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@requirement("AT-GREP-08", "AT-FAIL-09")
async def test_a_search_that_takes_too_long_gives_what_it_found(root: Path, tmp_path: Path) -> None:
    write_tree(root, {"a.txt": "hit\n"})
    assert SearchSettings().time_s == 60
    slow = program(tmp_path, "printf './a.txt\\0001:1:hit\\n'\nexec sleep 1000\n")
    settings = SearchSettings(time_s=0.5)
    async with opened_search_lab(root, tmp_path / "cache", settings=settings, program=slow) as lab:
        result = await lab.call("search.grep", pattern="hit", output_mode="content")
        assert not lab.spawner.running
    assert result["matches"] == [{"file": "./a.txt", "line": 1, "content": "hit"}]
    assert result["truncated"] is True
    assert result["timed_out"] is True


@requirement("AT-GREP-09")
async def test_names_and_wide_lines_are_capped_at_a_quarter_megabyte_too(lab: SearchLab) -> None:
    folder = f"names/{'d' * 200}"
    write_tree(lab.root, {f"{folder}/{'n' * 240}{number}": "hit\n" for number in range(650)})
    write_tree(lab.root, {f"lines/f{number}": f"hit {'é' * 300}\n" * 400 for number in range(8)})
    for mode in ("content", "files_with_matches", "count"):
        path = "lines" if mode == "content" else "names"
        result = await lab.call("search.grep", pattern="hit", path=path, output_mode=mode)
        size = len(json.dumps(result["matches"]))
        assert 200_000 < size <= 262_144, mode
        assert result["truncated"] is True
        assert result["total_matches"] > len(result["matches"])


async def test_a_search_for_lines_stops_when_no_more_can_be_shown(
    root: Path, tmp_path: Path
) -> None:
    write_tree(root, {f"f{number}": "hit\n" * 50 for number in range(10)})
    settings = SearchSettings(max_hits=100)
    async with opened_search_lab(root, tmp_path / "cache", settings=settings) as lab:
        result = await lab.call("search.grep", pattern="hit", output_mode="content")
        assert result["total_matches"] == 100
        assert result["truncated"] is True
        assert "100" in result["hint"]
    # As many hits as the cap are no cut.
    async with opened_search_lab(
        root, tmp_path / "cache", settings=SearchSettings(max_hits=500)
    ) as lab:
        result = await lab.call("search.grep", pattern="hit", output_mode="content")
        assert result["total_matches"] == 500
        assert result["truncated"] is False


@requirement("AT-GREP-10")
async def test_binary_files_are_skipped(lab: SearchLab) -> None:
    late = b"hit early\n" + b"x\n" * 60_000 + b"\0\nhit late\n"
    write_tree(
        lab.root,
        {
            "bin": b"\0\1\2hit\n",
            "elf": b"\x7fELF\0\0hit\n",
            "late": late,
            "next": "hit next\n",
            "text": "hit\n",
        },
    )
    for mode in ("content", "count", "files_with_matches"):
        result = await lab.call("search.grep", pattern="hit", output_mode=mode)
        assert {"./bin", "./elf"}.isdisjoint(files_of(result))
        assert {"./next", "./text"} <= set(files_of(result))
    content = await lab.call("search.grep", pattern="hit", output_mode="content")
    assert files_of(content) == ["./next", "./text"]
    assert (await lab.call("search.grep", pattern="hit", path="./bin"))["matches"] == []


@requirement("AT-GREP-11")
async def test_ignored_files_are_left_out_in_a_plain_directory(lab: SearchLab) -> None:
    write_tree(
        lab.root,
        {
            ".gitignore": "build/\n*.log\n!keep.log\n",
            "build/x.js": "hit\n",
            "a.log": "hit\n",
            "keep.log": "hit\n",
            "sub/.gitignore": "secret.txt\n/only-here\n",
            "sub/secret.txt": "hit\n",
            "sub/only-here": "hit\n",
            "sub/deep/only-here": "hit\n",
            "secret.txt": "hit\n",
        },
    )
    assert not (lab.root / ".git").exists()
    expected = ["./keep.log", "./secret.txt", "./sub/deep/only-here"]
    assert files_of(await lab.call("search.grep", pattern="hit")) == expected
    below = await lab.call("search.grep", pattern="hit", path="./sub")
    assert files_of(below) == ["./sub/deep/only-here"]
    everything = await lab.call("search.grep", pattern="hit", gitignore=False)
    assert len(everything["matches"]) == 7
    named = await lab.call("search.grep", pattern="hit", path="./a.log")
    assert files_of(named) == ["./a.log"]


async def test_a_catastrophic_expression_is_over_in_no_time(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": "a" * 50_000 + "!\n"})
    result = await lab.call("search.grep", pattern="(a+)+$")
    assert result["matches"] == []
    fancy = await lab.call("search.grep", pattern="(?=a)(a+)+$", output_mode="count")
    assert fancy["total_matches"] == 0


async def test_a_glob_is_never_an_option(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": "hit\n"})
    for include in ("--files", "-v", "--pre=/bin/false"):
        assert (await lab.call("search.grep", pattern="hit", include=include))["matches"] == []


@requirement("AT-GREP-14")
async def test_a_bad_expression_is_an_invalid_pattern(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": "x\n"})
    for pattern in ("(", "[z-a]", "a{2,1}", "\\p{Nope}", "(?<=a", "*", "\0", "\\"):
        error = await lab.refusal("search.grep", pattern=pattern)
        assert (error.code, error.number) == ("invalid_pattern", -32000), pattern


@requirement("AT-GREP-15")
async def test_path_may_be_a_file_and_must_exist(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/main.ts": "hit\n", "src/other.ts": "hit\n"})
    result = await lab.call("search.grep", pattern="hit", path="./src/main.ts")
    assert files_of(result) == ["./src/main.ts"]
    assert (await lab.refusal("search.grep", pattern="hit", path="./nope")).code == "file_not_found"
    assert (await lab.refusal("search.grep", pattern="hit", path="../x")).code == "invalid_params"
    os.mkfifo(lab.root / "pipe")
    assert (await lab.refusal("search.grep", pattern="hit", path="./pipe")).code == (
        "invalid_params"
    )
    nothing = await lab.call("search.grep", pattern="hit", path="./src/main.ts", include="*.py")
    assert nothing["matches"] == []


@requirement("AT-GREP-15")
async def test_a_file_that_is_named_is_searched_although_a_walk_leaves_it_out(
    lab: SearchLab,
) -> None:
    write_tree(lab.root, {".gitignore": "out.txt\n", "out.txt": "hit\nhit\n", "src/a.ts": "hit\n"})
    assert files_of(await lab.call("search.grep", pattern="hit")) == ["./src/a.ts"]
    assert files_of(await lab.call("search.grep", pattern="hit", path="out.txt")) == ["./out.txt"]
    count = await lab.call("search.grep", pattern="hit", path="out.txt", output_mode="count")
    assert count["matches"] == [{"file": "./out.txt", "count": 2}]
    # A link is the file that it leads to, and nothing when it leads nowhere.
    (lab.root / "link.ts").symlink_to("src/a.ts")
    (lab.root / "gone.ts").symlink_to("src/gone.ts")
    assert files_of(await lab.call("search.grep", pattern="hit", path="link.ts")) == ["./src/a.ts"]
    for path in ("gone.ts", "src/a.ts/x", "nope/x"):
        assert (await lab.refusal("search.grep", pattern="hit", path=path)).code == "file_not_found"


@requirement("AT-GREP-17")
async def test_long_lines_are_cut_around_the_match(lab: SearchLab) -> None:
    write_tree(
        lab.root,
        {
            "front.js": "hit" + "x" * 5_000 + "\n",
            "middle.js": "é" * 4_000 + "hit" + "y" * 9_000 + "\n",
            "huge.js": "z" * 3_000_000 + "hit" + "w" * 3_000_000 + "\nhit\n",
            "whole.js": "hit" + "v" * 1_997 + "\n",
        },
    )
    result = await lab.call("search.grep", pattern="hit", output_mode="content")
    texts = {one["file"]: one["content"] for one in result["matches"] if one["line"] == 1}
    assert texts["./front.js"] == "hit" + "x" * 1_997 + "[truncated]"
    assert texts["./whole.js"] == "hit" + "v" * 1_997
    for name in ("./middle.js", "./huge.js"):
        assert "hit" in texts[name]
        assert texts[name].startswith("…")
        assert texts[name].endswith("[truncated]")
        assert len(texts[name]) <= 2_000 + len("…[truncated]")
    assert {"file": "./huge.js", "line": 2, "content": "hit"} in result["matches"]


async def test_the_operator_can_have_outside_hits_left_out(lab: SearchLab) -> None:
    write_tree(lab.root, {"src/a.py": "f(1)\n", "data/b.py": "f(2)\n", "data/c.py": "f(3)\n"})
    lab.settings = replace(lab.settings, outside=OutsideHits.OMIT)
    lab.ast_settings = replace(lab.ast_settings, omit_outside=True)
    for mode in ("content", "count", "files_with_matches"):
        result = await lab.call("search.grep", "ro ./src", pattern="f", output_mode=mode)
        assert files_of(result) == ["./src/a.py"]
        assert result["total_matches"] == 1
    found = await lab.call("search.ast", "ro ./src", pattern="f($X)", lang="python")
    assert [one["file"] for one in found["matches"]] == ["./src/a.py"]
    assert found["count"] == 1
    listed = await lab.call("search.glob", "ro ./src", pattern="*.py")
    assert listed == {"files": ["./src/a.py"], "count": 1, "truncated": False, "total": 1}


async def test_expressions_beyond_the_fast_engine_work(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "import os\nimport sys\nxx yy\r\n", "b.py": "tab\tend\n"})

    async def count(pattern: str) -> int:
        result = await lab.call("search.grep", pattern=pattern, output_mode="content")
        return int(result["total_matches"])

    assert await count("import (?=sys)") == 1
    assert await count(r"(x)\1") == 1
    assert await count(r"import os\nimport sys") == 2
    assert await count("yy$") == 1
    assert await count("yy\\r$") == 1
    assert await count(r"\tend$") == 1
    assert await count("") == 4


async def test_odd_names_and_encodings_are_found_and_can_be_sent(lab: SearchLab) -> None:
    write_tree(
        lab.root,
        {
            "new\nline.txt": "hit a\n",
            "-dash.txt": "hit b\n",
            "sp ace:12:3.txt": "hit c\n",
            "utf16.txt": "hit é\n".encode("utf-16"),
            "latin.txt": "hit \xe9\n".encode("latin-1"),
            "bom.txt": b"\xef\xbb\xbfhit d\n",
            "noend.txt": "hit e",
        },
    )
    Path(os.fsdecode(os.fsencode(lab.root) + b"/\xff\xfe.txt")).write_bytes(b"hit f\n")
    for fs in ((), ("ro ./",)):
        result = await lab.call("search.grep", *fs, pattern="hit", output_mode="content")
        text = json.dumps(result, allow_nan=False, ensure_ascii=False).encode()
        assert b"\\\\xff\\\\xfe.txt" in text
        found = {one["file"]: one["content"] for one in result["matches"]}
        assert found["./new\nline.txt"] == "hit a"
        assert found["./sp ace:12:3.txt"] == "hit c"
        assert found["./utf16.txt"] == "hit é"
        assert found["./latin.txt"] == "hit \ufffd"
        assert found["./bom.txt"] == "hit d"
        assert found["./noend.txt"] == "hit e"
        assert len(found) == 8


async def test_hits_far_into_a_file_and_huge_sparse_files_are_no_trouble(lab: SearchLab) -> None:
    write_tree(lab.root, {"big.txt": b"x" * 79 + b"\n" * 1})
    with (lab.root / "big.txt").open("ab") as file:
        file.write((b"x" * 79 + b"\n") * 70_000 + b"hit\n")
    with (lab.root / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    result = await lab.call("search.grep", pattern="^hit$", output_mode="content")
    assert result["matches"] == [{"file": "./big.txt", "line": 70_002, "content": "hit"}]
    assert files_of(await lab.call("search.grep", pattern="^hit$")) == ["./big.txt"]


async def test_unreadable_files_do_not_spoil_the_rest(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": "hit\n"})
    (lab.root / "dangling").symlink_to("nowhere")
    (lab.root / "loop").symlink_to("loop")
    os.mkfifo(lab.root / "pipe")
    assert files_of(await lab.call("search.grep", pattern="hit")) == ["./a.txt"]


async def test_hidden_files_are_searched_unless_told_otherwise(lab: SearchLab) -> None:
    write_tree(lab.root, {".env": "hit\n", ".github/w.yml": "hit\n", "a": "hit\n"})
    assert len((await lab.call("search.grep", pattern="hit"))["matches"]) == 3
    shown = await lab.call("search.grep", pattern="hit", hidden=False)
    assert files_of(shown) == ["./a"]


class FakeEngine:
    """An engine in this process, for the same tools."""

    async def grep(self, query: GrepQuery) -> GrepOutcome:
        hit = RawHit(b"./a.py", 3, 1, b"found " + query.pattern.encode())
        if query.mode == "content":
            return GrepOutcome([hit], [], 1)
        return GrepOutcome([], [RawCount(b"./a.py", 1)], 1)

    async def files(
        self, scope: Scope, time_s: float, sieve: Sieve | None = None, *, links: bool = False
    ) -> ListOutcome:
        return ListOutcome([b"./a.py"], complete=True)


@requirement("AT-REG-30")
async def test_another_engine_leaves_parameters_and_results_as_they_are(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "1\n2\nfound x\n"})
    real = lab.tool_lab()
    lab_tools = search_tools(FakeEngine())
    fake = type(real)(lab.root, lab_tools)
    for mode in ("content", "count", "files_with_matches"):
        results = [
            await tool_lab.call("search.grep", pattern="x", output_mode=mode)
            for tool_lab in (real, fake)
        ]
        assert results[0].keys() == results[1].keys()
        assert results[0]["matches"][0].keys() == results[1]["matches"][0].keys()
    assert await real.call("search.glob", pattern="*.py") == await fake.call(
        "search.glob", pattern="*.py"
    )
    for tool in lab_tools:
        assert tool.definition in [one.definition for one in real.registry.list()]
