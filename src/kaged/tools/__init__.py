"""The dispatcher: `ToolDefinition` and `Tool`, `ToolCallContext`, `ToolCall` and `ToolError`."""

from kaged.tools.call import ToolCall
from kaged.tools.context import ROOT_CALLER, ToolCallContext
from kaged.tools.definition import PathParam, Tool, ToolDefinition, ToolSource, no_paths
from kaged.tools.errors import (
    CapabilityRefused,
    InvalidParams,
    PluginUnavailable,
    PrincipalScopeViolation,
    SeccompRefused,
    ToolError,
    ToolErrorCode,
    ToolInternalError,
    ToolNameCollision,
    ToolNotEnabled,
    ToolNotFound,
    ToolRefused,
    tool_error_of,
)

__all__ = [
    "ROOT_CALLER",
    "CapabilityRefused",
    "InvalidParams",
    "PathParam",
    "PluginUnavailable",
    "PrincipalScopeViolation",
    "SeccompRefused",
    "Tool",
    "ToolCall",
    "ToolCallContext",
    "ToolDefinition",
    "ToolError",
    "ToolErrorCode",
    "ToolInternalError",
    "ToolNameCollision",
    "ToolNotEnabled",
    "ToolNotFound",
    "ToolRefused",
    "ToolSource",
    "no_paths",
    "tool_error_of",
]
