"""JSON Schemas that guests bring along: checked for sense, compiled without ever going online."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, to_json
from kaged.config.problems import KeyPath
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.shapes import Shape, wrong_kind

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
KNOWN_DRAFTS: Final = frozenset(
    {
        DRAFT,
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)

PATTERN_STEPS: Final = 100_000
"""How many steps a pattern may take on one text before it counts as not matching."""

PATTERN_BYTES: Final = 1_000_000
"""How large a compiled pattern may be."""


@dataclass(frozen=True, slots=True)
class ObjectSchemaShape(Shape[Mapping[str, JsonValue]]):
    """A JSON Schema that describes an object, or with `objects` false anything."""

    objects: bool = True

    def read(self, node: Node, place: DocumentPosition) -> Mapping[str, JsonValue] | NoValue:
        """Read the schema and refuse one that could not be used for validation."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a JSON Schema (a map)")
        schema = to_json(node)
        assert isinstance(schema, dict)
        before = place.reading.errors
        for path, message, fix in check_schema(schema, objects=self.objects):
            found, below = _walk(node, path, place)
            below.error(found, message, fix, "bad_schema")
        if place.reading.errors > before:
            return INVALID
        return MappingProxyType(schema)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return "any JSON Schema of an object"."""
        if not self.objects:
            return {"type": "object", "$ref": DRAFT}
        objects: JsonObject = {
            "anyOf": [{"const": "object"}, {"type": "array", "contains": {"const": "object"}}]
        }
        return {"type": "object", "$ref": DRAFT, "properties": {"type": objects}}

    def words(self) -> str:
        """Return its name."""
        return "JSON Schema of an object" if self.objects else "JSON Schema"


def check_schema(schema: JsonObject, *, objects: bool = True) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield everything that keeps a schema from being used: where, what, and what to do."""
    kind = schema.get("type", "object")
    if objects and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        yield ("type",), "the schema must describe an object", "write type: object"
    online = False
    for path, keyword, value in _references(schema, ()):
        if keyword == "$schema":
            if str(value).rstrip("#") not in KNOWN_DRAFTS:
                online = True
                yield path, "is no JSON Schema draft that is known here", f"use {DRAFT}"
        elif not (isinstance(value, str) and value.startswith("#")):
            online = True
            yield path, "refers outside the schema; nothing is fetched", "copy it into $defs"
    if online:
        return
    fault = compile_fault(schema)
    if fault is not None:
        yield fault


def compile_schema(schema: Mapping[str, JsonValue], *, mask: str | None = None) -> Any:
    """Compile a schema for validation: never online, patterns limited.

    With `mask`, messages show that text in place of values, which may be secrets.

    Raises:
        jsonschema_rs.ValidationError: the schema cannot be used.
    """
    # Importing the validator takes longer than reading a manifest; most commands need neither.
    import jsonschema_rs  # noqa: PLC0415 - see above

    options = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=PATTERN_STEPS, size_limit=PATTERN_BYTES
    )
    return jsonschema_rs.validator_for(
        dict(schema), offline=True, pattern_options=options, mask=mask
    )


def compile_fault(schema: Mapping[str, JsonValue]) -> tuple[KeyPath, str, str] | None:
    """Return why a schema cannot be compiled; None when it can."""
    import jsonschema_rs  # noqa: PLC0415 - as in compile_schema

    try:
        compile_schema(schema)
    except jsonschema_rs.ValidationError as error:
        return tuple(error.instance_path), f"is no valid JSON Schema: {error.message}", ""
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        return (), f"is no valid JSON Schema: {error}", ""
    return None


def property_names(schema: Mapping[str, JsonValue] | None) -> tuple[str, ...]:
    """Return the names of the properties that an object schema lists."""
    listed = {} if schema is None else schema.get("properties", {})
    return tuple(listed) if isinstance(listed, Mapping) else ()


def _references(value: JsonValue, path: KeyPath) -> Iterator[tuple[KeyPath, str, JsonValue]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, (*path, index))
    elif isinstance(value, dict):
        for name, item in value.items():
            below = (*path, name)
            if name in {"$ref", "$dynamicRef", "$recursiveRef", "$schema"} and _is_keyword(path):
                yield below, name, item
            else:
                yield from _references(item, below)


def _is_keyword(path: KeyPath) -> bool:
    """Return whether names below this path are keywords, not names of properties or plain data."""
    if path and path[-1] in {"properties", "$defs", "definitions", "patternProperties"}:
        return len(path) > 1 and path[-2] in {"properties", "$defs", "definitions"}
    return not any(step in {"const", "enum", "default", "examples"} for step in path)


def _walk(node: Node, path: KeyPath, place: DocumentPosition) -> tuple[Node, DocumentPosition]:
    """Find the node that a path inside the schema leads to, or the nearest above it."""
    for step in path:
        value = node.value
        if isinstance(step, int) and isinstance(value, tuple) and step < len(value):
            node = value[step]
        elif isinstance(step, str) and isinstance(value, Mapping) and step in value:
            node = value[step].node
        place = place.at(step)
    return node, place
