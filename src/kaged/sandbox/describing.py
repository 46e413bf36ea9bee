"""What `ash-sb capability describe` prints: each operation with its input and one example."""

from __future__ import annotations

import shlex

from kaged.sandbox.lines import as_json, one_line, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEPTH_LIMIT = 6
_BY_FORMAT = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T09:00:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org/",
}
_BY_TYPE: dict[str, Any] = {"string": "text", "boolean": False, "null": None}


def narrowed(row: dict[str, Any], operation: str) -> dict[str, Any]:
    """Return a capability with one of its operations, or with all of them, and an example each."""
    listed = row.get("operation_details")
    found = [
        {**one, "example": example_of(one.get("input_schema"))}
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and operation in {"", one.get("name")}
    ]
    return {"id": row.get("id"), "description": row.get("description"), "operations": found}


def described_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Show capabilities with their operations."""
    if not rows:
        return ["No capabilities available."]
    lines: list[str] = []
    for row in rows:
        capability = text(row, "id")
        lines.append(f"Capability: {capability}")
        lines.append(f"Description: {text(row, 'description')}")
        for one in row["operations"]:
            name = text(one, "name")
            lines.append(f"- {name}: {text(one, 'description')}")
            lines.append(f"  Changes something: {_yes(one.get('mutating'))}")
            lines.append(f"  Needs an account: {_yes(one.get('requires_auth'))}")
            lines.append(f"  Input: {as_json(one.get('input_schema') or {})}")
            given = shlex.quote(as_json(one["example"]))
            call = f"ash-sb capability invoke -c {capability} -o {shlex.quote(name)}"
            lines.append(f"  Example: {one_line(call)} --input-json {given}")
    total = sum(len(row["operations"]) for row in rows)
    lines.append(f"Total: {total} operation(s)")
    return lines


def example_of(schema: object, depth: int = 0) -> Any:
    """Return an input that a schema takes, as far as its types and required members tell."""
    if not isinstance(schema, dict) or depth > DEPTH_LIMIT:
        return {} if depth == 0 else "text"
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        chosen = schema.get(word)
        if isinstance(chosen, list) and chosen:
            return chosen[0]
    for word in ("anyOf", "oneOf", "allOf"):
        ways = schema.get(word)
        if isinstance(ways, list) and ways:
            return example_of(ways[0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema or depth == 0 else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object":
        return _object(schema, depth)
    if kind == "array":
        return [example_of(schema.get("items"), depth + 1)] if schema.get("minItems") else []
    if kind in {"integer", "number"}:
        least = schema.get("minimum", 1)
        return least if isinstance(least, int | float) else 1
    return _BY_FORMAT.get(str(schema.get("format")), _BY_TYPE.get(str(kind), "text"))


def _object(schema: dict[str, Any], depth: int) -> dict[str, Any]:
    required, properties = schema.get("required"), schema.get("properties")
    named = required if isinstance(required, list) else []
    known = properties if isinstance(properties, dict) else {}
    return {str(name): example_of(known.get(str(name)), depth + 1) for name in named}


def _yes(value: object) -> str:
    return "yes" if value is True else "no"
