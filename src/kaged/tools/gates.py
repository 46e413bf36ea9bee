"""The gates before the cage: is there such a tool, may this agent have it, do the words fit?"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.kernel.decision import Decision
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement, ToolRequirement
from kaged.tools.context import ROOT_CALLER, ToolCallContext
from kaged.tools.definition import PathParam
from kaged.tools.errors import (
    InvalidToolParams,
    PrincipalScopeViolation,
    ToolCapabilityRefused,
    ToolError,
)
from kaged.tools.kept_results import is_handle
from kaged.tools.registry import FoundTool, RegisteredTool
from kaged.tools.resolution import AgentTools
from kaged.workspace import ProjectPath, Workspace
from kaged.workspace.errors import SEALED_REMEDY, PathProtected, PathSealed

MAX_SUGGESTIONS: Final = 3
PROTECTED_RULE: Final = "tool.protected_path"
OTHER_TOOL: Final = "use one of the tools that this agent has"


def no_such_tool(name: str, tools: AgentTools) -> ToolError:
    """Return the error for a name that means nothing, with close names the caller does have."""
    shown = name[:80]
    close = difflib.get_close_matches(shown, tools.names, n=MAX_SUGGESTIONS)
    fix = f"did you mean {' or '.join(close)}?" if close else OTHER_TOOL
    return ToolError(f"there is no tool named {shown!r}", code="tool_not_found", fix=fix)


def arguments(found: FoundTool, params: JsonValue) -> JsonObject:
    """Return the arguments of a call, those that an alias stands for included."""
    asked: JsonObject = params if type(params) is dict else {}
    return {**asked, **found.extra} if found.extra else asked


def parse_args(entry: RegisteredTool, params: JsonValue, asked: JsonObject) -> JsonObject:
    """Check arguments against the tool's schema and its own rules; defaults are filled in.

    Raises:
        InvalidToolParams: with every field that does not fit.
    """
    if type(params) is not dict:
        raise InvalidToolParams.of_field("", "the parameters must be an object")
    args = entry.params.parse(asked)
    if entry.tool.check is not None:
        entry.tool.check(args)
    return args


def require_scope(entry: RegisteredTool, context: ToolCallContext) -> None:
    """Keep root-only tools to the exact caller "primary", cage or no cage (AT-CTX-03)."""
    if entry.definition.principal_scope is not None and context.caller != ROOT_CALLER:
        raise PrincipalScopeViolation(
            f"{entry.name} is for the root agent only",
            fix="return what the root agent should do as your answer",
            detail=f"root-only:{entry.name}",
        )


def require_enabled(
    entry: RegisteredTool,
    asked: JsonObject,
    tools: AgentTools,
    granted: Collection[str] = (),
) -> None:
    """Answer a tool, or an action of one, that the agent does not have as if it did not exist.

    `granted` are tools that a person gave it when a call was refused.
    """
    enabled = tools.enabled.get(entry.name)
    if enabled is None:
        if entry.name not in tools.synthetic and entry.name not in granted:
            raise _not_enabled(entry.name)
    elif enabled.off:
        action = asked.get("action")
        if isinstance(action, str) and action in enabled.off:
            raise _not_enabled(f"the action {action} of {entry.name}")


def _not_enabled(what: str) -> ToolError:
    return ToolError(
        f"{what} is not one of your tools",
        code="tool_not_found",
        fix=OTHER_TOOL,
        detail={"reason": "not_enabled"},
    )


def require_edition(entry: RegisteredTool, schema_hash: str | None) -> None:
    """Refuse a call that was made for other parameters than the tool has now.

    Only callers that say which ones they mean are held to it. Raises InvalidToolParams, with the
    parameters as they are now.
    """
    if schema_hash is None or schema_hash == entry.schema_hash:
        return
    raise InvalidToolParams(
        f"{entry.name} has other parameters now than those this call was made for",
        fix="read the parameters again, then call with the new schema_hash or without one",
        detail={
            "schema_hash": entry.schema_hash,
            "called_with": schema_hash,
            "tool_version": entry.definition.version,
            "parameters": entry.definition.parameters,
        },
    )


def resolve_path(workspace: Workspace, param: PathParam) -> ProjectPath:
    """Take a path parameter through the guard. Raises InvalidToolParams, naming the parameter."""
    if is_handle(param.value):
        raise InvalidToolParams.of_field(
            param.field,
            "names a kept result, which only file.read and search.grep take",
            fix="a folder of the project that has this name is written with ./ before it",
        )
    try:
        return workspace.resolve(param.value)
    except KagedError as error:
        if error.code != InvalidToolParams.code:
            raise
        problem: JsonValue = getattr(error, "problem", error.message)
        said: JsonValue = error.data.get("detail")
        detail: JsonObject = dict(said) if isinstance(said, dict) else {}
        detail["fields"] = [{"field": param.field, "problem": problem}]
        raise InvalidToolParams(
            f"{param.field}: {error.message}", fix=error.fix or "", detail=detail
        ) from error


def require_open(
    workspace: Workspace,
    requires: Sequence[ToolRequirement],
    wanted: Sequence[PathParam],
    paths: Sequence[ProjectPath],
) -> None:
    """Refuse a call that would change what defines the project itself, cage or no cage.

    The same for what a program of the host would run without anybody looking.
    """
    if not any(isinstance(one, FsRequirement) and one.mode is FsMode.RW for one in requires):
        return
    for param, path in zip(wanted, paths, strict=True):
        try:
            workspace.require_open(path)
        except PathSealed as error:
            denied = Decision.deny("tool.sealed", f"rw:fs:{param.value}", SEALED_REMEDY)
            raise ToolCapabilityRefused.of(denied) from error
        except PathProtected as error:
            raise ToolCapabilityRefused.of(protected_denial(error, param.value)) from error


def protected_denial(error: PathProtected, path: str) -> Decision:
    """Return the refusal of a protected path, with the line that would allow it."""
    return Decision.deny(
        PROTECTED_RULE, f"rw:fs:{path} ({error.why})", error.remedy, code=PathProtected.code
    )
