"""`Node`: plain data with the place it was written at, the same for YAML and TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import Mark, Problem


@dataclass(frozen=True, slots=True)
class Odd:
    """A value that JSON does not have, such as a TOML date; `kind` says which with its article.

    `reported` means that the parser has complained about it already.
    """

    kind: str
    text: str
    reported: bool = False


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One pair of a map: where its key stands, and its value."""

    mark: Mark
    node: Node


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it starts. Maps keep the order of the file."""

    value: NodeValue
    mark: Mark

    def entry(self, name: str) -> MapEntry | None:
        """Find a pair if this is a map that has it."""
        return self.value.get(name) if isinstance(self.value, Mapping) else None

    def child(self, name: str) -> Node | None:
        """Find a value if this is a map that has it."""
        entry = self.entry(name)
        return None if entry is None else entry.node


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a parser made of a text: a node, unless the text was too broken, and its complaints."""

    node: Node | None
    problems: tuple[Problem, ...] = ()


Scalar: TypeAlias = bool | int | float | str | None
NodeValue: TypeAlias = "Scalar | Odd | tuple[Node, ...] | Mapping[str, MapEntry]"


def kind_of(value: NodeValue) -> str:
    """Return the kind of a value for a message, with its article."""
    match value:
        case None:
            name = "nothing"
        case bool():
            name = "true or false"
        case int() | float():
            name = "a number"
        case str():
            name = "text"
        case Odd():
            name = value.kind
        case tuple():
            name = "a list"
        case _:
            name = "a map"
    return name


def to_json(node: Node) -> JsonValue:
    """Drop the places and keep the data. An `Odd` value becomes its text."""
    value = node.value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {name: to_json(entry.node) for name, entry in value.items()}
    return value.text if isinstance(value, Odd) else value
