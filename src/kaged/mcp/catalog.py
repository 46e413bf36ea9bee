"""`OutsideTool`: a tool as an outside server declares it, parsed once and bounded. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.jsonschemas import check_schema
from kaged.mcp.texts import MAX_WORD_CHARS, clean_schema, labelled, one_line
from kaged.tools.registry import outside_name

MAX_TOOLS: Final = 256
HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
MAX_PAGES: Final = 32
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 24
MAX_ENTRIES: Final = 2000
"""Members and items in one schema: a small text can still be a large number of alternatives."""


@dataclass(frozen=True, slots=True)
class OutsideTool:
    """One tool. `original` is what its server calls it, `name` what agents do.

    `digest` changes with everything that a model or an operator would read or agree to.
    """

    name: str
    original: str
    description: str
    parameters: JsonObject
    output: JsonObject | None
    digest: str
    annotations: JsonObject = field(default_factory=dict[str, "JsonValue"])


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tool that cannot be used, and why."""

    original: str
    why: str


def parse_tools(
    server: str, listed: Iterable[JsonValue]
) -> tuple[Sequence[OutsideTool], Sequence[LeftOut]]:
    """Read what a server lists; each tool that makes no sense is left out alone."""
    tools: dict[str, OutsideTool] = {}
    left_out: list[LeftOut] = []
    for index, one in enumerate(listed):
        if index >= MAX_TOOLS:
            left_out.append(LeftOut("…", f"a server may have {MAX_TOOLS} tools"))
            break
        found = _parse(server, one)
        if isinstance(found, LeftOut):
            left_out.append(found)
        elif found.name in tools:
            first = tools[found.name].original
            why = f"tool_name_collision: its name is taken by {first!r}"
            left_out.append(LeftOut(found.original, why))
        else:
            tools[found.name] = found
    return tuple(tools.values()), tuple(left_out)


def _parse(server: str, listed: JsonValue) -> OutsideTool | LeftOut:
    if not isinstance(listed, dict):
        return LeftOut("?", "it is no object")
    original = listed.get("name")
    if not isinstance(original, str) or not original or len(original) > MAX_WORD_CHARS // 2:
        return LeftOut(one_line(original, 80), "its name is missing or too long")
    shown = one_line(original, 80)
    parameters = listed.get("inputSchema")
    fault = _schema_fault(parameters, objects=True)
    if fault is not None:
        return LeftOut(shown, f"inputSchema {fault}")
    output = listed.get("outputSchema")
    if output is not None and (fault := _schema_fault(output, objects=False)) is not None:
        return LeftOut(shown, f"outputSchema {fault}")
    agreed = {
        name: listed.get(name)
        for name in ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    }
    whole = cast("JsonObject", clean_schema(parameters))
    return OutsideTool(
        name=outside_name(server, original),
        original=original,
        description=labelled(server, str(listed.get("description") or "")),
        parameters={**whole, "type": "object"},
        output=cast("JsonObject | None", output),
        digest=hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:32],
        annotations=_annotations(listed.get("annotations"), listed.get("title")),
    )


def _annotations(said: JsonValue, title: JsonValue) -> JsonObject:
    """Return what a server claims about a tool, in the words of the protocol and no others."""
    claims = said if isinstance(said, dict) else {}
    found: JsonObject = {name: claims[name] for name in HINTS if isinstance(claims.get(name), bool)}
    for text in (title, claims.get("title")):
        if isinstance(text, str) and text and "title" not in found:
            found["title"] = one_line(text, 100)
    return found


def _schema_fault(schema: JsonValue, *, objects: bool) -> str | None:
    """Return why a schema cannot be used; None when it can."""
    if not isinstance(schema, dict):
        return "is no JSON Schema"
    if not _small(schema):
        return f"is deeper than {MAX_DEPTH} levels or has more than {MAX_ENTRIES} parts"
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        return f"has more than {MAX_SCHEMA_BYTES} bytes"
    kind = schema.get("type", "object")
    if objects and kind != "object":
        return "does not describe an object"
    for path, message, _ in check_schema(schema, objects=objects):
        return one_line(f"{'.'.join(map(str, path))} {message}", 200)
    return None


def _small(schema: JsonObject) -> bool:
    """Count before anything walks it by recursion."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_ENTRIES:
            return False
        below = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            waiting.extend((one, depth + 1) for one in cast("Iterable[Any]", below))
            if len(waiting) > MAX_ENTRIES:
                return False
    return True
