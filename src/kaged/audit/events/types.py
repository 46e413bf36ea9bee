"""`EventType` and `Field`: the shape of one audit event, declared as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from kaged.base.lazy_dataclass import dataclass

SHAPES_LIMIT = 64  # per event; those that happen have one or two


class FieldKind(StrEnum):
    """What a field holds, and with that how it is checked and shortened before it is written."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "boolean"
    LIST = "list"
    OBJECT = "object"
    ANY = "any"
    CUT = "cut"  # text of which only the first 200 characters are kept
    SQL = "sql"  # SQL of which the literals are taken out
    TAIL = "tail"  # a list of lines of which only the last 50 are kept


ACCEPTED: Mapping[FieldKind, tuple[type, ...]] = MappingProxyType(
    {
        FieldKind.TEXT: (str,),
        FieldKind.INTEGER: (int,),
        FieldKind.NUMBER: (int, float),
        FieldKind.FLAG: (bool,),
        FieldKind.LIST: (list, tuple),
        FieldKind.OBJECT: (dict,),
        FieldKind.ANY: (object,),
        FieldKind.CUT: (str,),
        FieldKind.SQL: (str,),
        FieldKind.TAIL: (list, tuple),
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an event's data. `nullable` means that null says "not known" or "none"."""

    name: str
    kind: FieldKind
    required: bool = True
    nullable: bool = False


class EventShape(NamedTuple):
    """What the names and types of an event's fields say about it.

    `texts` are the fields that hold text, `holders` those whose value somebody could still change.
    """

    texts: tuple[str, ...]
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventType:
    """One declared event: its name, when it is written, its fields.

    `gates` is true when the action that the event announces waits until the event is durable; a
    sink that cannot write then stops the action.
    """

    name: str
    doc: str
    fields: tuple[Field, ...]
    gates: bool = False
    # Worked out once: events are made far more often than declared.
    required: frozenset[str] = field(init=False, repr=False, compare=False)
    by_name: Mapping[str, Field] = field(init=False, repr=False, compare=False)
    accepted: Mapping[str, frozenset[type]] = field(init=False, repr=False, compare=False)
    shortened: Mapping[str, FieldKind] = field(init=False, repr=False, compare=False)
    holders: tuple[str, ...] = field(init=False, repr=False, compare=False)
    # By names and exact types in their order: what was found right once is right again.
    shapes: dict[tuple[object, ...], EventShape] = field(
        default_factory=dict[tuple[object, ...], EventShape], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Work out the lookups that every construction of an event needs."""
        by_name = {one.name: one for one in (*COMMON_FIELDS, *self.fields)}
        for name, value in (
            ("required", frozenset(one.name for one in self.fields if one.required)),
            ("by_name", by_name),
            ("accepted", {one.name: _plain_types(one) for one in by_name.values()}),
            ("shortened", {one.name: one.kind for one in self.fields if one.kind in _SHORTENED}),
            ("holders", tuple(one.name for one in self.fields if one.kind in _HOLDERS)),
        ):
            object.__setattr__(self, name, value)


_SHORTENED = (FieldKind.CUT, FieldKind.SQL, FieldKind.TAIL)
_HOLDERS = (FieldKind.LIST, FieldKind.OBJECT, FieldKind.ANY, FieldKind.TAIL)
_JSON_TYPES = (str, int, float, bool, dict, list, type(None))


def _plain_types(one: Field) -> frozenset[type]:
    """Return the exact types that a field takes without a closer look, null among them."""
    if one.kind is FieldKind.ANY:
        return frozenset(_JSON_TYPES)
    return frozenset((*ACCEPTED[one.kind], *((type(None),) if one.nullable else ())))


# Who and where: every event may carry these beside its own fields.
COMMON_FIELDS = (
    Field("agent_path", FieldKind.TEXT, required=False, nullable=True),
    Field("caller", FieldKind.TEXT, required=False, nullable=True),
    Field("operator_id", FieldKind.TEXT, required=False, nullable=True),
    Field("project_id", FieldKind.TEXT, required=False, nullable=True),
    Field("request_id", FieldKind.TEXT, required=False, nullable=True),
    Field("run_id", FieldKind.TEXT, required=False, nullable=True),
    Field("session_id", FieldKind.TEXT, required=False, nullable=True),
)

_SHORT = {
    "str": FieldKind.TEXT,
    "int": FieldKind.INTEGER,
    "num": FieldKind.NUMBER,
    "bool": FieldKind.FLAG,
    "list": FieldKind.LIST,
    "obj": FieldKind.OBJECT,
    "any": FieldKind.ANY,
    "cut": FieldKind.CUT,
    "sql": FieldKind.SQL,
    "tail": FieldKind.TAIL,
}


@dataclass(frozen=True, slots=True)
class Chapter:
    """The events that one document, or the daemon itself, brings."""

    title: str
    events: tuple[EventType, ...]


def event(
    name: str, doc: str, fields: str = "", optional: str = "", *, gates: bool = False
) -> EventType:
    """Declare an event; fields are written `name:kind`, with `?` behind a kind that may be null."""
    parsed = (*_parse(fields, required=True), *_parse(optional, required=False))
    return EventType(name, doc, parsed, gates)


def _parse(text: str, *, required: bool) -> tuple[Field, ...]:
    found: list[Field] = []
    for word in text.split():
        name, _, kind = word.rpartition(":")
        found.append(Field(name, _SHORT[kind.removesuffix("?")], required, kind.endswith("?")))
    return tuple(found)
