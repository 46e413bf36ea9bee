"""Sessions for people: their entries as a conversation, their forks as a tree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kaged.cli.output import Output, one_line

TEXT_LINES = 40
VALUE_CHARS = 200


def show_entries(entries: Sequence[dict[str, Any]], output: Output) -> None:
    """Show entries, oldest first; each with the id that `fork --at` takes."""
    for entry in entries:
        who = entry["role"] or entry["kind"]
        if entry["agent"] != "primary":
            who += f" ({entry['agent']})"
        gone = "  [compacted]" if entry["superseded_by"] else ""
        output.line()
        output.line(f"-- {entry['id']}  {entry['ts'][11:19]}  {who}{gone}")
        for line in _lines(entry):
            output.line(line)


def show_tree(sessions: Sequence[dict[str, Any]], output: Output) -> None:
    """Show sessions below what they were forked from; in a pipe with their parent beside them."""
    if not output.for_people:
        output.table([], [[one["id"], one["parent_session"], one["title"]] for one in sessions])
        return
    known = {one["id"] for one in sessions}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for one in sessions:
        parent = one["parent_session"] if one["parent_session"] in known else None
        below.setdefault(parent, []).append(one)
    for line in _branches(below):
        output.line(line)


def _branches(below: dict[str | None, list[dict[str, Any]]]) -> Iterator[str]:
    """Draw the tree without recursion: forks of forks go deep."""
    waiting = [(one, "", "") for one in reversed(below.get(None, []))]
    while waiting:
        one, indent, mark = waiting.pop()
        star = "*" if one["current"] else " "
        title = one_line(one["title"] or "untitled")
        yield f"{star} {indent}{mark}{one['id']}  {title}  ({one['entries']} entries)"
        further = indent + {"├─ ": "│  ", "└─ ": "   "}.get(mark, "")
        forks = below.get(one["id"], [])
        for number, fork in enumerate(reversed(forks)):
            waiting.append((fork, further, "└─ " if number == 0 else "├─ "))


def _lines(entry: dict[str, Any]) -> Iterator[str]:
    content = entry["content"]
    match entry["kind"]:
        case "message":
            blocks = content.get("content")
            if isinstance(blocks, str):
                yield from _text(blocks)
            for block in blocks if isinstance(blocks, list) else ():
                yield from _block(block)
        case "title":
            yield str(content.get("title"))
        case "label":
            yield f"{content.get('text')} @ {content.get('anchor')}"
        case "compaction":
            yield from _text(str(content.get("summary") or ""))
        case _:
            yield _short(content)


def _block(block: Any) -> Iterator[str]:
    if not isinstance(block, dict):
        yield _short(block)
        return
    match block.get("type"):
        case "text":
            yield from _text(str(block.get("text") or ""))
        case "thinking":
            yield from (f"~ {line}" for line in _text(str(block.get("text") or "")))
        case "tool_call":
            yield f"→ {block.get('name')} {_short(block.get('input'))}"
        case "tool_result_block":
            mark = "✗" if block.get("is_error") else "←"
            yield f"{mark} {_short(block.get('output'))}"
        case _:
            yield _short(block)


def _text(text: str) -> Iterator[str]:
    lines = text.splitlines()
    yield from lines[:TEXT_LINES]
    if len(lines) > TEXT_LINES:
        yield f"… {len(lines) - TEXT_LINES} more lines"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    flat = one_line(text)
    return flat if len(flat) <= VALUE_CHARS else f"{flat[:VALUE_CHARS]}…"
