"""search.grep beyond its first answer: pages, lines around, types of files, kept results."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from fakes.tool_lab import ToolLab
from kaged.toolbox.search import SearchSettings, search_tools
from kaged.tools.kept_results import KeptResults
from kaged.tools.result_cut import tokens_of


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[SearchLab]:
    root = tmp_path / "project"
    root.mkdir()
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


TREE = {
    "a.py": "".join(f"needle {number}\nother\n" for number in range(40)),
    "b.ts": "one\nneedle in ts\nthree\n",
    "c/d.py": "x\ny\nneedle a\nneedle b\nz\n",
    "long.py": "def f(\n    needle,\n):\n    pass\n",
}


def places(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one["file"], one["line"]) for one in found["matches"]]


async def test_pages_follow_each_other_and_together_are_everything(lab: SearchLab) -> None:
    write_tree(lab.root, TREE)
    everything = await lab.call("search.grep", pattern="needle", output_mode="content")
    assert (everything["total_matches"], everything["total_files"]) == (44, 4)
    assert "next_offset" not in everything
    got: list[tuple[str, int]] = []
    offset = 0
    while True:
        page = await lab.call(
            "search.grep", pattern="needle", output_mode="content", limit=7, offset=offset
        )
        assert page["total_matches"] == 44
        got += places(page)
        if "next_offset" not in page:
            break
        assert (page["truncated"], len(page["matches"])) == (True, 7)
        offset = page["next_offset"]
    assert got == places(everything)
    for mode, size in (("files_with_matches", 4), ("count", 4)):
        first = await lab.call("search.grep", pattern="needle", output_mode=mode, limit=3)
        assert (len(first["matches"]), first["next_offset"]) == (3, 3)
        last = await lab.call("search.grep", pattern="needle", output_mode=mode, offset=3)
        assert len(last["matches"]) == size - 3
        assert last["total_files"] == size
        assert "next_offset" not in last


async def test_a_page_that_does_not_fit_says_where_it_stopped(lab: SearchLab) -> None:
    lab.settings = SearchSettings(output_bytes=600)
    write_tree(lab.root, TREE)
    seen: list[tuple[str, int]] = []
    offset, pages = 0, 0
    while True:
        page = await lab.call("search.grep", pattern="needle", output_mode="content", offset=offset)
        seen += places(page)
        pages += 1
        if "next_offset" not in page:
            break
        offset = page["next_offset"]
    assert len(seen) == len(set(seen)) == 44
    assert pages > 3


async def test_lines_around_a_match(lab: SearchLab) -> None:
    write_tree(lab.root, TREE)
    found = await lab.call("search.grep", pattern="needle [ab]", output_mode="content", context=2)
    first, second = found["matches"]
    assert (first["before"], first["after"]) == (["x", "y"], ["needle b", "z"])
    assert (second["before"], second["after"]) == (["y", "needle a"], ["z", ""])
    (one,) = (
        await lab.call("search.grep", pattern="in ts", output_mode="content", before=1, after=0)
    )["matches"]
    assert (one["before"], one["after"]) == (["one"], [])
    own = lab.tool_lab()
    text = await own.dispatcher.shown("search.grep", found, own.context)
    assert text == (
        "total_matches: 2, truncated: false, total_files: 1\n"
        "./c/d.py\n1- x\n2- y\n3: needle a\n4: needle b\n5- z\n6- "
    )


async def test_lines_around_are_shown_as_far_as_the_cage_allows(lab: SearchLab) -> None:
    write_tree(lab.root, TREE)
    found = await lab.call(
        "search.grep", "ro ./c", pattern="needle", output_mode="content", context=1, limit=100
    )
    outside = [one for one in found["matches"] if not one["file"].startswith("./c/")]
    assert len(outside) == 42
    assert all(set(one) == {"file", "line", "outside_cage"} for one in outside)
    assert [one["before"] for one in found["matches"] if one not in outside] == [
        ["y"],
        ["needle a"],
    ]


async def test_types_of_files_alone_and_beside_include(lab: SearchLab) -> None:
    write_tree(lab.root, TREE)

    async def files(**more: Any) -> list[str]:
        found = await lab.call("search.grep", pattern="needle", **more)
        return [one["file"] for one in found["matches"]]

    assert await files(type="ts") == ["./b.ts"]
    assert await files(type="py") == ["./a.py", "./c/d.py", "./long.py"]
    assert await files(type="py", include="[al]*.py") == ["./a.py", "./long.py"]
    assert await files(type="py", include="!a.py") == ["./c/d.py", "./long.py"]
    assert await files(type="py", path="./b.ts") == ["./b.ts"]  # a file that is named is meant
    refused = await lab.refusal("search.grep", pattern="x", type="klingon")
    assert refused.code == "invalid_params"
    assert "ripgrep" in str(refused)


@pytest.mark.parametrize("multiline", [True, False])
async def test_a_match_over_lines(lab: SearchLab, multiline: bool) -> None:
    write_tree(lab.root, TREE)
    found = await lab.call(
        "search.grep", pattern=r"def f\(.*needle", output_mode="content", multiline=multiline
    )
    assert places(found) == ([("./long.py", 1), ("./long.py", 2)] if multiline else [])


async def test_a_kept_result_is_searched_and_nothing_beside_it(
    lab: SearchLab, tmp_path: Path
) -> None:
    write_tree(lab.root, TREE)
    kept = KeptResults(tmp_path / "results", lambda: "res_" + "1" * 26)
    tools = search_tools(lab.engine, lab.settings, kept=kept)
    own = ToolLab(lab.root, tools)
    handle = kept.keep(own.context, "begin\nFAILED test_a\nbecause\nend")
    other = KeptResults(tmp_path / "results", lambda: "res_" + "2" * 26)
    other.keep(own.context, "FAILED elsewhere")
    assert handle is not None
    found = await own.call(
        "search.grep", pattern="FAILED", path=handle, output_mode="content", context=1
    )
    assert found["matches"] == [
        {
            "file": handle,
            "line": 2,
            "content": "FAILED test_a",
            "before": ["begin"],
            "after": ["because"],
        }
    ]
    counted = await own.call("search.grep", pattern="e", path=handle, output_mode="count")
    assert counted["matches"] == [{"file": handle, "count": 4}]
    paged = await own.call("search.grep", pattern="e", path=handle, output_mode="content", limit=3)
    assert (len(paged["matches"]), paged["next_offset"]) == (3, 3)
    refused = await own.refusal("search.grep", pattern="x", path="result:/res_" + "3" * 26)
    assert refused.code == "result_not_found"


async def test_hits_enter_a_window_in_a_fraction_of_their_size(lab: SearchLab) -> None:
    write_tree(lab.root, TREE)
    own = lab.tool_lab()
    found = await own.call("search.grep", pattern="needle", output_mode="content")
    text = await own.dispatcher.shown("search.grep", found, own.context)
    assert tokens_of(text) < tokens_of(str(found)) // 2
    listed = await own.call("search.glob", pattern="**/*.py")
    text = await own.dispatcher.shown("search.glob", listed, own.context)
    assert sorted(text.split("\n")[1:]) == ["./a.py", "./c/d.py", "./long.py"]


async def test_files_are_paged_newest_first_and_counted(lab: SearchLab) -> None:
    for number in range(150):
        file = lab.root / f"f{number:03}.txt"
        file.write_text("x")
        os.utime(file, ns=(number, number))
    first = await lab.call("search.glob", pattern="*.txt")
    assert (first["count"], first["total"], first["next_offset"]) == (100, 150, 100)
    assert first["files"][0] == "./f149.txt"
    rest = await lab.call("search.glob", pattern="*.txt", offset=100)
    assert (rest["count"], rest["total"], rest["truncated"]) == (50, 150, False)
    assert "next_offset" not in rest
    assert not set(first["files"]) & set(rest["files"])
    few = await lab.call("search.glob", pattern="*.txt", offset=3, limit=2)
    assert few["files"] == ["./f146.txt", "./f145.txt"]
    assert few["next_offset"] == 5
    # Of very many only the newest are kept while it lists; all are counted.
    for number in range(3_000):
        (lab.root / f"many{number}.csv").touch()
    for size in (100, 1):
        many = await lab.call("search.glob", pattern="*.csv", limit=size)
        assert (many["count"], many["total"]) == (size, 3_000)


async def test_code_is_counted_by_file_and_a_lower_bound_is_no_count(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\nf(2)\nf(3)\n", "b.py": "f(4)\n", "c.py": "g(1)\n"})
    asked = {"pattern": "f($X)", "lang": "python"}
    counted = await lab.call("search.ast", output_mode="count", **asked)
    assert counted["file_counts"] == [
        {"file": "./a.py", "count": 3},
        {"file": "./b.py", "count": 1},
    ]
    assert (counted["matches"], counted["count"], counted["total_files"]) == ([], 4, 2)
    few = await lab.call("search.ast", limit=2, **asked)
    assert (len(few["matches"]), few["count"], few["truncated"]) == (2, 4, True)
    lab.ast_settings = replace(lab.ast_settings, max_matches=2)
    early = await lab.call("search.ast", limit=1, **asked)
    assert early["truncated"] is True
    assert early["count"] == len(early["matches"]) == 1
    assert early["at_least"] > 2
    assert "total_files" not in early


async def test_a_rewrite_is_tried_as_a_summary(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n" * 300, "b.py": "f(2)\n"})
    asked: dict[str, Any] = {"rewrites": {"f($X)": "g($X)"}, "lang": "python"}
    tried = await lab.call("edit.ast", limit=1, **asked)
    assert [one["count"] for one in tried["file_changes"]] == [300, 1]
    assert (len(tried["changes"]), tried["total_replacements"]) == (1, 301)
    everything = await lab.call("edit.ast", **asked)
    assert len(everything["changes"]) == 301
    own = lab.tool_lab()
    text = await own.dispatcher.shown("edit.ast", everything, own.context)
    assert text.startswith("total_replacements: 301\n")
    assert "\n./a.py: 300\n./b.py: 1\n" in text
    assert text.endswith("\n[281 more changes of this kind]")
    assert tokens_of(text) < 400
    assert (lab.root / "a.py").read_text() == "f(1)\n" * 300
