"""`McpHost`: every outside server of this daemon, and their tools at dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.log import get_logger
from kaged.config.toolrules import glob_matches
from kaged.mcp.catalog import OutsideTool
from kaged.mcp.content import RESULT_SCHEMA, outside_text
from kaged.mcp.outside import OutsideServer
from kaged.mcp.plan import OutsideParts, OutsidePlan
from kaged.tools import Tool, ToolDefinition, ToolError, ToolInvocation, ToolSource
from kaged.tools.registry import ToolRegistry
from kaged.tools.result_text import ResultView

_log = get_logger("kaged.mcp")


class McpHost:
    """Runs the servers that the configuration names; adds and takes away their tools."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._servers: dict[str, OutsideServer] = {}
        self._registered: dict[str, dict[str, OutsideTool]] = {}
        self._turn = asyncio.Lock()

    async def use(self, plans: Mapping[str, OutsidePlan], parts: OutsideParts) -> None:
        """Bring what runs in line with the configuration; what did not change goes on running."""
        async with self._turn:
            for name, server in list(self._servers.items()):
                if plans.get(name) != server.plan:
                    await server.stop()
                    self.tools_changed(server)
                    del self._servers[name]
            fresh = [
                OutsideServer(plan, parts)
                for name, plan in plans.items()
                if name not in self._servers
            ]
            self._servers |= {server.name: server for server in fresh}
            await asyncio.gather(*(server.start() for server in fresh))

    async def close(self) -> None:
        """End every server."""
        async with self._turn:
            await asyncio.gather(*(server.stop() for server in self._servers.values()))

    def get(self, name: str) -> OutsideServer:
        """Return a server. Raises `mcp_server_not_found`."""
        found = self._servers.get(name)
        if found is None:
            known = ", ".join(sorted(self._servers)) or "none"
            raise KagedError(
                f"There is no MCP server {name!r}.",
                code="mcp_server_not_found",
                fix=f"config.toml names these: {known}.",
            )
        return found

    @property
    def servers(self) -> Sequence[OutsideServer]:
        """All of them, by name."""
        return [self._servers[name] for name in sorted(self._servers)]

    def admits(self, server: str, agent: str, project: Sequence[str]) -> bool:
        """Return whether the operator lets an agent use a server; `project` are a project's names.

        What is no server of ours is not for this host to decide.
        """
        known = self._servers.get(server)
        if known is None:
            return True
        plan = known.plan
        here = not plan.projects or any(name in plan.projects for name in project)
        return here and (
            not plan.agents or any(glob_matches(pattern, agent) for pattern in plan.agents)
        )

    def tools_changed(self, server: OutsideServer) -> None:
        """Bring the registry in line with what a server offers now."""
        wanted = {one.name: one for one in server.tools}
        known = self._registered.setdefault(server.name, {})
        for name, tool in list(known.items()):
            if wanted.get(name) != tool:
                self._registry.withdraw(name)
                del known[name]
        for name, tool in wanted.items():
            if name in known:
                continue
            try:
                self._registry.register(_tool(server, tool), outside=True)
            except ToolError as error:
                # One tool that cannot be taken in holds up neither its server nor the others.
                _log.warning("mcp.tool_not_registered", tool=name, error=str(error))
                continue
            known[name] = tool


def _tool(server: OutsideServer, tool: OutsideTool) -> Tool:
    async def forward(call: ToolInvocation) -> JsonValue:
        return await server.call(tool, call.args, call.headers)

    returns: JsonObject = dict(RESULT_SCHEMA)
    # References inside the server's schema would point into ours.
    if tool.output is not None and not _refers(tool.output):
        returns["properties"] = {**_properties(RESULT_SCHEMA), "structured": tool.output}
    return Tool(
        ToolDefinition(
            name=tool.name,
            namespace=server.name,
            description=tool.description,
            parameters=tool.parameters,
            returns=returns,
            requires=(),
            source=ToolSource.PLUGIN,
            plugin_name=server.name,
            version=tool.digest[:16],
        ),
        forward,
        # What an outside server does with a call is its own business, so it counts as a change.
        changes=True,
        reaches_net=server.plan.reaches_net,
        labels=server.plan.labels,
        annotations=tool.annotations,
        endpoint=server.plan.endpoint,
        view=ResultView(write=outside_text),
    )


def _properties(schema: JsonObject) -> JsonObject:
    found = schema["properties"]
    assert isinstance(found, dict)
    return found


def _refers(schema: JsonValue) -> bool:
    if isinstance(schema, list):
        return any(map(_refers, schema))
    if isinstance(schema, dict):
        return "$ref" in schema or any(map(_refers, schema.values()))
    return False
