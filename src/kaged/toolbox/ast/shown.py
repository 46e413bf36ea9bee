"""Matches and rewrites of code as a model reads them: totals, counts, then the places. Pure."""

from __future__ import annotations

from typing import Any, Final, cast

from kaged.base import JsonObject
from kaged.tools.result_text import text_of

MAX_SHOWN_CHANGES: Final = 20
"""So many changes of a rewrite are shown; what the rest does is known by the counts."""

OUTSIDE: Final = "(outside your cage)"


def matches_text(result: JsonObject) -> str:
    """Write a result of `search.ast`."""
    matches = cast("list[dict[str, Any]]", result["matches"])
    counts = cast("list[dict[str, Any]]", result.get("file_counts") or [])
    shown = [_head(result, "matches", "file_counts")]
    shown += [f"{one['file']}: {one['count']}{_outside(one)}" for one in counts]
    path: str | None = None
    for one in matches:
        if one["file"] != path:
            path = str(one["file"])
            shown.append(path)
        shown += [f"  {line}" for line in one.get("context_before") or ()]
        shown.append(f"{one['line']}: {one.get('content', OUTSIDE)}")
        variables = one.get("meta_variables") or {}
        shown += [f"  ${name} = {text}" for name, text in variables.items() if "\n" not in text]
        shown += [f"  {line}" for line in one.get("context_after") or ()]
    return "\n".join(shown)


def rewrite_text(result: JsonObject) -> str:
    """Write a result of `edit.ast`: what it comes to, where, and some of its changes."""
    counts = cast("list[dict[str, Any]]", result["file_changes"])
    changes = cast("list[dict[str, Any]]", result["changes"])
    shown = [_head(result, "changes", "file_changes", "parse_errors")]
    shown += [f"{one['path']}: {one['count']}" for one in counts]
    if result["parse_errors"]:
        shown.append(text_of({"parse_errors": result["parse_errors"]}))
    for one in changes[:MAX_SHOWN_CHANGES]:
        shown.append(f"@@ {one['path']}:{one['start_line']} @@")
        shown += [f"-{line}" for line in str(one["before"]).split("\n")]
        shown += [f"+{line}" for line in str(one["after"]).split("\n")]
    left = cast("int", result["total_replacements"]) - min(len(changes), MAX_SHOWN_CHANGES)
    if left:
        shown.append(f"[{left} more changes of this kind]")
    return "\n".join(shown)


def _head(result: JsonObject, *left_out: str) -> str:
    return text_of({name: one for name, one in result.items() if name not in left_out})


def _outside(entry: dict[str, Any]) -> str:
    return f" {OUTSIDE}" if entry.get("outside_cage") else ""
