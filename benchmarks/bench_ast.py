"""search.ast against the ast-grep command line, and the memory of a rewrite of 1,000 files.

Run it alone with `python benchmarks/bench_ast.py`; `run()` returns the suite's rows. The peer
is ast-grep itself on the same tree in the same round, with its JSON output parsed. Ours reads every
file through the path guard and parses in worker processes that are warm, as they are in a daemon.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from functools import cache
from pathlib import Path
from typing import Any, cast

import uvloop

from kaged.app.daemon import SWITCH_S
from kaged.base import JsonObject
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.ast import AstSettings, AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.search import EngineRunner, RipgrepEngine
from kaged.tools import Tool, ToolCallContext, ToolInvocation
from kaged.workspace import Workspace
from scoreboard import Row, at_most, peer_program, row, show
from scoreboard.stalls import longest_stall

FILES = 1_200
EDITED_FILES = 1_000
MEMORY_TARGET_MB = 32.0
STALL_TARGET_MS = 10.0
_ROUNDS = 4
_NAMES = ["load", "save", "parse", "render", "merge", "split", "check", "apply", "fetch", "store"]


def run() -> list[Row]:
    """Measure everything; one row per promise."""
    sys.setswitchinterval(SWITCH_S)  # as the daemon has it
    return uvloop.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        top = Path(folder)
        _make_tree(top / "tree", FILES, 60)
        spawner = Spawner(CageSettings(cache_dir=top / "cache"))
        workers = AstWorkers(spawner)
        try:
            engine = WorkerEngine(workers)
            finder = RipgrepEngine(EngineRunner(spawner))
            search, edit = ast_tools(engine, finder, AstSettings(max_matches=10**9))
            await engine.check()
            workspace = Workspace(top / "tree")
            literal = await _search(search, workspace, "rare_call($$$ARGS)", "with a text", 0.6)
            plain = await _search(search, workspace, "$A == $A", "without any text", 1.2)
            stall = await _stall(ast_tools(engine, finder)[0], workspace)
            _make_tree(top / "edited", EDITED_FILES, 400)
            memory = await _memory(edit, Workspace(top / "edited"))
            return [literal, plain, stall, memory]
        finally:
            await workers.close()
            await spawner.close()


def _make_tree(root: Path, count: int, functions: int) -> None:
    dice = random.Random(11)
    for number in range(count):
        place = root / f"p{number % 31}"
        place.mkdir(parents=True, exist_ok=True)
        parts: list[str] = []
        for one in range(functions):
            name, other = dice.choice(_NAMES), dice.choice(_NAMES)
            parts.append(
                f"def {name}_{one}(self, item, *rest):\n"
                f"    if item == {one} and {other}(item):\n"
                f"        return [{name}(x, {one}) for x in rest]\n"
            )
        parts.append("x == x\n")
        if number % 40 == 0:
            parts.append("rare_call(1, 2)\n")
        (place / f"f{number}.py").write_text("\n".join(parts), encoding="utf-8")


def _call(tool: Tool, workspace: Workspace, args: JsonObject) -> Awaitable[Any]:
    schema: Any = tool.definition.parameters["properties"]
    filled = {name: one["default"] for name, one in schema.items() if "default" in one} | args
    context = ToolCallContext("s", "r", "primary", "p", workspace.root, None, "q")
    path = workspace.resolve("./")
    return tool.handler(
        ToolInvocation(
            context, filled, (path,), None, workspace, cast("Any", _Deaf()), tool.definition.name
        )
    )


class _Deaf:
    """An audit log that nobody reads."""

    def post(self, event: object) -> None:
        """Take no notice."""


@cache
def _ast_grep() -> str:
    return peer_program("ast-grep", "ast-grep")


def _peer(root: str, pattern: str) -> int:
    done = subprocess.run(
        [
            peer_program("ast-grep", "ast-grep"),
            "run",
            "-p",
            pattern,
            "-l",
            "python",
            "--json=stream",
            ".",
        ],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return len([json.loads(line) for line in done.stdout.splitlines()])


async def _search(tool: Tool, workspace: Workspace, pattern: str, name: str, target: float) -> Row:
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        expected = _peer(workspace.root, pattern)
        peer.append(time.perf_counter() - start)
        start = time.perf_counter()
        answer = await _call(tool, workspace, {"pattern": pattern, "lang": "python"})
        ours.append(time.perf_counter() - start)
        assert answer["count"] == expected > 0
    return row(
        f"search.ast of a pattern {name} to look for first, {FILES} files",
        min(ours) * 1e3,
        "ms",
        against="ast-grep on the command line, parsed",
        peer=min(peer) * 1e3,
        target=at_most(target, min(ours) / min(peer), "x"),
        samples=ours,
    )


async def _stall(tool: Tool, workspace: Workspace) -> Row:
    async def search() -> None:
        await _call(tool, workspace, {"pattern": "$A == $B", "lang": "python", "context": 3})

    return await longest_stall("search.ast", search, STALL_TARGET_MS)


async def _memory(tool: Tool, workspace: Workspace) -> Row:
    total_mb = sum(one.stat().st_size for one in Path(workspace.root).rglob("*.py")) / 1e6
    # The first number is the peak so far; writing 5 makes the kernel forget it.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak_mb()
    start = time.perf_counter()
    answer = await _call(
        tool,
        workspace,
        {"rewrites": {"x == x": "True"}, "lang": "python", "dry_run": False},
    )
    took = time.perf_counter() - start
    grown = _peak_mb() - before
    assert answer["files_touched"] == EDITED_FILES
    return row(
        f"memory of edit.ast over {EDITED_FILES} files ({took:.1f} s)",
        grown,
        "MB",
        against="what all the files hold together",
        peer=total_mb,
        target=at_most(MEMORY_TARGET_MB, grown, "MB"),
    )


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    raise ValueError("the kernel does not tell the peak")


if __name__ == "__main__":
    show(run())
