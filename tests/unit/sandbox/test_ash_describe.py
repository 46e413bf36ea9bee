"""Examples that `ash-sb capability describe` makes out of schemas."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from kaged.sandbox.describing import described_lines, example_of, narrowed

TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
INNER = {"required": ["x"], "properties": {"x": {"const": 3}}}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
    {"required": ["a", "b"], "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}},
    {"required": ["n"], "properties": {"n": {"type": "integer", "minimum": 5}}},
    {"required": ["n"], "properties": {"n": {"type": ["null", "number"]}}},
    {"required": ["l"], "properties": {"l": TEXTS}},
    {"required": ["l"], "properties": {"l": {"type": "array"}}},
    {"required": ["o"], "properties": {"o": INNER}},
    {"required": ["u"], "properties": {"u": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}},
    {"required": ["d"], "properties": {"d": {"type": "string", "format": "date-time"}}},
    {"required": ["d"], "properties": {"d": {"default": "INBOX"}, "e": {"type": "string"}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_example_is_one_that_the_schema_takes(schema: dict[str, Any]) -> None:
    made = example_of(schema)
    assert isinstance(made, dict)
    jsonschema_rs.validate(schema, made)


def test_an_endless_or_broken_schema_gives_something_all_the_same() -> None:
    endless: dict[str, Any] = {"type": "object", "required": ["a"]}
    endless["properties"] = {"a": endless}
    assert example_of(endless)
    assert example_of(None) == {}
    assert example_of({"required": 7, "properties": []}) == {}


def test_operations_are_narrowed_and_shown_with_a_call() -> None:
    details = [
        {"name": "list", "description": "Lists.", "input_schema": SCHEMAS[2], "mutating": False},
        {"name": "it's", "description": "Odd\nname.", "input_schema": None, "mutating": True},
    ]
    row = {"id": "gog.email", "description": "Mail.", "operation_details": details}
    assert [one["name"] for one in narrowed(row, "list")["operations"]] == ["list"]
    lines = described_lines([narrowed(row, "")])
    assert (
        '  Example: ash-sb capability invoke -c gog.email -o list --input-json \'{"a": "text"}\''
        in lines
    )
    assert "- it's: Odd name." in lines
    assert lines[-1] == "Total: 2 operation(s)"
    assert described_lines([]) == ["No capabilities available."]
