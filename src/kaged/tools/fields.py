"""Short ways to write a tool's JSON Schema: one function for each kind of field."""

from __future__ import annotations

from kaged.base import JsonObject, JsonValue


def text(description: str, **limits: JsonValue) -> JsonObject:
    """Return the schema of a text; `limits` are further keywords, such as `minLength=1`."""
    return {"type": "string", **limits, "description": description}


def integer(description: str, **limits: JsonValue) -> JsonObject:
    """Return the schema of a whole number."""
    return {"type": "integer", **limits, "description": description}


def flag(description: str, **limits: JsonValue) -> JsonObject:
    """Return the schema of true or false."""
    return {"type": "boolean", **limits, "description": description}


def array(items: JsonValue, description: str, **limits: JsonValue) -> JsonObject:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **limits, "description": description}


def closed(properties: JsonObject, required: list[JsonValue]) -> JsonObject:
    """Return the schema of an object that has no other members."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
