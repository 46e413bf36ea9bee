"""MCP in and out: our stdio round trip against a bare SDK server's, our client against the SDK's.

Ours, `kaged mcp`: a client of the SDK, a process that relays, the daemon with every gate and the
audit trail on, a file that is read. The peer: the same client, and a server of the SDK alone that
reads the same file. Both take turns in short rounds, and the ratios are those within a round.

The other way round: a tool of an outside SDK server, called in its cage through our client with
approval, parsing and limits, against the SDK's own client on an uncaged one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scoreboard import Row, at_most, row, show

ROUNDS = 12
CALLS = 40

BARE = """
import sys
from pathlib import Path
from mcp.server.mcpserver import MCPServer
app = MCPServer("bench")
@app.tool()
def read(path: str) -> dict:
    return {"path": path, "content": Path(sys.argv[1], path).read_text()}
app.run()
"""

PROJECT = """\
version: 1
project: bench
primary:
  model: default
  system_prompt: You read.
  cage: {fs: [{mode: ro, path: .}]}
  tools: {file.*: {enabled: true}}
"""


def run() -> list[Row]:
    """Measure and return the rows of the table."""
    ours, bare = asyncio.run(_served())
    called, theirs = asyncio.run(_called())
    served = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    outside = statistics.median(a / b for a, b in zip(called, theirs, strict=True))
    return [
        row(
            "file_read of a caged agent over `kaged mcp`, all gates and audit",
            statistics.median(ours),
            "µs",
            against="bare SDK stdio server that reads the file",
            peer=statistics.median(bare),
            ratio=served,
            target=at_most(3, served, "x"),
            samples=ours,
        ),
        row(
            "tool of a caged outside SDK server through our client",
            statistics.median(called),
            "µs",
            against="the SDK's client on the same server, uncaged",
            peer=statistics.median(theirs),
            ratio=outside,
            target=at_most(1, outside, "x"),
            samples=called,
        ),
    ]


async def _served() -> tuple[list[float], list[float]]:
    """Return the medians of each round in µs: `kaged mcp`, the bare server."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    folder = Path(tempfile.mkdtemp(prefix="kgb-")).resolve()
    project = folder / "p"
    (project / ".kaged").mkdir(parents=True)
    (project / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    (project / "a.txt").write_text("hello\n", encoding="utf-8")
    env = {**os.environ, "KAGED_HOME": str(folder / "h"), "HOME": str(folder)}
    kaged = [sys.executable, "-m", "kaged.cli"]
    try:
        loaded = [*kaged, "project", "load", "--trust", str(project)]
        await asyncio.to_thread(subprocess.run, loaded, env=env, check=True, capture_output=True)
        ours = StdioServerParameters(
            command=kaged[0], args=[*kaged[1:], "mcp", "--project", str(project)], env=env
        )
        bare = StdioServerParameters(command=sys.executable, args=["-c", BARE, str(project)])
        async with (
            stdio_client(ours) as (r1, w1),
            ClientSession(r1, w1) as mine,
            stdio_client(bare) as (r2, w2),
            ClientSession(r2, w2) as theirs,
        ):
            await mine.initialize()
            await theirs.initialize()
            return await _rounds(
                lambda: mine.call_tool("file_read", {"path": "a.txt"}),
                lambda: theirs.call_tool("read", {"path": "a.txt"}),
            )
    finally:
        stop = [*kaged, "daemon", "stop", "--force"]
        await asyncio.to_thread(subprocess.run, stop, env=env, check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


async def _called() -> tuple[list[float], list[float]]:
    """Return the medians of each round in µs: through our client, through the SDK's."""
    import mcp
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.cage import CageKind, CageRequest, CageSettings, Spawner
    from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
    from kaged.mcp.approvals import Approvals
    from kaged.mcp.outside import OutsideServer
    from kaged.mcp.plan import OutsideParts, OutsidePlan
    from kaged.store import Store, sqlite_url

    folder = Path(tempfile.mkdtemp(prefix="kgb-")).resolve()
    folder.chmod(0o755)
    (folder / "a.txt").write_text("hello\n", encoding="utf-8")
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(folder / "db"), clock=clock, ids=ids, backup_dir=folder / "backup"
    )
    audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=ChainKey(os.urandom(32)))
    spawner = Spawner(CageSettings(cache_dir=folder / "cache"))
    libraries = str(Path(mcp.__file__).parents[1])
    request = CageRequest(
        name="mcp:bench",
        policy=CagePolicy(
            fs=(FsGrant(libraries, FsMode.RO), FsGrant(str(folder / "a.txt"), FsMode.RO)),
            limits=CageLimits(memory_mb=1024),
        ),
        command=(os.path.realpath(sys.executable), "-c", BARE, str(folder)),
        kind=CageKind.SERVER,
        env=(("PYTHONPATH", libraries),),
    )
    parts = OutsideParts(spawner, audit, clock, Approvals(folder / "agreed"), lambda _server: None)
    server = OutsideServer(OutsidePlan("bench", request), parts)
    bare = StdioServerParameters(command=sys.executable, args=["-c", BARE, str(folder)])
    try:
        await server.start()
        (tool,) = server.tools
        async with stdio_client(bare) as (reader, writer), ClientSession(reader, writer) as theirs:
            await theirs.initialize()
            return await _rounds(
                lambda: server.call(tool, {"path": "a.txt"}),
                lambda: theirs.call_tool("read", {"path": "a.txt"}),
            )
    finally:
        await server.stop()
        await audit.close()
        await store.close()
        await spawner.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _rounds(
    ours: Callable[[], Awaitable[Any]], theirs: Callable[[], Awaitable[Any]]
) -> tuple[list[float], list[float]]:
    for call in (ours, theirs):
        for _ in range(20):
            await call()
    mine: list[float] = []
    others: list[float] = []
    for _ in range(ROUNDS):
        mine.append(await _median_us(ours))
        others.append(await _median_us(theirs))
    return mine, others


async def _median_us(call: Callable[[], Awaitable[Any]]) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    show(run())
