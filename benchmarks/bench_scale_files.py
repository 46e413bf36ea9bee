"""What a search costs for each file of a growing project, and what one file costs in it.

The tree grows from point to point. A search has a fixed cost, starting ripgrep, that the many files
of a large tree share; reading one file must not depend on how many there are.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.tool_lab import ToolLab  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the tests
from kaged.cage import CageSettings, Spawner  # noqa: E402 - likewise
from kaged.toolbox.files import file_tools  # noqa: E402 - likewise
from kaged.toolbox.search import EngineRunner, RipgrepEngine, search_tools  # noqa: E402 - likewise
from scoreboard import Curve, Point, counts, show  # noqa: E402 - likewise
from scoreboard.commits import BareCommits  # noqa: E402 - likewise

POINTS = counts((100, 1000, 5000, 20_000, 50_000), (20, 60))
SEARCHES = 5
READS = 100
_WORDS = ("value", "count", "index", "token", "buffer", "handler", "request", "result", "parser")


def run() -> list[Curve]:
    """Measure the four curves."""
    return asyncio.run(_run())


async def _run() -> list[Curve]:
    grep: list[Point] = []
    glob: list[Point] = []
    read: list[Point] = []
    edit: list[Point] = []
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        top = Path(folder).resolve()
        tree = top / "tree"
        commits = BareCommits(top / "peer.db")
        spawner = Spawner(CageSettings(cache_dir=top / "cache"))
        try:
            engine = RipgrepEngine(EngineRunner(spawner))
            lab: Any = None
            there = 0
            for count in POINTS:
                _grow(tree, there, count)
                there = count
                lab = lab or ToolLab(tree, [*search_tools(engine), *file_tools()])
                grep.append(Point(count, await _best_us(_grep(lab, count), SEARCHES) / count))
                glob.append(Point(count, await _best_us(_glob(lab, count), SEARCHES) / count))
                read.append(Point(count, await _best_us(_read(lab, count), READS)))
                edit.append(Point(count, await commits.times(_write(lab, count), READS)))
            commits.close()
        finally:
            await spawner.close()
    family = "files 100 to 50,000"
    shared = "The first points carry the start of ripgrep, which all files of a search share."
    return [
        Curve(family, "search.grep, for each file", "files", "µs", tuple(grep), reason=shared),
        Curve(family, "search.glob, for each file", "files", "µs", tuple(glob), reason=shared),
        Curve(family, "file.read of one", "files", "µs", tuple(read)),
        Curve(family, "file.write of one, on disk", "files", "bare commits", tuple(edit)),
    ]


def _grow(tree: Path, there: int, count: int) -> None:
    for number in range(there, count):
        dice = random.Random(number)
        place = tree / f"p{number % 97}" / f"m{number % 13}"
        place.mkdir(parents=True, exist_ok=True)
        lines = [
            f"    {dice.choice(_WORDS)}_{dice.randrange(50)} = {dice.choice(_WORDS)}({line})"
            for line in range(40)
        ]
        if number % 400 == 0:
            lines.append("    needle_in_the_hay = 1")
        (place / f"f{number}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _path(number: int) -> str:
    return f"./p{number % 97}/m{number % 13}/f{number}.py"


def _grep(lab: Any, count: int) -> Callable[[int], Awaitable[None]]:
    async def one(_turn: int) -> None:
        found = await lab.call("search.grep", pattern=r"needle_\w+_hay", output_mode="content")
        assert found["total_matches"] == (count + 399) // 400

    return one


def _glob(lab: Any, count: int) -> Callable[[int], Awaitable[None]]:
    async def one(_turn: int) -> None:
        assert (await lab.call("search.glob", pattern="**/*.py"))["count"] == min(count, 100)

    return one


def _read(lab: Any, count: int) -> Callable[[int], Awaitable[None]]:
    async def one(turn: int) -> None:
        await lab.call("file.read", path=_path(turn * 7919 % count))

    return one


def _write(lab: Any, count: int) -> Callable[[int], Awaitable[None]]:
    async def one(turn: int) -> None:
        # A file of its own beside the tree's, so that searches find what they found before.
        await lab.call("file.write", path=f"./p{turn % 97}/new{count}.txt", content=f"{turn}\n")

    return one


async def _best_us(call: Callable[[int], Awaitable[None]], times: int) -> float:
    """Return the quickest of a few searches, or the median of many small calls."""
    found: list[float] = []
    for turn in range(times):
        start = time.perf_counter()
        await call(turn)
        found.append((time.perf_counter() - start) * 1e6)
    found.sort()
    return found[0] if times == SEARCHES else found[len(found) // 2]


if __name__ == "__main__":
    show(run())
