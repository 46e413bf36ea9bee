"""A tool's outcome as an MCP result: text for models, structure for programs, errors with a fix.

An error has no structured content: clients check that against the tool's output schema, and would
show their own complaint instead of the error. Programs find it in `_meta`.
"""

from __future__ import annotations

import json
from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.tools import ToolError

MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
META_ERROR: Final = "kaged/error"
WRAPPED: Final = "result"
"""Structured content is always an object; what is none is found under this name."""


def json_text(value: JsonValue) -> str:
    """Return a result as the text that programs expect beside the structure."""
    return value if isinstance(value, str) else _json(value)


def tool_result(value: JsonValue, shown: str | None = None) -> JsonObject:
    """Return what a tool answered. A result beyond the limit becomes an error that says so.

    `shown` is its text where the whole is too long for a window; the structure is always whole.
    """
    text = json_text(value)
    if len(text) > MAX_RESULT_BYTES:
        return _error(
            {
                "code": "mcp_result_too_large",
                "message": f"the result has more than {MAX_RESULT_BYTES} characters",
                "fix": "ask for less: a range of lines, fewer hits, a narrower path",
            }
        )
    return {
        "content": [{"type": "text", "text": text if shown is None else shown}],
        "structuredContent": value if isinstance(value, dict) else {WRAPPED: value},
        "isError": False,
    }


def tool_failure(error: KagedError, request_id: str) -> JsonObject:
    """Return an error of a call as a result that the model reads: code, message, what to do."""
    shown: JsonObject = (
        error.as_json()
        if isinstance(error, ToolError)
        else {"code": error.code, "message": error.message}
    )
    shown["message"] = error.message  # without the fix, which stands by itself
    if error.fix:
        shown["fix"] = error.fix
    shown["request_id"] = request_id
    return _error(shown)


def output_schema(returns: JsonObject) -> JsonObject | None:
    """Return the schema of `structuredContent` for what a tool returns; None when not known."""
    if not returns or set(returns) <= {"description", "title"}:
        return None
    if returns.get("type") == "object":
        return returns
    local = {name: returns[name] for name in ("$defs", "definitions") if name in returns}
    inner = {name: value for name, value in returns.items() if name not in local}
    return {
        **local,
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
    }


def _error(shown: JsonObject) -> JsonObject:
    lines = [f"{shown['code']}: {shown['message']}"]
    if shown.get("fix"):
        lines.append(f"Fix: {shown['fix']}")
    return {
        "content": [{"type": "text", "text": "\n".join(lines)}],
        "isError": True,
        "_meta": {META_ERROR: shown},
    }


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
