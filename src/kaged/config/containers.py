"""Shapes that hold shapes: lists, maps, free JSON, parsed values, secrets, self-reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, Odd, to_json
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.secret import Secret
from kaged.config.shapes import Shape, TextShape, wrong_kind

T = TypeVar("T")
U = TypeVar("U")

ANY_NAME: Final = TextShape(max_chars=256)
"""A name that is only limited in length."""


@dataclass(frozen=True, slots=True)
class ListOf(Shape[tuple[T, ...]]):
    """A list whose items all have one shape."""

    item: Shape[T]
    min_items: int = 0
    max_items: int = 1000
    unique: bool = False

    def read(self, node: Node, place: DocumentPosition) -> tuple[T, ...] | NoValue:
        """Read every item; one bad item makes the list invalid."""
        if not isinstance(node.value, tuple):
            return wrong_kind(node, place, "a list")
        if len(node.value) < self.min_items:
            return place.error(node, "may not be an empty list")
        if len(node.value) > self.max_items:
            return place.error(node, f"has more than {self.max_items} items")
        items: list[T] = []
        complete = True
        for index, inner in enumerate(node.value):
            item = self.item.read(inner, place.under(index, inner.mark))
            if isinstance(item, NoValue):
                complete = False
            elif self.unique and item in items:
                place.under(index, inner.mark).error(inner, f"{place.show(item)} is listed twice")
                complete = False
            else:
                items.append(item)
        return tuple(items) if complete else INVALID

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an array schema."""
        drawn: JsonObject = {"type": "array", "items": self.item.schema(defs)}
        if self.min_items:
            drawn["minItems"] = self.min_items
        if self.unique:
            drawn["uniqueItems"] = True
        return drawn

    def words(self) -> str:
        """Return its name."""
        return f"list of {bare_words(self.item)}"


@dataclass(frozen=True, slots=True)
class OneOrList(Shape[tuple[T, ...]]):
    """A list whose only item may stand without the brackets; `means` is its name."""

    listed: ListOf[T]
    means: str

    def read(self, node: Node, place: DocumentPosition) -> tuple[T, ...] | NoValue:
        """Read either form."""
        bare = isinstance(node.value, str)
        return self.listed.read(Node((node,), node.mark) if bare else node, place)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return both forms."""
        return {"oneOf": [self.listed.item.schema(defs), self.listed.schema(defs)]}

    def words(self) -> str:
        """Return its name."""
        return self.means


@dataclass(frozen=True, slots=True)
class NamedValues(Shape[U], Generic[T, U]):
    """A map with free names whose values all have one shape; `names` is what names look like."""

    value: Shape[T]
    names: Shape[str] = ANY_NAME

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an object schema with free property names."""
        drawn: JsonObject = {"type": "object", "additionalProperties": self.value.schema(defs)}
        names = self.names.schema(defs)
        names.pop("type", None)
        if names:
            drawn["propertyNames"] = names
        return drawn

    def words(self) -> str:
        """Return its name."""
        return f"map of {bare_words(self.value)}"


@dataclass(frozen=True, slots=True)
class MapOf(NamedValues[T, Mapping[str, T]]):
    """A map of values that are read into a map; one bad value makes the map invalid."""

    max_items: int = 1000

    def read(self, node: Node, place: DocumentPosition) -> Mapping[str, T] | NoValue:
        """Read every pair; one bad pair makes the map invalid."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a map")
        if len(node.value) > self.max_items:
            return place.error(node, f"has more than {self.max_items} entries")
        pairs: dict[str, T] = {}
        complete = True
        for name, entry in node.value.items():
            below = place.under(name, entry.mark)
            named = self.names.read(Node(name, entry.mark), below)
            item = self.value.read(entry.node, below)
            if isinstance(item, NoValue) or isinstance(named, NoValue):
                complete = False
            else:
                pairs[name] = item
        return MappingProxyType(pairs) if complete else INVALID


@dataclass(frozen=True, slots=True)
class JsonTable(Shape[Mapping[str, JsonValue]]):
    """A map of anything that JSON can hold."""

    WORDS = "map of anything"

    def read(self, node: Node, place: DocumentPosition) -> Mapping[str, JsonValue] | NoValue:
        """Read a map as plain data, remembering where its keys stand."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a map")
        if not _is_json(node, place):
            return INVALID
        for name, entry in node.value.items():
            place.under(name, entry.mark)
        data = to_json(node)
        assert isinstance(data, dict)
        return MappingProxyType(data)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an open object schema."""
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Wrapper(Shape[U], Generic[T, U]):
    """A shape around another one that is written in the same way."""

    inner: Shape[T]

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return the inner shape's schema."""
        return self.inner.schema(defs)

    def words(self) -> str:
        """Return the inner shape's name."""
        return self.inner.words()


@dataclass(frozen=True, slots=True)
class Mapped(Wrapper[T, U], Generic[T, U]):
    """A shape whose value is parsed further; `parse` refuses with a `KagedError`.

    `show` False keeps the value out of messages, for texts that may hold a password.
    """

    parse: Callable[[T], U]
    means: str = ""
    show: bool = True

    def read(self, node: Node, place: DocumentPosition) -> U | NoValue:
        """Read the inner shape, then parse it."""
        value = self.inner.read(node, place)
        if isinstance(value, NoValue):
            return INVALID
        try:
            return self.parse(value)
        except KagedError as error:
            hide = place.reading.secretive or not self.show
            shown = "" if hide else f"{place.show(value)}: "
            return place.error(node, shown + error.message, error.fix or "", error.code)

    def words(self) -> str:
        """Return its name."""
        return self.means or self.inner.words()


@dataclass(frozen=True, slots=True)
class Hidden(Wrapper[T, Secret[T]]):
    """A shape whose value is kept in a `Secret`."""

    def read(self, node: Node, place: DocumentPosition) -> Secret[T] | NoValue:
        """Read the inner shape and hide it."""
        value = self.inner.read(node, place)
        return INVALID if isinstance(value, NoValue) else Secret(value)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return the inner shape's schema, marked as write-only."""
        return {**self.inner.schema(defs), "writeOnly": True}

    def words(self) -> str:
        """Return its name."""
        return f"{self.inner.words()} (secret)"


@dataclass(frozen=True, slots=True)
class Later(Shape[T]):
    """A shape that is looked up when it is used, for shapes that contain themselves."""

    find: Callable[[], Shape[T]]

    def read(self, node: Node, place: DocumentPosition) -> T | NoValue:
        """Read with the shape found."""
        return self.find().read(node, place)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return the shape found."""
        return self.find().schema(defs)

    def words(self) -> str:
        """Return its name."""
        return self.find().words()


def bare_words(shape: Shape[Any]) -> str:
    """Return a shape's name without its article, to stand behind "list of"."""
    return re.sub(r"^(?:an?|the) ", "", shape.words())


def _is_json(node: Node, place: DocumentPosition) -> bool:
    value = node.value
    if isinstance(value, Odd):
        if not value.reported:
            place.error(node, f"may not hold {value.kind}", "put it in quotes", "wrong_type")
        return False
    inner: list[tuple[str | int, Node]] = []
    if isinstance(value, tuple):
        inner = list(enumerate(value))
    elif isinstance(value, Mapping):
        inner = [(name, entry.node) for name, entry in value.items()]
    # Every item is looked at, so that every problem is found.
    good = [_is_json(item, place.under(step, item.mark)) for step, item in inner]
    return all(good)
