"""Round trips to a caged SDK plugin, against a bare line ping-pong and the MCP SDK's stdio call.

Round trips run with everything pinned to one CPU: on an idle machine each message wakes a halted
CPU, which costs more than the message. Ours, the floor and the MCP SDK take turns in short rounds,
and the ratios are those within a round, so that a busy machine slows all of them alike. The host
runs on the daemon's own event loop, and so does the host's side of the floor. The calls in flight
run unpinned. The MCP SDK lives in an environment of its own under build/peers/mcp.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from scoreboard import PeerMissing, PeerProcess, Row, at_least, at_most, peer_missing, row, show

ROUNDS = 25
CALLS = 200
MCP_CALLS = 20
BURSTS = 8
BURST = 4000
IN_FLIGHT = 100

BARE_CHILD = """
import asyncio, json, sys
class Echo(asyncio.Protocol):
    def __init__(self, out): self.out, self.rest = out, b""
    def data_received(self, data):
        *lines, self.rest = (self.rest + data).split(b"\\n")
        for line in lines:
            m = json.loads(line)
            reply = {"jsonrpc": "2.0", "id": m["id"], "result": m["params"]}
            self.out.write(json.dumps(reply).encode() + b"\\n")
    def connection_lost(self, exc): asyncio.get_running_loop().stop()
async def main():
    loop = asyncio.get_running_loop()
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    await loop.connect_read_pipe(lambda: Echo(out), sys.stdin)
    await asyncio.Event().wait()
try: asyncio.run(main())
except RuntimeError: pass
"""

PLUGIN = """
import sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import create_plugin
async def echo(params, context): return params
create_plugin("bench", "1.0.0", methods={"echo.say": echo}).start()
"""

MANIFEST = """\
name: bench
version: 1.0.0
kaged_api: 1
description: Echoes.
command: [/usr/bin/env, python3, ./main.py]
capabilities: []
methods: [echo.say]
"""

MCP_SCRIPT = """
import asyncio, statistics, sys, time
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
SERVER = '''
from mcp.server.mcpserver import MCPServer
app = MCPServer("bench")
@app.tool()
def echo(x: int) -> int: return x
app.run()
'''
async def main(calls):
    params = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with stdio_client(params) as (r, w), ClientSession(r, w) as session:
        await session.initialize()
        for _ in range(30): await session.call_tool("echo", {"x": 1})
        print("ready", flush=True)
        while sys.stdin.readline():
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                await session.call_tool("echo", {"x": 1})
                times.append(time.perf_counter() - start)
            print(statistics.median(times), flush=True)
asyncio.run(main(int(sys.argv[1])))
"""


def run() -> list[Row]:
    """Measure and return the rows of the table."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        ours, floor, mcp, missing = uvloop.run(_round_trips())
    finally:
        os.sched_setaffinity(0, before)
    answered, durable = uvloop.run(_bursts())
    ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
    ours_us, floor_us = statistics.median(ours), statistics.median(floor)
    work = "plugin method round trip, caged SDK plugin, validated and audited"
    against = "MCP Python SDK stdio tool call"
    rows = [
        row(
            work,
            ours_us,
            "µs",
            against="bare line ping-pong",
            peer=floor_us,
            ratio=ratio,
            target=at_most(1.5, ratio, "x"),
            samples=ours,
        ),
        row(
            f"{IN_FLIGHT} plugin calls in flight, audited, best of {BURSTS} bursts",
            max(answered),
            "calls/s",
            against="the same until every audit row is on disk",
            peer=max(durable),
            target=at_least(20_000, max(answered), "calls/s"),
            samples=answered,
        ),
    ]
    if missing:
        return [*rows, peer_missing(work, against, missing, ours_us, "µs")]
    faster = statistics.median(b / a for a, b in zip(ours, mcp, strict=True))
    rows.append(
        row(
            work,
            ours_us,
            "µs",
            against=against,
            peer=statistics.median(mcp),
            ratio=1 / faster,
            target=at_least(15, faster, "x faster"),
            samples=ours,
        )
    )
    return rows


