"""`plugin_kinds`: what runs the policy plugins that are no trusted classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kaged.cage import Spawner

if TYPE_CHECKING:
    from kaged.pipeline.external import McpSession
    from kaged.pipeline.kinds import PluginKind

MCP_CALL_TIMEOUT_S: Final = 3600.0
"""Beyond any plugin's own timeout, which the pipeline keeps."""


def plugin_kinds(spawner: Spawner) -> Mapping[str, PluginKind]:
    """Return the kinds of plugins beside trusted classes: caged workers, outside MCP servers."""
    from kaged.pipeline.caged import CagedKind  # noqa: PLC0415  # only when configured
    from kaged.pipeline.external import ExternalKind  # noqa: PLC0415  # only when configured

    async def connect(name: str, table: dict[str, Any]) -> McpSession:
        from kaged.mcp.server import McpServer  # noqa: PLC0415  # only for external plugins
        from kaged.mcp.table import cage_request, parse_table  # noqa: PLC0415  # as above

        title = f"pipeline:{name}"
        request = cage_request(title, parse_table(table))
        server = McpServer(spawner, request, name=title, timeout_s=MCP_CALL_TIMEOUT_S)
        await server.open()
        return server

    return {"caged": CagedKind(spawner), "external": ExternalKind(connect)}
