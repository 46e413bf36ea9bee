"""What can go wrong with an MCP server."""

from __future__ import annotations

from kaged.tools import ToolError


class McpServerUnavailable(ToolError):
    """An MCP server does not start, does not speak the protocol, or has ended."""

    code = "mcp_server_unavailable"


class McpCallFailed(ToolError):
    """An MCP server refused a call, or its tool failed."""

    code = "mcp_call_failed"


class McpAnswerInvalid(McpCallFailed):
    """An MCP server answered with an invalid result, or not the one it declares."""

    code = "mcp_answer_invalid"
