"""search.grep and search.glob against ripgrep itself, on a large and a small tree; loop stalls.

Run it alone with `python benchmarks/bench_search.py`; `run()` returns the suite's rows. The
peer is the same ripgrep started by subprocess on the same tree in the same round, its output parsed
into the same entries. Ours has everything around it: process start through the one spawner, the
cap, the sorting, the entries as JSON values. Rounds alternate; the best of each counts, as both
only ever get slower by what else the machine does.
"""

from __future__ import annotations

import gc
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import uvloop

from kaged.app.daemon import SWITCH_S
from kaged.base import JsonObject
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.search import (
    EngineRunner,
    RipgrepEngine,
    SearchSettings,
    search_tools,
)
from kaged.tools import Tool, ToolCallContext, ToolInvocation
from kaged.workspace import Workspace
from scoreboard import Row, at_most, peer_missing, peer_program, row, show
from scoreboard.stalls import longest_stall

BIG_FILES = 24_000
SMALL_FILES = 200
CAP = 2_000
STALL_TARGET_MS = 10.0
_WORDS = ("value", "count", "index", "token", "buffer", "handler", "request", "result", "parser")
_UNLIMITED = 10**9
_GREP = ("--no-config", "--no-ignore-dot", "--no-require-git", "--hidden", "-g", "!.git")
_LINES = ("-n", "--column", "--no-heading", "-H", "-0", "--color", "never")


def run() -> list[Row]:
    """Measure everything; one row per promise."""
    return uvloop.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        top = Path(folder)
        big, small = top / "big", top / "small"
        _make_tree(big, BIG_FILES)
        _make_tree(small, SMALL_FILES)
        spawner = Spawner(CageSettings(cache_dir=top / "cache"))
        try:
            engine = RipgrepEngine(EngineRunner(spawner))
            return [
                await _grep(engine, big, "large tree", rounds=9, target=1.15),
                await _grep(engine, small, "200 files", rounds=60, target=1.5),
                await _capped(engine, big),
                *await _glob(engine, big),
                await _stall(engine, big),
            ]
        finally:
            await spawner.close()


