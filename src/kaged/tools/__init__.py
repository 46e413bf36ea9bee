"""The dispatcher: `ToolDefinition`, `Tool`, `ToolCallContext`, `ToolInvocation` and `ToolError`."""

from kaged.tools.call import ToolInvocation
from kaged.tools.context import ROOT_CALLER, ToolCallContext
from kaged.tools.definition import PathParam, Tool, ToolDefinition, ToolSource, no_paths, one_path
from kaged.tools.errors import (
    InvalidToolParams,
    PrincipalScopeViolation,
    ToolCapabilityRefused,
    ToolError,
    ToolErrorCode,
    ToolRefused,
    tool_error_of,
)

__all__ = [
    "ROOT_CALLER",
    "InvalidToolParams",
    "PathParam",
    "PrincipalScopeViolation",
    "Tool",
    "ToolCallContext",
    "ToolCapabilityRefused",
    "ToolDefinition",
    "ToolError",
    "ToolErrorCode",
    "ToolInvocation",
    "ToolRefused",
    "ToolSource",
    "no_paths",
    "one_path",
    "tool_error_of",
]
