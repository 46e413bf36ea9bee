"""search.ast against the ast-grep command line, and the memory of a rewrite of 1,000 files.

Run it alone with `python benchmarks/bench_ast.py`; `run()` gives the rows for the suite. The peer
is ast-grep itself on the same tree in the same round, with its JSON output parsed. Ours reads every
file through the path guard and parses in worker processes that are warm, as they are in a daemon.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from kaged.base import JsonObject
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.ast import AstSettings, AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.search import EngineRunner, RipgrepEngine
from kaged.tools import Tool, ToolCall, ToolCallContext
from kaged.workspace import Workspace

FILES = 1_200
EDITED_FILES = 1_000
MEMORY_TARGET_MB = 32.0
STALL_TARGET_MS = 10.0
_ROUNDS = 4
_NAMES = ["load", "save", "parse", "render", "merge", "split", "check", "apply", "fetch", "store"]


def run() -> list[dict[str, Any]]:
    """Measure everything; one row per promise."""
    return uvloop.run(_run())


async def _run() -> list[dict[str, Any]]:
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
        ToolCall(context, filled, (path,), None, workspace, _Deaf(), tool.definition.name)
    )


class _Deaf:
    """An audit log that nobody reads."""

    def post(self, event: object) -> None:
        """Take no notice."""


def _command_line() -> str:
    own = Path(sysconfig.get_path("scripts")) / "ast-grep"
    found = str(own) if own.exists() else shutil.which("ast-grep")
    if found is None:
        raise SystemExit("the peer is missing: install ast-grep-cli")
    return found


def _peer(root: str, pattern: str) -> int:
    done = subprocess.run(
        [_command_line(), "run", "-p", pattern, "-l", "python", "--json=stream", "."],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return len([json.loads(line) for line in done.stdout.splitlines()])


async def _search(
    tool: Tool, workspace: Workspace, pattern: str, name: str, target: float
) -> dict[str, Any]:
    ours, peer = float("inf"), float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        expected = _peer(workspace.root, pattern)
        peer = min(peer, time.perf_counter() - start)
        start = time.perf_counter()
        answer = await _call(tool, workspace, {"pattern": pattern, "lang": "python"})
        ours = min(ours, time.perf_counter() - start)
        assert answer["count"] == expected > 0
    return {
        "work": f"search.ast of a pattern {name} to look for first, {FILES} files",
        "ours": round(ours * 1e3, 1),
        "unit": "ms",
        "against": "ast-grep on the command line, parsed",
        "peer": round(peer * 1e3, 1),
        "ratio": round(ours / peer, 2),
        "target": f"<= {target:g}x",
        "verdict": "met" if ours / peer <= target else "missed",
    }


async def _stall(tool: Tool, workspace: Workspace) -> dict[str, Any]:
    async def search() -> None:
        await _call(tool, workspace, {"pattern": "$A == $B", "lang": "python", "context": 3})

    return await _stalls("search.ast", search)


async def _stalls(name: str, work: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Find how long the loop did not come round at most, in the quietest of five rounds.

    Time in the queue for a processor does not count: that is what else the machine does. Beside it
    stands the same for a loop with nothing to do; on a busy machine that is no small figure.
    """
    rounds: list[float] = []
    idle: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        rounds.append(await _longest_gap(work))
        took = time.perf_counter() - start
        idle.append(await _longest_gap(lambda took=took: asyncio.sleep(took)))
    stall_ms, idle_ms = min(rounds) * 1e3, min(idle) * 1e3
    return {
        "work": f"longest stall of the event loop by {name}",
        "ours": round(stall_ms, 2),
        "unit": "ms",
        "against": "an idle loop in the same run",
        "peer": round(idle_ms, 2),
        "ratio": round(stall_ms / idle_ms, 2),
        "target": f"<= {STALL_TARGET_MS:g} ms",
        "verdict": "met" if stall_ms <= max(STALL_TARGET_MS, idle_ms) else "missed",
    }


async def _longest_gap(work: Callable[[], Awaitable[None]]) -> float:
    worst = 0.0
    running = True

    async def tick() -> None:
        nonlocal worst
        last, queued = time.perf_counter(), _queued_s()
        while running:
            await asyncio.sleep(0.0005)
            now, waited = time.perf_counter(), _queued_s()
            worst = max(worst, now - last - (waited - queued))
            last, queued = now, waited

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        await work()
        running = False
    return worst


def _queued_s() -> float:
    """Say how long this thread was ready to run and the machine had no processor for it."""
    return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


async def _memory(tool: Tool, workspace: Workspace) -> dict[str, Any]:
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
    return {
        "work": f"memory of edit.ast over {EDITED_FILES} files ({took:.1f} s)",
        "ours": round(grown, 1),
        "unit": "MB",
        "against": "what all the files hold together",
        "peer": round(total_mb, 1),
        "ratio": round(grown / total_mb, 2),
        "target": f"<= {MEMORY_TARGET_MB:g} MB",
        "verdict": "met" if grown <= MEMORY_TARGET_MB else "missed",
    }


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    raise ValueError("the kernel does not tell the peak")


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
