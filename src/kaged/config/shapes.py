"""Shapes of single values: text, numbers, flags, words. Each reads a `Node` and draws its schema.

A shape notes problems at the place it reads and returns `INVALID`; it never raises for bad input,
so that one pass finds everything that is wrong with a file.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Generic, TypeVar

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, Odd, kind_of
from kaged.config.reading import INVALID, DocumentPosition, NoValue, nearest

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_TEXT_CHARS = 64 * 1024
_NO_REAL_LIMIT = 1_000_000_000
_YAML_1_1_WORDS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false"}


class Shape(ABC, Generic[T]):
    """What a value may look like. `WORDS` is its name in reference pages, if it has a fixed one."""

    WORDS: ClassVar[str] = ""

    @abstractmethod
    def read(self, node: Node, place: DocumentPosition) -> T | NoValue:
        """Read a node into the type, or note what is wrong with it."""

    @abstractmethod
    def schema(self, defs: JsonObject) -> JsonObject:
        """Return the JSON Schema; shared parts go into `defs`."""

    def words(self) -> str:
        """Return the shape's name in reference pages."""
        return self.WORDS or str(self.schema({}).get("type", "value"))


def wrong_kind(node: Node, place: DocumentPosition, expected: str) -> NoValue:
    """Note that a value is of another kind than expected, with the likeliest fix."""
    value = node.value
    if isinstance(value, Odd) and value.reported:
        return INVALID
    if value is None:
        return place.error(
            node,
            f"has no value; {expected} is expected",
            "give it a value or remove the key",
            "wrong_type",
        )
    fix = ""
    if expected.startswith("text") and isinstance(value, (bool, int, float, Odd)):
        fix = "put the value in quotes"
    elif isinstance(value, str) and "number" in expected and _looks_numeric(value):
        fix = "remove the quotes"
    elif expected.startswith("true") and isinstance(value, str):
        word = _YAML_1_1_WORDS.get(value.lower(), "true or false")
        fix = f"write {word}, without quotes"
    elif expected.startswith("a list") and not isinstance(value, (tuple, Mapping)):
        fix = "write [value] for a list of one"
    return place.error(node, f"must be {expected}, not {kind_of(value)}", fix, "wrong_type")


@dataclass(frozen=True, slots=True)
class TextShape(Shape[str]):
    """Text of limited length, optionally of one line or matching a pattern.

    `pattern` is matched against the whole text; `means` says in words what it asks for.
    """

    min_chars: int = 1
    max_chars: int = MAX_TEXT_CHARS
    one_line: bool = True
    pattern: str | None = None
    means: str = ""

    def read(self, node: Node, place: DocumentPosition) -> str | NoValue:
        """Read text."""
        value = node.value
        if not isinstance(value, str):
            return wrong_kind(node, place, "text")
        fault = self._fault(value)
        if fault:
            return place.error(node, fault)
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return place.error(node, f"{place.show(value)} is not {self.means}")
        return value

    def _fault(self, value: str) -> str:
        if "\0" in value:
            return "may not contain a NUL character"
        if len(value) < self.min_chars:
            return "may not be empty"
        if len(value) > self.max_chars:
            return f"is longer than {self.max_chars} characters ({len(value)})"
        if self.one_line and ("\n" in value or "\r" in value):
            return "must be one line"
        return ""

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a string schema."""
        drawn: JsonObject = {"type": "string"}
        if self.min_chars:
            drawn["minLength"] = self.min_chars
        if self.max_chars != MAX_TEXT_CHARS:
            drawn["maxLength"] = self.max_chars
        if self.pattern is not None:
            drawn["pattern"] = f"^(?:{self.pattern})$"
        elif self.one_line:
            drawn["pattern"] = r"^[^\n\r]*$"
        return drawn

    def words(self) -> str:
        """Return its name."""
        return self.means or "text"


@dataclass(frozen=True, slots=True)
class Whole(Shape[int]):
    """A whole number within bounds; true and false are no numbers."""

    minimum: int | None = None
    maximum: int | None = None

    def read(self, node: Node, place: DocumentPosition) -> int | NoValue:
        """Read a whole number."""
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int):
            return wrong_kind(node, place, "a whole number")
        return INVALID if _out_of_bounds(self, value, node, place) else value

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an integer schema."""
        return {"type": "integer", **_bounds(self)}

    def words(self) -> str:
        """Return its name."""
        return "whole number" + _bounds_in_words(self)


