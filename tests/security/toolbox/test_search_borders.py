"""Searches of callers in a cage, and projects that want to hurt the daemon that searches them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from fakes.tool_lab import ToolLab, cage
from kaged.toolbox.ast import ast_tools
from kaged.toolbox.search import GrepOutcome, GrepQuery, ListOutcome, Scope, search_tools
from kaged.toolbox.search.records import RawHit, Sieve
from requirements import requirement

CANARY = "canary7351"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[SearchLab]:
    root = tmp_path / "project"
    root.mkdir()
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


def hostile_tree(root: Path) -> None:
    write_tree(
        root,
        {
            "src/a.py": "f(1)\n",
            "src/sub/b.py": "f(2)\n",
            "data/x.py": f"# {CANARY}\nf('{CANARY}')  # {CANARY}\n",
            "src-secret/y.py": f"f('{CANARY}')\n",
            "srcx.py": f"f('{CANARY}')\n",
        },
    )


@requirement("AT-FILT-05")
async def test_a_link_inside_the_mount_that_leads_out_is_outside(
    lab: SearchLab, tmp_path: Path
) -> None:
    hostile_tree(lab.root)
    (lab.root / "src/link.py").symlink_to("../data/x.py")
    (lab.root / "src/dir").symlink_to("../data")
    (lab.root / "src/near.py").symlink_to("sub/b.py")
    foreign = tmp_path / "foreign.py"
    foreign.write_text(CANARY, encoding="utf-8")
    (lab.root / "src/far.py").symlink_to(foreign)
    listed = await lab.call("search.glob", "ro ./src", pattern="**/*.py")
    assert set(listed["files"]) == {"./src/a.py", "./src/sub/b.py", "./src/near.py"}
    assert "./src/link.py" in listed["outside_cage"]
    # What lies outside the project does not even exist, for anybody.
    for answer in (listed, await lab.call("search.glob", pattern="**/*.py")):
        assert "far.py" not in json.dumps(answer)
    for path in ("./src/link.py", "./src/dir"):
        error = await lab.refusal("search.grep", "ro ./src", pattern="f", path=path)
        assert error.code == "capability_denied"
    found = await lab.call("search.grep", "ro ./src", pattern="f", output_mode="content")
    assert CANARY not in json.dumps(found)
    caged = await lab.call("search.ast", "ro ./src", pattern="f($X)", lang="python")
    inside = {one["file"] for one in caged["matches"] if not one.get("outside_cage")}
    assert inside == {"./src/a.py", "./src/sub/b.py"}


async def test_no_text_of_an_outside_file_is_in_any_answer(lab: SearchLab) -> None:
    hostile_tree(lab.root)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search.grep", {"pattern": ".", "output_mode": mode})
        for mode in ("content", "count", "files_with_matches")
    ]
    calls += [
        ("search.grep", {"pattern": f"(?=.*{CANARY[:4]})f", "output_mode": "content"}),
        ("search.grep", {"pattern": "f\\(.*\\)\\n?", "output_mode": "content"}),
        ("search.ast", {"pattern": "f($X)", "lang": "python", "context": 5}),
        ("search.ast", {"pattern": "f($$$X)", "lang": "python", "context": 100}),
        ("edit.ast", {"rewrites": {"f($X)": "g($X)"}}),
        ("search.glob", {"pattern": "**/*"}),
    ]
    for name, params in calls:
        answer = await lab.tool_lab("ro ./src").call_with(name, params)
        assert CANARY not in json.dumps(answer), name
        whole = await lab.tool_lab().call_with(name, params)
        assert "./data/x.py" in json.dumps(whole)


class SwappedEngine:
    """Found something while a directory was a link to elsewhere; the link is there right now."""

    def __init__(self, hits: list[RawHit]) -> None:
        self.hits = hits

    async def grep(self, query: GrepQuery) -> GrepOutcome:
        return GrepOutcome(self.hits, [], len(self.hits))

    async def files(
        self, scope: Scope, time_s: float, sieve: Sieve | None = None, *, links: bool = False
    ) -> ListOutcome:
        return ListOutcome([], complete=True)

    async def find_files(
        self,
        root: str,
        paths: tuple[str, ...],
        *,
        names: tuple[str, ...],
        globs: tuple[str, ...],
        literal: str | None,
        time_s: float,
    ) -> tuple[list[bytes], bool]:
        return [hit.path for hit in self.hits], True


async def test_a_directory_swapped_during_the_search_shows_nothing_of_elsewhere(
    lab: SearchLab, tmp_path: Path
) -> None:
    outside = write_tree(tmp_path / "outside", {"s.py": f"f('{CANARY}')\n"})
    write_tree(lab.root, {"src/a.py": "f(1)\n", "data/x.py": f"f('{CANARY}')\n"})
    (lab.root / "src/swap").symlink_to(outside)
    (lab.root / "src/swap2").symlink_to(lab.root / "data")
    engine = SwappedEngine(
        [
            RawHit(b"./src/swap/s.py", 1, 1, f"f('{CANARY}')".encode()),
            RawHit(b"./src/swap2/x.py", 1, 1, f"f('{CANARY}')".encode()),
            RawHit(b"./src/a.py", 1, 1, f"f('{CANARY}') of another file".encode()),
            RawHit(b"./src/gone.py", 1, 1, f"f('{CANARY}')".encode()),
        ]
    )
    policy = cage("ro ./src", root=lab.root)
    tool_lab = ToolLab(lab.root, [*search_tools(engine), *ast_tools(lab.ast, engine)], policy)
    found = await tool_lab.call("search.grep", pattern="f", output_mode="content")
    assert found["matches"] == [{"file": "./src/a.py", "line": 1, "content": "f(1)"}]
    matched = await tool_lab.call("search.ast", pattern="f($X)", lang="python")
    assert [one["content"] for one in matched["matches"]] == ["f(1)"]
    edits = await tool_lab.call("edit.ast", rewrites={"f($X)": "g($X)"}, lang="python")
    assert CANARY not in json.dumps(edits)


async def test_a_directory_that_keeps_moving_never_leaks(lab: SearchLab, tmp_path: Path) -> None:
    outside = write_tree(
        tmp_path / "outside", {f"f{number}.py": f"f('{CANARY}')\n" for number in range(20)}
    )
    write_tree(lab.root, {f"src/in/f{number}.py": "f(1)\n" for number in range(20)})
    inside, parked = lab.root / "src/in", lab.root / "parked"
    stop = asyncio.Event()

    async def swap() -> None:
        while not stop.is_set():
            inside.rename(parked)
            inside.symlink_to(outside)
            await asyncio.sleep(0)
            inside.unlink()
            parked.rename(inside)
            await asyncio.sleep(0)

    tool_lab = lab.tool_lab("ro ./src")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(swap())
        for _ in range(15):
            lines = await tool_lab.call(
                "search.grep", pattern="f", output_mode="content", path="./src"
            )
            assert CANARY not in json.dumps(lines)
            code = await tool_lab.call(
                "search.ast", pattern="f($X)", lang="python", paths=["./src"]
            )
            assert CANARY not in json.dumps(code)
        stop.set()


async def test_settings_in_the_project_do_not_reach_the_engines(lab: SearchLab) -> None:
    marker = lab.root / "ran"
    script = f"#!/bin/sh\ntouch {marker}\n"
    write_tree(
        lab.root,
        {
            ".ripgreprc": "--pre=./evil.sh\n",
            "sgconfig.yml": "customLanguages:\n  python:\n    libraryPath: ./evil.so\n",
            "ast_grep_py.py": f"open({str(marker)!r}, 'w')\n",
            "sitecustomize.py": f"open({str(marker)!r}, 'w')\n",
            "evil.sh": script,
            "rg": script,
            "a.py": "f(1)\n",
        },
    )
    for name in ("evil.sh", "rg"):
        (lab.root / name).chmod(0o755)
    assert (await lab.call("search.grep", pattern="f"))["total_matches"]
    assert (await lab.call("search.ast", pattern="f($X)", lang="python"))["count"] == 1
    await lab.call("search.glob", pattern="*")
    assert not marker.exists()


async def test_the_engines_get_nothing_of_the_daemons_environment(
    lab: SearchLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGED_TEST_SECRET", CANARY)
    seen = tmp_path / "seen"
    spy = tmp_path / "spy.sh"
    spy.write_text(f"#!/bin/sh\n/usr/bin/env > {seen}\nexit 1\n", encoding="utf-8")
    spy.chmod(0o755)
    async with opened_search_lab(lab.root, tmp_path / "cache", program=str(spy)) as other:
        assert (await other.call("search.grep", pattern="x"))["matches"] == []
    assert CANARY not in seen.read_text(encoding="utf-8")
    assert (await lab.call("search.ast", pattern="f($X)", lang="python"))["count"] == 0
    (worker,) = lab.spawner.running
    environ = Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert CANARY.encode() not in environ


async def test_odd_files_never_hang_a_search(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n"})
    os.mkfifo(lab.root / "fifo.py")
    (lab.root / "null.py").symlink_to("/dev/zero")
    (lab.root / "loop.py").symlink_to("loop.py")
    with (lab.root / "huge.py").open("wb") as file:
        file.truncate(1 << 30)
    assert (await lab.call("search.grep", pattern="f"))["total_matches"] == 1
    assert (await lab.call("search.ast", pattern="f($X)", lang="python"))["count"] == 1
    result = await lab.call("edit.ast", rewrites={"f($X)": "g($X)"}, lang="python")
    assert [one["path"] for one in result["parse_errors"]] == ["./huge.py"]
    deep = "(" * 20_000 + "1" + ")" * 20_000
    write_tree(lab.root, {"deep.py": f"f({deep})\n"})
    assert (await lab.call("search.ast", pattern="f($X)", lang="python"))["count"] >= 1
