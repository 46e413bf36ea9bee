"""What can go wrong with an MCP server."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError
from kaged.tools import ToolError


class McpServerInvalid(KagedError):
    """The description of an MCP server cannot be used."""

    code: ClassVar[str] = "mcp_server_invalid"


class McpServerNotFound(KagedError):
    """config.toml names no MCP server of that name."""

    code: ClassVar[str] = "mcp_server_not_found"


class McpServerUnavailable(ToolError):
    """An MCP server does not start, does not speak the protocol, or has ended."""

    code: ClassVar[str] = "mcp_server_unavailable"


class McpCallFailed(ToolError):
    """An MCP server refused a call, or its tool failed."""

    code: ClassVar[str] = "mcp_call_failed"


class McpAnswerInvalid(McpCallFailed):
    """An MCP server answered with an invalid result, or not the one it declares."""

    code: ClassVar[str] = "mcp_answer_invalid"
