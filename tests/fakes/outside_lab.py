"""Outside MCP servers in real cages, without a daemon around them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from fakes.mcp_lab import PYTHON, ROGUE
from fakes.stocked_cache import stocked
from fakes.tool_lab import RecordedAudit
from kaged.base import JsonValue, SystemClock
from kaged.cage import CageKind, CageRequest, CageSettings, Spawner
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from kaged.mcp.approvals import Approvals
from kaged.mcp.host import McpHost
from kaged.mcp.outside import OutsideServer
from kaged.mcp.plan import OutsideParts, OutsidePlan
from kaged.mcp.states import McpServerState
from kaged.tools import ToolInvocation
from kaged.tools.registry import ToolRegistry

WAIT_S = 60


class OutsideLab:
    """Starts servers of the rogue kind; waits between restarts take no time."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o777, exist_ok=True)
        self.audit = RecordedAudit()
        self.spawner = Spawner(CageSettings(cache_dir=stocked(folder / "cache")))
        self.registry = ToolRegistry()
        self.host = McpHost(self.registry)
        self.approvals = Approvals(folder / "approvals.json")
        self.waited: list[float] = []
        self.servers: list[OutsideServer] = []

    def plan(
        self, mode: str, *arguments: str, name: str = "out", env: dict[str, str] | None = None,
        **more: Any,
    ) -> OutsidePlan:  # fmt: skip
        """Describe a rogue server; it may write the lab's state folder."""
        policy = CagePolicy(
            fs=(FsGrant(str(ROGUE), FsMode.RO), FsGrant(str(self.state), FsMode.RW)),
            limits=CageLimits(memory_mb=256),
        )
        request = CageRequest(
            name=f"mcp:{name}",
            policy=policy,
            command=(PYTHON, str(ROGUE), mode, str(self.state), *arguments),
            kind=CageKind.SERVER,
            env=tuple((env or {}).items()),
        )
        more.setdefault("timeout_s", 30.0)
        return OutsidePlan(name=name, request=request, **more)

    async def start(self, mode: str, *arguments: str, **options: Any) -> OutsideServer:
        """Start a server and put its tools at dispatch."""
        server = OutsideServer(self.plan(mode, *arguments, **options), self.parts())
        self.servers.append(server)
        await server.start()
        return server

    def parts(self) -> OutsideParts:
        """Return what servers share."""

        async def sleep(seconds: float) -> None:
            self.waited.append(seconds)
            await asyncio.sleep(0)

        return OutsideParts(
            spawner=self.spawner,
            audit=cast("Any", self.audit),
            clock=SystemClock(),
            approvals=self.approvals,
            on_tools=self.host.tools_changed,
            sleep=sleep,
        )

    async def call(self, name: str, **arguments: JsonValue) -> Any:
        """Call a registered tool's handler, as dispatch does."""
        entry = self.registry.get(name)
        assert entry is not None, f"{name} is not registered; there are {self.registry.names()}"
        call = ToolInvocation(cast("Any", None), arguments, (), None, cast("Any", None),
                        cast("Any", self.audit), name)  # fmt: skip
        return await entry.tool.handler(call)

    async def until(self, server: OutsideServer, state: McpServerState) -> None:
        """Wait until a server has come to a state."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if server.state is state:
                    return
                await asyncio.sleep(0.01)

    async def recorded(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many events of one name are on record."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = self.audit.of(event)
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """End everything."""
        for server in self.servers:
            await server.stop()
        await self.spawner.close()
