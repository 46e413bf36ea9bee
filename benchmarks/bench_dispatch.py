"""The dispatcher around an empty tool: all gates and both audit events, against a direct await.

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
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvloop

from scoreboard import PeerMissing, PeerProcess, Row, at_least, at_most, peer_missing, row, show

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


def run() -> list[Row]:
    """Measure and return the rows of the table."""
    ours, direct, mcp, bare, missing = uvloop.run(_rounds())
    added = [a - b for a, b in zip(ours, direct, strict=True)]
    silent = [a - b for a, b in zip(bare, direct, strict=True)]
    work = "tool dispatch around an empty tool, all gates and audit"
    against = "MCP Python SDK tool call in memory"
    rows = [
        row(
            f"{work}: time added",
            statistics.median(added),
            "µs",
            against="direct await of the handler",
            peer=statistics.median(direct),
            target=at_most(30, statistics.median(added), "µs"),
            samples=added,
        ),
        row(
            "the same without a place to write audit events to: time added",
            statistics.median(silent),
            "µs",
            against="direct await of the handler",
            peer=statistics.median(direct),
            samples=silent,
        ),
    ]
    if missing:
        return [*rows, peer_missing(work, against, missing, statistics.median(ours), "µs")]
    faster = statistics.median(b / a for a, b in zip(ours, mcp, strict=True))
    rows.append(
        row(
            work,
            statistics.median(ours),
            "µs",
            against=against,
            peer=statistics.median(mcp),
            ratio=1 / faster,
            target=at_least(10, faster, "x faster"),
            samples=ours,
        )
    )
    return rows


async def _rounds() -> tuple[list[float], list[float], list[float], list[float], str]:
    """Return each round's medians in µs: dispatch, the bare handler, the MCP SDK, no audit.

    The last one says why the MCP SDK is missing, if it is.
    """
    ours: list[float] = []
    direct: list[float] = []
    mcp: list[float] = []
    bare: list[float] = []
    from kaged.base import Ids, SystemClock

    async with _dispatcher() as (dispatcher, context, handler, audit):
        params = {"text": "hello"}
        ids = Ids(SystemClock())
        silent = _Silent()

        # Every call has an id of its own, which the audit log has not seen before.
        def calls() -> list[Any]:
            made = [replace(context, request_id=ids.tagged("req")) for _ in range(BATCH)]
            return [lambda one=one: dispatcher.dispatch("file.empty", params, one) for one in made]

        def directly() -> list[Any]:
            return [lambda: handler(None)] * BATCH

        peer, missing = _mcp()
        try:
            for _ in range(ROUNDS):
                ours.append(await _median_us(calls, audit.flush))
                direct.append(await _median_us(directly, audit.flush))
                dispatcher._audit = silent
                bare.append(await _median_us(calls, audit.flush))
                dispatcher._audit = audit
                if peer is not None:
                    mcp.append(await asyncio.to_thread(peer.round_s) * 1e6)
        finally:
            if peer is not None:
                peer.close()
    return ours, direct, mcp, bare, missing


def _mcp() -> tuple[PeerProcess | None, str]:
    """Start the MCP SDK in a process of its own; or say why not."""
    try:
        return PeerProcess("mcp", MCP_SCRIPT, str(MCP_CALLS)), ""
    except PeerMissing as error:
        return None, str(error)


@asynccontextmanager
async def _dispatcher() -> AsyncGenerator[tuple[Any, Any, Any, Any]]:
    """Yield a dispatcher with one empty tool, a caged context, the handler and the audit log."""
    from kaged.audit import AuditLog, ChainKey
    from kaged.base import Ids, SystemClock
    from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
    from kaged.kernel.requirements import CapabilityRequirement
    from kaged.store import Store, sqlite_url
    from kaged.tools import Tool, ToolCallContext, ToolDefinition
    from kaged.tools.dispatch import ToolDispatcher
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

        def could_have(self, context: Any, name: str) -> bool:
            return False

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
        yield ToolDispatcher(registry, Callers(), audit, clock), context, handler, audit
    finally:
        await audit.close()
        await store.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Silent:
    """An audit log that keeps nothing, to see what dispatch alone costs."""

    async def record(self, _event: Any, *, durable: bool | None = None) -> None:
        return None

    def offer(self, _event: Any) -> bool:
        return True

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


if __name__ == "__main__":
    show(run())
