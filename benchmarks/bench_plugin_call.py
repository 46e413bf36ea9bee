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
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "build" / "peers" / "mcp"
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


def run() -> list[dict[str, Any]]:
    """Measure and give the rows of the table."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        ours, floor, mcp = uvloop.run(_round_trips())
    finally:
        os.sched_setaffinity(0, before)
    per_s, durable_per_s = uvloop.run(_bursts())
    ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
    ours_us, floor_us = statistics.median(ours), statistics.median(floor)
    rows = [
        _row(
            "plugin method round trip, caged SDK plugin, validated and audited",
            ours_us,
            "µs",
            "bare line ping-pong",
            floor_us,
            ratio,
            "<= 1.5 x",
            ratio <= 1.5,
        ),
        _row(
            f"{IN_FLIGHT} plugin calls in flight, audited, best of {BURSTS} bursts",
            per_s,
            "calls/s",
            "the same until every audit row is on disk",
            durable_per_s,
            None,
            ">= 20,000/s",
            per_s >= 20_000,
        ),
    ]
    if mcp:
        faster = statistics.median(b / a for a, b in zip(ours, mcp, strict=True))
        rows.append(
            _row(
                "plugin method round trip, caged SDK plugin, validated and audited",
                ours_us,
                "µs",
                "MCP Python SDK stdio tool call",
                statistics.median(mcp),
                faster,
                ">= 15 x faster",
                faster >= 15,
            )
        )
    return rows


@asynccontextmanager
async def _plugin() -> AsyncGenerator[tuple[Any, Any]]:
    """Give a running caged plugin and the audit log that its calls are written to."""
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.cage import CageSettings, Spawner
    from kaged.config.manifest import parse_manifest
    from kaged.peer import ConnectionLimits
    from kaged.plugins.installed import InstalledPlugin
    from kaged.plugins.parts import HostParts, HostSettings
    from kaged.plugins.plugin import Plugin
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
    plugin = Plugin(
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


async def _round_trips() -> tuple[list[float], list[float], list[float]]:
    """Give the medians of each round in µs: ours, the floor, the MCP SDK."""
    from kaged.wire.context import CallContext

    context = CallContext(request_id="req", operator_id="op")
    ours: list[float] = []
    floor: list[float] = []
    mcp: list[float] = []
    async with _plugin() as (plugin, _):

        async def call() -> None:
            await plugin.call_method("echo.say", {"x": 1}, context)

        bare = await _Bare.start()
        peer = _Mcp()
        try:
            for _ in range(ROUNDS):
                ours.append(await _median_us(call))
                floor.append(await _median_us(bare.call))
                if peer.ready:
                    mcp.append(await asyncio.to_thread(peer.round_us))
        finally:
            peer.close()
            await bare.close()
    return ours, floor, mcp


async def _bursts() -> tuple[float, float]:
    """Give the best rates of a burst: until all are answered, and until all is on disk."""
    from kaged.wire.context import CallContext

    context = CallContext(request_id="req", operator_id="op")
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
    return max(answered), max(durable)


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


class _Mcp:
    """The MCP SDK's client and server in processes of their own; one round whenever it is told."""

    def __init__(self) -> None:
        python = PEER / "bin" / "python"
        if not python.exists():
            print("  preparing the MCP SDK in its own environment", flush=True)
            PEER.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", "mcp"], check=True)
        self._process = subprocess.Popen(
            [str(python), "-c", MCP_SCRIPT, str(MCP_CALLS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.ready = self._process.stdout.readline() == "ready\n"
        if not self.ready:
            _, why = self._process.communicate()
            print(f"  the MCP SDK did not run: {why[-300:]}", flush=True)

    def round_us(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) * 1e6

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _row(
    work: str,
    ours: float,
    unit: str,
    against: str,
    peer: float | None,
    ratio: float | None,
    target: str,
    met: bool,
) -> dict[str, Any]:
    return {
        "work": work,
        "ours": round(ours, 1),
        "unit": unit,
        "against": against,
        "peer": None if peer is None else round(peer, 1),
        "ratio": None if ratio is None else round(ratio, 2),
        "target": target,
        "verdict": "met" if met else "missed",
    }
