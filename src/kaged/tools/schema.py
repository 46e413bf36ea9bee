"""`ParamSchema`: a tool's parameters, compiled once; arguments in, a checked copy out."""

from __future__ import annotations

import copy
import difflib
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from kaged.base import JsonObject, JsonValue
from kaged.config.jsonschemas import compile_schema
from kaged.tools.errors import InvalidToolParams

MAX_PROBLEMS: Final = 20  # of one call; a hostile one could have thousands
MAX_PROBLEM_CHARS: Final = 200
_MASK: Final = "the value"  # what is said in place of a value, which may be a whole file

_Filler: TypeAlias = "Callable[[Any], JsonValue]"
_SORTED: Final = msgspec.json.Encoder(order="deterministic")


class ParamSchema:
    """The compiled schema of one tool.

    `parse` refuses what does not fit and gives a copy with the defaults filled in. Nothing is
    coerced: "5" and true are no integers (AT-DISP-13); 5.0 is one to JSON and becomes 5.
    """

    __slots__ = ("_fill", "_is_valid", "_names", "_validator")

    def __init__(self, schema: JsonObject) -> None:
        """Compile; raises ValueError, or the validator's own error, for what is no schema."""
        self._validator = compile_schema(schema, mask=_MASK)
        self._is_valid = self._validator.is_valid
        self._fill = _filler(schema) or dict
        properties = schema.get("properties")
        self._names = tuple(properties) if isinstance(properties, dict) else ()

    def parse(self, params: JsonObject) -> JsonObject:
        """Return the arguments with defaults applied.

        Raises:
            InvalidToolParams: with every field that does not fit.
        """
        try:
            if self._is_valid(params):
                return self._fill(params)  # type: ignore[return-value]  # an object, as it was
        except ValueError as error:
            # No JSON at all: bytes, a key that is no text, too deep a nesting.
            said = str(error)[:MAX_PROBLEM_CHARS]
            raise InvalidToolParams.of_field("", f"not plain JSON: {said}") from None
        raise InvalidToolParams.of_fields(self._problems(params))

    def _problems(self, params: JsonObject) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(params):
            for field, problem in _described(error, self._names):
                if len(found) == MAX_PROBLEMS:
                    return [*found, ("", "and more")]
                found.append((field, problem[:MAX_PROBLEM_CHARS]))
        return found


def schema_hash(schema: JsonObject) -> str:
    """Return a short name for exactly this schema; it changes when the schema does."""
    return hashlib.sha256(_SORTED.encode(schema)).hexdigest()[:16]


def _described(error: Any, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Put one complaint of the validator into words, per field that it is about."""
    path = list(error.instance_path)
    match error.kind.name:
        case "required":
            return [(_spelled([*path, error.kind.property]), "is required")]
        case "additionalProperties":
            known = names if not path else ()
            return [
                (_spelled([*path, one]), f"is not a parameter of this tool{_guess(one, known)}")
                for one in error.kind.unexpected
            ]
        case "type":
            wanted = " or ".join(error.kind.types)
            return [(_spelled(path), f"must be {wanted}, not {_kind(error.instance)}")]
        case "enum":
            options = ", ".join(str(one) for one in error.kind.options)
            return [(_spelled(path), f"must be one of {options}")]
        case _:
            return [(_spelled(path), str(error.message))]


def _spelled(path: list[str | int]) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step[:80]}" if text else step[:80]
    return text


def _guess(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name[:80], known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case Mapping():
            return "object"
        case _:
            return "array"


def _filler(schema: JsonValue) -> _Filler | None:
    """Make what fills in the defaults below a schema; None when there is nothing to do."""
    if not isinstance(schema, dict):
        return None
    if schema.get("type") == "integer":
        return _whole
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return _object_filler(properties)
    inner = _filler(schema.get("items"))
    if inner is None:
        return None
    return lambda value: [inner(one) for one in value] if isinstance(value, list) else value


def _object_filler(properties: dict[str, JsonValue]) -> _Filler:
    plain: JsonObject = {}
    copied: JsonObject = {}
    below: list[tuple[str, _Filler]] = []
    for name, schema in properties.items():
        if isinstance(schema, dict) and "default" in schema:
            default = schema["default"]
            (copied if isinstance(default, list | dict) else plain)[name] = default
        inner = _filler(schema)
        if inner is not None:
            below.append((name, inner))

    def fill(value: Any) -> JsonValue:
        if not isinstance(value, dict):
            return value
        filled: JsonObject = {**plain, **value}
        for name, default in copied.items():
            if name not in filled:
                filled[name] = copy.deepcopy(default)
        for name, inner in below:
            if name in filled:
                filled[name] = inner(filled[name])
        return filled

    return fill


def _whole(value: Any) -> JsonValue:
    # 5.0 is an integer to JSON; to Python it is none, and a slice would break on it.
    return int(value) if type(value) is float else value
