"""What can go wrong with an MCP server."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class McpServerInvalid(KagedError):
    """The description of an MCP server cannot be used."""

    code: ClassVar[str] = "mcp_server_invalid"


class McpServerUnavailable(KagedError):
    """An MCP server does not start, does not speak the protocol, or has ended."""

    code: ClassVar[str] = "mcp_server_unavailable"


class McpCallFailed(KagedError):
    """An MCP server refused a call, or its tool failed."""

    code: ClassVar[str] = "mcp_call_failed"


__all__ = ["McpCallFailed", "McpServerInvalid", "McpServerUnavailable"]
