"""What the search tools found as a model reads it: totals first, then each file once. Pure."""

from __future__ import annotations

from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue

OUTSIDE: Final = "(outside your cage)"


def totals(result: JsonObject, left_out: frozenset[str]) -> str:
    """Return the short values of a result on one line."""
    return ", ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in result.items()
        if name not in left_out
    )


def grep_text(result: JsonObject) -> str:
    """Write a result of `search.grep`."""
    entries = cast("list[dict[str, Any]]", result["matches"])
    head = totals(result, frozenset({"matches"}))
    if not any("line" in one for one in entries):
        return "\n".join((head, *map(_file, entries)))
    files: dict[str, dict[int, str]] = {}
    for one in entries:
        lines = files.setdefault(str(one["file"]), {})
        number = int(one["line"])
        before: list[str] = one.get("before") or []
        around = [*enumerate(before, number - len(before))]
        around += enumerate(one.get("after") or [], number + 1)
        # A line between two matches comes once, and a match is never shown as one around another.
        for at, text in around:
            lines.setdefault(at, f"{at}- {text}")
        lines[number] = f"{number}: {one.get('content', OUTSIDE)}"
    shown = [head]
    for path, lines in files.items():
        shown += (path, *(lines[at] for at in sorted(lines)))
    return "\n".join(shown)


def glob_text(result: JsonObject) -> str:
    """Write a result of `search.glob`."""
    outside = cast("list[JsonValue]", result.get("outside_cage") or [])
    head = totals(result, frozenset({"files", "outside_cage"}))
    files = cast("list[JsonValue]", result["files"])
    return "\n".join((head, *map(str, files), *(f"{one} {OUTSIDE}" for one in outside)))


def _file(entry: dict[str, Any]) -> str:
    count = f": {entry['count']}" if "count" in entry else ""
    return f"{entry['file']}{count}{f' {OUTSIDE}' if entry.get('outside_cage') else ''}"