@dataclass(frozen=True, slots=True)
class Number(Shape[float]):
    """A number within bounds; `above` excludes the lower bound itself."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None

    def read(self, node: Node, place: DocumentPosition) -> float | NoValue:
        """Read a number."""
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return wrong_kind(node, place, "a number")
        if self.above is not None and value <= self.above:
            return place.error(node, f"must be above {_shown(self.above)}, not {_shown(value)}")
        return INVALID if _out_of_bounds(self, value, node, place) else value

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a number schema."""
        drawn: JsonObject = {"type": "number", **_bounds(self)}
        if self.above is not None:
            drawn["exclusiveMinimum"] = self.above
        return drawn

    def words(self) -> str:
        """Return its name."""
        low = f" above {_shown(self.above)}" if self.above is not None else ""
        return "number" + low + _bounds_in_words(self)


@dataclass(frozen=True, slots=True)
class Flag(Shape[bool]):
    """True or false."""

    WORDS = "true or false"

    def read(self, node: Node, place: DocumentPosition) -> bool | NoValue:
        """Read true or false."""
        value = node.value
        return value if isinstance(value, bool) else wrong_kind(node, place, "true or false")

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a boolean schema."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice(Shape[E]):
    """One word out of a closed set."""

    kind: type[E]

    def read(self, node: Node, place: DocumentPosition) -> E | NoValue:
        """Read one of the words."""
        known = [member.value for member in self.kind]
        value = node.value
        listed = ", ".join(known)
        if not isinstance(value, str):
            return wrong_kind(node, place, f"text (one of {listed})")
        if value not in known:
            near = nearest(value, known)
            fix = f"did you mean {near!r}?" if near else f"write one of {listed}"
            return place.error(node, f"{place.show(value)} is not one of {listed}", fix)
        return self.kind(value)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an enumeration."""
        values: list[JsonValue] = [member.value for member in self.kind]
        return {"type": "string", "enum": values}

    def words(self) -> str:
        """Return its name."""
        return " or ".join(f"`{member.value}`" for member in self.kind)


def _out_of_bounds(
    shape: Whole | Number, value: float, node: Node, place: DocumentPosition
) -> bool:
    low, high = shape.minimum, shape.maximum
    if (low is None or value >= low) and (high is None or value <= high):
        return False
    if low is not None and high is not None:
        wanted = f"must be from {_shown(low)} to {_shown(high)}"
    elif low is not None:
        wanted = f"must be at least {_shown(low)}"
    else:
        wanted = f"must be at most {_shown(high or 0)}"
    place.error(node, f"{wanted}, not {_shown(value)}")
    return True


def _bounds(shape: Whole | Number) -> JsonObject:
    drawn: JsonObject = {}
    if shape.minimum is not None:
        drawn["minimum"] = shape.minimum
    if shape.maximum is not None:
        drawn["maximum"] = shape.maximum
    return drawn


def _bounds_in_words(shape: Whole | Number) -> str:
    low, high = shape.minimum, shape.maximum
    if high is not None and high >= _NO_REAL_LIMIT:
        high = None
    if low is not None and low == high:
        return f", always {_shown(low)}"
    if low is not None and high is not None:
        return f", {_shown(low)} to {_shown(high)}"
    if low is not None:
        return f", at least {_shown(low)}"
    return "" if high is None else f", at most {_shown(high)}"


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


def _looks_numeric(text: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", text.strip()) is not None