@asynccontextmanager
async def _plugin() -> AsyncGenerator[tuple[Any, Any]]:
    """Yield a running caged plugin and the audit log that its calls are written to."""
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.cage import CageSettings, Spawner
    from kaged.config.manifest import parse_manifest
    from kaged.peer import ConnectionLimits
    from kaged.plugins.installed import InstalledPlugin
    from kaged.plugins.parts import HostParts, HostSettings
    from kaged.plugins.plugin import HostedPlugin
    from kaged.store import Store, sqlite_url

    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-"))
    folder.chmod(0o755)
    directory = folder / "plugin"
    directory.mkdir()
    (directory / "main.py").write_text(PLUGIN, encoding="utf-8")
    (directory / "kaged-plugin.yaml").write_text(MANIFEST, encoding="utf-8")
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(folder / "db"), clock=clock, ids=ids, backup_dir=folder / "backup"
    )
    audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=ChainKey(os.urandom(32)))
    spawner = Spawner(CageSettings(cache_dir=folder / "cache"))
    parts = HostParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        ids=ids,
        settings=HostSettings(
            daemon_version="0", limits=ConnectionLimits(open_calls=IN_FLIGHT + 1)
        ),
    )
    plugin = HostedPlugin(
        InstalledPlugin(directory, folder / "data", parse_manifest(MANIFEST).value, "bench"), parts
    )
    try:
        await plugin.start()
        yield plugin, audit
    finally:
        await plugin.stop("bench ended")
        await audit.close()
        await store.close()
        await spawner.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _round_trips() -> tuple[list[float], list[float], list[float], str]:
    """Return the medians of each round in µs: ours, the floor, the MCP SDK; why not the last."""
    from kaged.wire.context import WireContext

    context = WireContext(request_id="req", operator_id="op")
    ours: list[float] = []
    floor: list[float] = []
    mcp: list[float] = []
    async with _plugin() as (plugin, _):

        async def call() -> None:
            await plugin.call_method("echo.say", {"x": 1}, context)

        bare = await _Bare.start()
        peer, missing = _mcp()
        try:
            for _ in range(ROUNDS):
                ours.append(await _median_us(call))
                floor.append(await _median_us(bare.call))
                if peer is not None:
                    mcp.append(await asyncio.to_thread(peer.round_s) * 1e6)
        finally:
            if peer is not None:
                peer.close()
            await bare.close()
    return ours, floor, mcp, missing


def _mcp() -> tuple[PeerProcess | None, str]:
    """Start the MCP SDK's client and server, in processes of their own; or say why not."""
    try:
        return PeerProcess("mcp", MCP_SCRIPT, str(MCP_CALLS)), ""
    except PeerMissing as error:
        return None, str(error)


async def _bursts() -> tuple[list[float], list[float]]:
    """Return the rates of each burst: until all are answered, and until all is on disk."""
    from kaged.wire.context import WireContext

    context = WireContext(request_id="req", operator_id="op")
    answered: list[float] = []
    durable: list[float] = []
    async with _plugin() as (plugin, audit):
        for _ in range(BURSTS):
            todo = BURST

            async def worker() -> None:
                nonlocal todo
                while todo > 0:
                    todo -= 1
                    await plugin.call_method("echo.say", {"x": 1}, context)

            started = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
            answered.append(BURST / (time.perf_counter() - started))
            await audit.flush()
            durable.append(BURST / (time.perf_counter() - started))
    return answered, durable


async def _median_us(call: Any) -> float:
    for _ in range(20):
        await call()
    times: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


class _Bare(asyncio.Protocol):
    """The floor: lines of JSON over pipes with nothing else on either side."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._rest = b""
        self._waiting: asyncio.Future[Any] | None = None
        self._out: asyncio.WriteTransport | None = None

    @classmethod
    async def start(cls) -> _Bare:
        process = subprocess.Popen(
            ["/usr/bin/python3", "-c", BARE_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        bare = cls(process)
        loop = asyncio.get_running_loop()
        bare._out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        await loop.connect_read_pipe(lambda: bare, process.stdout)
        return bare

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._waiting is not None:
                self._waiting.set_result(json.loads(line)["result"])

    async def call(self) -> None:
        assert self._out is not None
        self._waiting = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": 1, "method": "echo.say", "params": {"x": 1}}
        self._out.write(json.dumps(message).encode() + b"\n")
        await self._waiting

    async def close(self) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    show(run())