def _make_tree(root: Path, count: int) -> None:
    dice = random.Random(7)
    for number in range(count):
        place = root / f"p{number % 97}" / f"m{number % 13}"
        place.mkdir(parents=True, exist_ok=True)
        lines = [
            f"    {dice.choice(_WORDS)}_{dice.randrange(50)} = {dice.choice(_WORDS)}({line})"
            for line in range(dice.randrange(20, 140))
        ]
        if number % 400 == 0:
            lines.append("    needle_in_the_hay = 1")
        suffix = "py" if number % 3 else "txt"
        (place / f"f{number}.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _call(tool: Tool, workspace: Workspace, args: JsonObject) -> Awaitable[Any]:
    schema: Any = tool.definition.parameters["properties"]
    filled = {name: one["default"] for name, one in schema.items() if "default" in one} | args
    context = ToolCallContext("s", "r", "primary", "p", workspace.root, None, "q")
    path = workspace.resolve(str(filled["path"]))
    events: Any = None
    return tool.handler(
        ToolInvocation(context, filled, (path,), None, workspace, events, tool.definition.name)
    )


async def _against(
    ours: Callable[[], Awaitable[Any]], peer: Callable[[], Any], rounds: int
) -> tuple[list[float], list[float], Any, Any]:
    our_s: list[float] = []
    peer_s: list[float] = []
    answer = peer_answer = None
    for _ in range(rounds):
        start = time.perf_counter()
        peer_answer = peer()
        peer_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        answer = await ours()
        our_s.append(time.perf_counter() - start)
    return our_s, peer_s, answer, peer_answer


@cache
def _ripgrep() -> str:
    return peer_program("ripgrep", "rg")


def _ripgrep_lines(root: Path, pattern: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [_ripgrep(), *_GREP, *_LINES, "-e", pattern, "--", "./"],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    found: list[dict[str, Any]] = []
    for record in done.stdout.splitlines():
        path, _, rest = record.partition(b"\0")
        line, _, text = rest.split(b":", 2)
        found.append({"file": path.decode(), "line": int(line), "content": text.decode()})
    return found


async def _grep(engine: RipgrepEngine, root: Path, name: str, *, rounds: int, target: float) -> Row:
    tool = search_tools(engine)[0]
    workspace = Workspace(root)
    args: JsonObject = {"pattern": r"needle_\w+_hay", "output_mode": "content"}
    ours, peer, answer, lines = await _against(
        lambda: _call(tool, workspace, args),
        lambda: _ripgrep_lines(root, r"needle_\w+_hay"),
        rounds,
    )
    assert answer["total_matches"] == len(lines) > 0
    return _row(f"search.grep of a rare expression, {name}", ours, "ripgrep, parsed", peer, target)


async def _capped(engine: RipgrepEngine, root: Path) -> Row:
    workspace = Workspace(root)
    args: JsonObject = {"pattern": "value", "output_mode": "content"}
    full = search_tools(engine, SearchSettings(max_hits=_UNLIMITED))[0]
    capped = search_tools(engine, SearchSettings(max_hits=CAP))[0]
    best: list[float] = []
    whole: list[float] = []
    everything: Any = None
    for _ in range(5):
        start = time.perf_counter()
        everything = await _call(full, workspace, args)
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        some = await _call(capped, workspace, args)
        best.append(time.perf_counter() - start)
        assert some["total_matches"] == CAP < everything["total_matches"]
    against = f"the same search to its end ({everything['total_matches']} hits)"
    return _row(f"search.grep that stops after {CAP} hits", best, against, whole, 0.3)


def _newest_by_ripgrep(root: Path) -> list[str]:
    done = subprocess.run(
        [
            peer_program("ripgrep", "rg"),
            *_GREP[:4],
            "--files",
            "-0",
            "--sortr",
            "modified",
            "-g",
            "*.py",
            "./",
        ],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return [path.decode() for path in done.stdout.split(b"\0")[:100]]


def _newest_by_fd(program: str, root: Path) -> list[Path]:
    done = subprocess.run(
        [program, "--glob", "*.py", "--type", "f", "-0"],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    paths = [root / path.decode() for path in done.stdout.split(b"\0") if path]
    return sorted(paths, key=lambda path: -path.stat().st_mtime_ns)[:100]


async def _glob(engine: RipgrepEngine, root: Path) -> list[Row]:
    tool = search_tools(engine)[1]
    workspace = Workspace(root)

    async def ours() -> Any:
        return await _call(tool, workspace, {"pattern": "**/*.py"})

    best, peer, answer, names = await _against(ours, lambda: _newest_by_ripgrep(root), 9)
    assert answer["count"] == len(names) == 100
    work = "search.glob, the 100 newest of 16,000"
    rows = [_row(work, best, "ripgrep --files --sortr modified", peer, 1.0)]
    fd = shutil.which("fd") or shutil.which("fdfind")
    if fd is None:
        return [*rows, peer_missing(work, "fd, then sorted", "fd is not installed")]
    best, peer, _, _ = await _against(ours, lambda: _newest_by_fd(fd, root), 9)
    return [*rows, _row(work, best, "fd, then sorted", peer, 1.0)]


async def _stall(engine: RipgrepEngine, root: Path) -> Row:
    workspace = Workspace(root)
    grep, glob = search_tools(engine)
    # As the daemon has it.
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()

    async def searches() -> None:
        for mode in ("content", "count", "files_with_matches"):
            await _call(grep, workspace, {"pattern": "value", "output_mode": mode})
        await _call(glob, workspace, {"pattern": "**/*"})

    return await longest_stall("searches with very many hits", searches, STALL_TARGET_MS)


def _row(work: str, ours: list[float], against: str, peer: list[float], target: float) -> Row:
    """Make the row of two searches; the best of each counts."""
    return row(
        work,
        min(ours) * 1e3,
        "ms",
        against=against,
        peer=min(peer) * 1e3,
        target=at_most(target, min(ours) / min(peer), "x"),
        samples=ours,
    )


if __name__ == "__main__":
    show(run())
