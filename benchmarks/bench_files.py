"""The file tools through dispatch, and what the path guard adds to a plain read.

Run it alone with `python benchmarks/bench_files.py`; `run()` returns the suite's rows. Each
figure is the best of several rounds, and each peer is measured in the same rounds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.tool_lab import ToolLab  # pyright: ignore[reportMissingImports] - beside the tests
from kaged.toolbox.files import file_tools
from kaged.tools import ToolError
from kaged.workspace import PlannedWrite, Workspace
from scoreboard import Row, at_most, row, show

READ_MS = 2.0
ROUNDS = 60
CALLERS = 50
TURNS = 10


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kaged-bench-files-") as folder:
        root = Path(folder).resolve()
        return [
            *asyncio.run(_tools(root)),
            _resolve(root),
            asyncio.run(_callers(root)),
            _many_files(root),
        ]


async def _tools(root: Path) -> list[Row]:
    target = root / "read.py"
    target.write_text(
        "".join(f"    value_{n} = compute({n}, other={n * 2})  # line\n" for n in range(2000)),
        encoding="utf-8",
    )
    lab = ToolLab(root, file_tools())
    await lab.call("file.read", path="read.py")
    flip = ("value_1000 ", "value_9000 ")

    async def read() -> None:
        await lab.call("file.read", path="read.py")

    async def plain_read() -> None:
        lines = target.read_text(encoding="utf-8").splitlines()
        "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))

    async def edit() -> None:
        nonlocal flip
        await lab.call("edit.text", path="read.py", old_string=flip[0], new_string=flip[1])
        flip = (flip[1], flip[0])

    plain = root / "plain.py"
    plain.write_bytes(target.read_bytes())

    async def plain_edit() -> None:
        """The least that an atomic edit can be: read, replace, temporary file, flush, rename."""
        data = plain.read_bytes().replace(b"value_1 ", b"value_2 ")
        temporary = plain.with_suffix(".tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, data)
        os.fsync(handle)
        os.close(handle)
        temporary.rename(plain)

    read_ms, plain_read_ms = await _rounds_ms(read, plain_read)
    edit_ms, plain_edit_ms = await _rounds_ms(edit, plain_edit)
    return [
        row(
            "file.read of 2,000 lines through the desk, with hash, lock and audit",
            min(read_ms),
            "ms",
            against="reading and numbering the lines in place",
            peer=min(plain_read_ms),
            target=at_most(READ_MS, min(read_ms), "ms"),
            samples=read_ms,
        ),
        row(
            "edit.text in a file of 2,000 lines through the desk",
            min(edit_ms),
            "ms",
            against="read, replace, flush and rename, and nothing else",
            peer=min(plain_edit_ms),
            target=at_most(3, min(edit_ms) / min(plain_edit_ms), "x"),
            samples=edit_ms,
        ),
    ]


def _resolve(root: Path) -> Row:
    (root / "src" / "deep").mkdir(parents=True, exist_ok=True)
    (root / "src" / "deep" / "a.py").touch()
    workspace = Workspace(root)
    text = "./src/deep/a.py"
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(100):
            workspace.resolve(text)
        middle = time.perf_counter()
        for _ in range(100):
            os.path.realpath(os.path.join(workspace.root, text))  # noqa: PTH118 - what it is against
        ours.append((middle - start) / 100 * 1e6)
        peer.append((time.perf_counter() - middle) / 100 * 1e6)
    return row(
        "a path of three components through the guard",
        min(ours),
        "µs",
        against="os.path.realpath",
        peer=min(peer),
        target=at_most(1, min(ours) / min(peer), "x"),
        samples=ours,
    )


async def _callers(root: Path) -> Row:
    """Fifty agents on one project, each with files of its own and five that all of them share."""
    workspace = Workspace(root)
    for number in range(5):
        (root / f"shared{number}").write_text("0\n" * 200, encoding="utf-8")
    busy = 0

    async def work(number: int) -> None:
        nonlocal busy
        caller = f"primary.subagents.c{number}"
        lab = ToolLab(root, file_tools(), caller=caller, workspace=workspace)
        for turn in range(TURNS):
            shared = f"shared{(number + turn) % 5}"
            await lab.call("file.read", path=shared)
            try:
                await lab.call("file.write", path=shared, content=f"{number}\n" * 200)
            except ToolError as error:
                # Somebody else was faster: that is how it should be, and no lock error.
                busy += error.code == "file_busy"
            await lab.call("file.write", path=f"own{number}", content=f"{turn}\n")

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(work(number))
    took = time.perf_counter() - start
    calls = CALLERS * TURNS * 3
    return row(
        f"{CALLERS} callers at once, {calls / took:,.0f} calls per second: file_busy answers",
        busy,
        "errors",
        target=at_most(0, busy, "errors"),
    )


def _many_files(root: Path) -> Row:
    workspace = Workspace(root)
    for number in range(1000):
        place = root / "many" / f"d{number % 50}" / f"f{number}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"old\n" * 500)
    paths = [workspace.resolve(f"many/d{n % 50}/f{n}") for n in range(1000)]
    plain = root / "plain"
    plain.mkdir()
    ours: list[float] = []
    peer: list[float] = []
    for turn in range(3):
        content = b"%03d\n" % turn * 500
        start = time.perf_counter()
        workspace.write_all(PlannedWrite(path, content) for path in paths)
        middle = time.perf_counter()
        for number in range(1000):
            (plain / "temporary").write_bytes(content)
            (plain / "temporary").rename(plain / f"f{number}")
        os.sync()
        ours.append((middle - start) * 1000)
        peer.append((time.perf_counter() - middle) * 1000)
    return row(
        "1,000 files changed all or none",
        min(ours),
        "ms",
        against="as many files written and renamed one by one, and one sync",
        peer=min(peer),
        target=at_most(3, min(ours) / min(peer), "x"),
        samples=ours,
    )


async def _rounds_ms(
    ours: Callable[[], Awaitable[None]], peer: Callable[[], Awaitable[None]]
) -> tuple[list[float], list[float]]:
    """Time both in turn; the best of each counts."""
    our_ms: list[float] = []
    peer_ms: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        await ours()
        middle = time.perf_counter()
        await peer()
        our_ms.append((middle - start) * 1000)
        peer_ms.append((time.perf_counter() - middle) * 1000)
    return our_ms, peer_ms


if __name__ == "__main__":
    show(run())
