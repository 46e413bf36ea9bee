"""A session that was had before, as the updates that an editor shows it by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acp import (
    start_tool_call,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)

from kaged.cli.acp.updates import call_content, kind_of, result_content, title_of


def replayed(entries: Sequence[dict[str, Any]], root: Path, agent: str) -> Iterator[Any]:
    """Yield what was said to and by an agent, oldest first, with its calls and their results."""
    shown: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in entries:
        if entry["kind"] != "message" or entry["agent"] != agent:
            continue
        blocks = entry["content"].get("content")
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                yield from _block(block, str(entry["role"]), root, shown)


def _block(
    block: dict[str, Any], role: str, root: Path, shown: dict[str, tuple[str, dict[str, Any]]]
) -> Iterator[Any]:
    match block.get("type"), role:
        case "text", "user":
            yield update_user_message_text(str(block.get("text", "")))
        case "text", "assistant":
            yield update_agent_message_text(str(block.get("text", "")))
        case "thinking", "assistant":
            yield update_agent_thought_text(str(block.get("text", "")))
        case "tool_call", _:
            tool, params = str(block.get("name")), block.get("input")
            params = params if isinstance(params, dict) else {}
            call_id = str(block.get("request_id") or block.get("id"))
            shown[call_id] = tool, params
            yield start_tool_call(
                call_id,
                title_of(tool, params),
                kind=kind_of(tool),
                status="in_progress",
                content=call_content(root, tool, params),
                raw_input=params,
            )
        case "tool_result_block", _:
            yield from _result(block, root, shown)
        case _:
            return


def _result(
    block: dict[str, Any], root: Path, shown: dict[str, tuple[str, dict[str, Any]]]
) -> Iterator[Any]:
    call_id = str(block.get("request_id") or block.get("call_id"))
    if call_id not in shown:
        return
    tool, params = shown.pop(call_id)
    failed = bool(block.get("is_error"))
    diff = [] if failed else call_content(root, tool, params)
    yield update_tool_call(
        call_id,
        status="failed" if failed else "completed",
        content=diff or result_content(block.get("output")),
    )
