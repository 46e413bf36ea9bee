"""The tool desk around an empty tool: all gates and both audit events, against a direct await.

The caller is caged, the tool needs a capability of the cage, its arguments are validated and get a
default. Events go to a real audit log in SQLite; what is on its way to disk is waited for between
batches, not between calls, as in a daemon. The MCP SDK (client and server in one process, connected
in memory, which is its own test transport) lives in an environment of its own under build/peers.
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
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "build" / "peers" / "mcp"
ROUNDS = 5
BATCHES = 20
BATCH = 100
MCP_CALLS = 400

MCP_SCRIPT = """
import asyncio, statistics, sys, time
from mcp import Client
from mcp.server.mcpserver import MCPServer
app = MCPServer("bench")
@app.tool()
def empty(text: str, limit: int = 5) -> dict: return {}
async def main(calls):
    async with Client(app) as client:
        for _ in range(50): await client.call_tool("empty", {"text": "hello"})
        print("ready", flush=True)
        while sys.stdin.readline():
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                await client.call_tool("empty", {"text": "hello"})
                times.append(time.perf_counter() - start)
            print(statistics.median(times), flush=True)
asyncio.run(main(int(sys.argv[1])))
"""


def run() -> list[dict[str, Any]]:
    """Measure and give the rows of the table."""
    ours, direct, mcp, bare = uvloop.run(_rounds())
    added = statistics.median(a - b for a, b in zip(ours, direct, strict=True))
    rows = [
        _row(
            "tool dispatch around an empty tool, all gates and audit: time added",
            added,
            "direct await of the handler",
            statistics.median(direct),
            None,
            "<= 30 µs",
            added <= 30,
        ),
        _row(
            "the same without a place to write audit events to: time added",
            statistics.median(a - b for a, b in zip(bare, direct, strict=True)),
            "direct await of the handler",
            statistics.median(direct),
            None,
            "",
            True,
        ),
    ]
    if mcp:
        faster = statistics.median(b / a for a, b in zip(ours, mcp, strict=True))
        rows.append(
            _row(
                "tool dispatch around an empty tool, all gates and audit",
                statistics.median(ours),
                "MCP Python SDK tool call in memory",
                statistics.median(mcp),
                faster,
                ">= 10 x faster",
                faster >= 10,
            )
        )
    return rows


async def _rounds() -> tuple[list[float], list[float], list[float], list[float]]:
    """Give the medians of each round in µs: the desk, the bare handler, the MCP SDK, no audit."""
    ours: list[float] = []
    direct: list[float] = []
    mcp: list[float] = []
    bare: list[float] = []
    from kaged.base import Ids, SystemClock

    async with _desk() as (desk, context, handler, audit):
        params = {"text": "hello"}
        ids = Ids(SystemClock())
        silent = _Silent()

        # Every call has an id of its own, which the audit log has not seen before.
        def calls() -> list[Any]:
            made = [replace(context, request_id=ids.tagged("req")) for _ in range(BATCH)]
            return [lambda one=one: desk.dispatch("file.empty", params, one) for one in made]

        def directly() -> list[Any]:
            return [lambda: handler(None)] * BATCH

        peer = _Mcp()
        try:
            for _ in range(ROUNDS):
                ours.append(await _median_us(calls, audit.flush))
                direct.append(await _median_us(directly, audit.flush))
                desk._audit = silent
                bare.append(await _median_us(calls, audit.flush))
                desk._audit = audit
                if peer.ready:
                    mcp.append(await asyncio.to_thread(peer.round_us))
        finally:
            peer.close()
    return ours, direct, mcp, bare


@asynccontextmanager
async def _desk() -> AsyncGenerator[tuple[Any, Any, Any, Any]]:
    """Give a desk with one empty tool, a context of a caged caller, the handler, the audit log."""
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
    from kaged.kernel.requirements import CapabilityRequirement
    from kaged.store import Store, sqlite_url
    from kaged.tools import Tool, ToolCallContext, ToolDefinition
    from kaged.tools.dispatch import ToolDesk
    from kaged.tools.registry import ToolRegistry
    from kaged.tools.resolution import AgentTools, EnabledTool
    from kaged.workspace import Workspace

    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-")).resolve()
    clock = SystemClock()
    ids = Ids(clock)
    store = await Store.open(
        sqlite_url(folder / "db"), clock=clock, ids=ids, backup_dir=folder / "backup"
    )
    audit = await AuditLog.open(store.audit, clock=clock, ids=ids, key=ChainKey(os.urandom(32)))

    async def handler(_call: Any) -> Any:
        return {}

    definition = ToolDefinition(
        name="file.empty",
        namespace="file",
        description="Does nothing.",
        parameters={
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1, "default": 5},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        returns={"type": "object"},
        requires=(CapabilityRequirement("shell"),),
    )
    registry = ToolRegistry()
    registry.register(Tool(definition, handler))
    tools = AgentTools(
        agent="primary.subagents.coder",
        enabled=MappingProxyType({"file.empty": EnabledTool("file.empty", "bench")}),
        synthetic=MappingProxyType({}),
    )
    workspace = Workspace(folder)

    class Callers:
        def tools(self, context: Any) -> Any:
            return tools

        def workspace(self, context: Any) -> Any:
            return workspace

    context = ToolCallContext(
        session_id=ids.tagged("ses"),
        run_id=ids.tagged("run"),
        caller="primary.subagents.coder",
        project_id=ids.tagged("prj"),
        project_root=str(folder),
        cage_policy=CagePolicy(
            fs=(FsGrant(str(folder), FsMode.RW),), capabilities=frozenset({"shell"})
        ),
        request_id=ids.tagged("req"),
    )
    try:
        yield ToolDesk(registry, Callers(), audit, clock), context, handler, audit
    finally:
        await audit.close()
        await store.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Silent:
    """An audit log that keeps nothing, to see what the desk alone costs."""

    async def record(self, _event: Any, *, durable: bool | None = None) -> None:
        return None

    def post(self, _event: Any) -> None:
        return None

    async def flush(self) -> None:
        return None


async def _median_us(batch: Any, settle: Any) -> float:
    times: list[float] = []
    for _ in range(BATCHES):
        await settle()
        for call in batch():
            started = time.perf_counter()
            await call()
            times.append(time.perf_counter() - started)
    await settle()
    return statistics.median(times) * 1e6


class _Mcp:
    """The MCP SDK in a process of its own; one round whenever it is told."""

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
    against: str,
    peer: float | None,
    ratio: float | None,
    target: str,
    met: bool,
) -> dict[str, Any]:
    return {
        "work": work,
        "ours": round(ours, 1),
        "unit": "µs",
        "against": against,
        "peer": None if peer is None else round(peer, 2),
        "ratio": None if ratio is None else round(ratio, 2),
        "target": target,
        "verdict": "met" if met else "missed",
    }
