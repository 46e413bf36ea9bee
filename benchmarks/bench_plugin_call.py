"""Round trips to a caged SDK plugin, against a bare line ping-pong and the MCP SDK's stdio call.

Everything is pinned to one CPU: on an idle machine each message wakes a halted CPU, which costs
more than the message. The MCP SDK lives in an environment of its own under build/peers/mcp.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "build" / "peers" / "mcp"
ROUNDS = 5
CALLS = 1500
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
from mcp.server.fastmcp import FastMCP
app = FastMCP("bench")
@app.tool()
def echo(x: int) -> int: return x
app.run()
'''
async def main():
    params = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with stdio_client(params) as (r, w), ClientSession(r, w) as session:
        await session.initialize()
        for _ in range(50): await session.call_tool("echo", {"x": 1})
        times = []
        for _ in range(300):
            start = time.perf_counter()
            await session.call_tool("echo", {"x": 1})
            times.append(time.perf_counter() - start)
        print(statistics.median(times))
asyncio.run(main())
"""


def run() -> list[dict[str, Any]]:
    """Measure and give the rows of the table."""
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        ours_us, floor_us, per_s = asyncio.run(_measure())
    finally:
        os.sched_setaffinity(0, before)
    mcp_us = _mcp_us(cpu)
    rows = [
        _row(
            "plugin method round trip, caged SDK plugin",
            ours_us,
            "µs",
            "bare line ping-pong",
            floor_us,
            ours_us / floor_us,
            "<= 1.5 x",
            ours_us / floor_us <= 1.5,
        ),
        _row(
            f"{IN_FLIGHT} plugin calls in flight",
            per_s,
            "calls/s",
            "",
            None,
            None,
            ">= 20,000/s",
            per_s >= 20_000,
        ),
    ]
    if mcp_us is not None:
        rows.append(
            _row(
                "plugin method round trip, caged SDK plugin",
                ours_us,
                "µs",
                "MCP Python SDK stdio tool call",
                mcp_us,
                mcp_us / ours_us,
                ">= 15 x faster",
                mcp_us / ours_us >= 15,
            )
        )
    return rows


async def _measure() -> tuple[float, float, float]:
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.cage import CageSettings, Spawner
    from kaged.config.manifest import parse_manifest
    from kaged.peer import ConnectionLimits
    from kaged.plugins.installed import InstalledPlugin
    from kaged.plugins.parts import HostParts, HostSettings
    from kaged.plugins.plugin import Plugin
    from kaged.store import Store, sqlite_url
    from kaged.wire.context import CallContext

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
        context = CallContext(request_id="req", operator_id="op")

        async def call() -> None:
            await plugin.call_method("echo.say", {"x": 1}, context)

        bare = await _Bare.start()
        ours: list[float] = []
        floor: list[float] = []
        for _ in range(ROUNDS):
            ours.append(await _median_us(call))
            floor.append(await _median_us(bare.call))
        rates: list[float] = []
        for _ in range(3):
            started = time.perf_counter()
            todo = BURST

            async def worker() -> None:
                nonlocal todo
                while todo > 0:
                    todo -= 1
                    await call()

            await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
            rates.append(BURST / (time.perf_counter() - started))
        await bare.close()
        return min(ours), min(floor), max(rates)
    finally:
        await plugin.stop("bench ended")
        await audit.close()
        await store.close()
        await spawner.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _median_us(call: Any) -> float:
    for _ in range(100):
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


def _mcp_us(cpu: int) -> float | None:
    python = PEER / "bin" / "python"
    if not python.exists():
        print("  preparing the MCP SDK in its own environment", flush=True)
        PEER.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "mcp"], check=True)
    done = subprocess.run(
        ["taskset", "-c", str(cpu), str(python), "-c", MCP_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode != 0:
        print(f"  the MCP SDK did not run: {done.stderr[-300:]}", flush=True)
        return None
    return float(done.stdout.strip()) * 1e6


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
