"""What an agent learns of a failure: its own mistakes in full, the host's insides not at all."""

from __future__ import annotations

import traceback

from kaged.base import JsonValue, KagedError
from kaged.base.foreign import bounded, describe_error
from kaged.base.log import get_logger
from kaged.tools.context import ToolCallContext
from kaged.tools.errors import ReportedError, ToolError, ToolErrorCode, tool_error_of
from kaged.wire.errors import RpcError

MAX_TRACE_CHARS = 20_000

_log = get_logger(__name__)
_VOCABULARY = frozenset(str(code) for code in ToolErrorCode)


def agent_error(error: KagedError, context: ToolCallContext, tool_name: str) -> ToolError:
    """Return an error as the calling agent may see it.

    Errors of the tools' own vocabulary, of plugins and of the workspace come through with their
    words; others are the host's business, so that only their code does. A caged caller never sees
    where on the host its project lies (AT-CTX-10).
    """
    if (
        isinstance(error, ToolError | RpcError)
        or error.code in _VOCABULARY
        or (
            # Written for the caller of a tool.
            type(error).__module__.startswith("kaged.workspace")
        )
    ):
        shown = tool_error_of(error)
    else:
        _log.error(
            "tools.tool_failed",
            tool=tool_name,
            request_id=context.request_id,
            code=error.code,
            error=describe_error(error),
        )
        shown = ReportedError(error.code, f"{tool_name} could not do this ({error.code})")
    if context.cage_policy is not None:
        root = context.project_root
        shown.message = _hidden_text(shown.message, root)
        if shown.fix is not None:
            shown.fix = _hidden_text(shown.fix, root)
        shown.detail = _hidden(shown.detail, root)
    return shown


def broken_tool(error: BaseException, context: ToolCallContext, tool_name: str) -> ToolError:
    """Return the error for a tool that raised what it should not; the log gets all of it."""
    _log.error(
        "tools.tool_raised",
        tool=tool_name,
        request_id=context.request_id,
        error=describe_error(error, as_repr=True),
        trace=_trace(error),
    )
    return ToolError(
        f"{tool_name} failed with an internal error",
        code="internal_error",
        fix="try again or do without it; the operator finds the reason in the daemon's log",
        detail={"request_id": context.request_id},
    )


def _trace(error: BaseException) -> str:
    try:
        return bounded("".join(traceback.format_exception(error)), MAX_TRACE_CHARS)
    except BaseException:  # noqa: BLE001 - boundary: showing an error of a library is its code
        return ""


def _hidden(value: JsonValue, root: str) -> JsonValue:
    match value:
        case str():
            return _hidden_text(value, root)
        case list():
            return [_hidden(one, root) for one in value]
        case dict():
            return {_hidden_text(name, root): _hidden(one, root) for name, one in value.items()}
        case _:
            return value


def _hidden_text(text: str, root: str) -> str:
    if root not in text:
        return text
    return text.replace(f"{root}/", "./").replace(root, ".")
