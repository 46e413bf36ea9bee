"""Records: frozen dataclasses whose fields say which key they come from and what it looks like.

```python
@record
class StorageSection:
    \"\"\"Where the daemon keeps its data.\"\"\"

    url: str = key(Text(), "The database to use.", default="sqlite://")
```

`RecordShape(StorageSection)` reads it; the JSON Schema and the reference pages come from the same
declarations, so none of the three can drift.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, dataclass_transform

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import MapEntry, Node, to_json
from kaged.config.problems import Severity, format_key_path
from kaged.config.reading import INVALID, DocumentPosition, NoValue, nearest
from kaged.config.shapes import Shape, wrong_kind

T = TypeVar("T")
R = TypeVar("R")

_SPEC = "kaged.config.key"
_ABSENT: Any = MISSING


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a record: its name in the file, its shape and what it is for."""

    name: str
    field: str
    shape: Shape[Any]
    doc: str
    required: bool
    default: Any
    aliases: tuple[str, ...]


def key(
    shape: Shape[T],
    doc: str,
    *,
    default: T = _ABSENT,
    default_factory: Callable[[], T] = _ABSENT,
    name: str = "",
    aliases: tuple[str, ...] = (),
) -> T:
    """Declare a field that is read from a key; without a default the key is required."""
    spec = {"shape": shape, "doc": doc, "name": name, "aliases": aliases}
    given: dict[str, Any] = {"default": default, "default_factory": default_factory}
    made: Any = dataclasses.field(**given, metadata={_SPEC: spec})
    return cast("T", made)


def optional(
    shape: Shape[T], doc: str, *, default: None, name: str = "", aliases: tuple[str, ...] = ()
) -> T | None:
    """Declare a field that is None unless its key is given.

    `default=None` is written at each use because type checkers look for it there.
    """
    spec = {"shape": shape, "doc": doc, "name": name, "aliases": aliases}
    made: Any = dataclasses.field(default=default, metadata={_SPEC: spec})
    return cast("T | None", made)


def section(doc: str, *, factory: Callable[[], T], unknown: Severity = Severity.WARNING) -> T:
    """Declare a field that is a table of its own. `factory` is its record, which needs no key."""
    return key(RecordShape(cast("type[T]", factory), unknown=unknown), doc, default_factory=factory)


def empty_map() -> Mapping[str, Any]:
    """Return an empty frozen map, for defaults."""
    return MappingProxyType({})


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(key, optional, section, dataclasses.field),
)
def record(cls: type[R]) -> type[R]:
    """Make a class a frozen dataclass with slots whose arguments have names."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@cache
def keys_of(cls: type[Any]) -> tuple[Key, ...]:
    """List the keys of a record in the order of declaration."""
    found: list[Key] = []
    for item in dataclasses.fields(cls):
        spec = item.metadata.get(_SPEC)
        if spec is None:
            continue
        required = item.default is MISSING and item.default_factory is MISSING
        default = item.default if item.default is not MISSING else None
        if item.default_factory is not MISSING:
            default = item.default_factory()
        found.append(
            Key(
                name=spec["name"] or item.name,
                field=item.name,
                shape=spec["shape"],
                doc=spec["doc"],
                required=required,
                default=default,
                aliases=spec["aliases"],
            )
        )
    return tuple(found)


Check = Callable[[Mapping[str, Any], Node, DocumentPosition], None]
"""Looks at the fields that could be read, by field name, and notes what does not fit together."""


def strict(cls: type[R], *, check: Check | None = None) -> RecordShape[R]:
    """Return the shape of a record for which an unknown key is an error."""
    return RecordShape(cls, unknown=Severity.ERROR, check=check)


@dataclass(frozen=True, slots=True)
class RecordShape(Shape[R], Generic[R]):
    """A map with fixed keys, read into a record.

    `hints` maps keys that people put here by mistake to a sentence that says where they belong.
    `unknown` says how unknown keys count. `extras` names a field and the shape of the map that
    takes unknown keys instead; a key with a hint is refused all the same.
    """

    WORDS = "table"

    cls: type[R]
    hints: Mapping[str, str] = dataclasses.field(default_factory=empty_map)
    unknown: Severity = Severity.WARNING
    check: Check | None = None
    extras: tuple[str, Shape[Any]] | None = None
    schema_extra: Mapping[str, JsonValue] = dataclasses.field(default_factory=empty_map)

    def read(self, node: Node, place: DocumentPosition) -> R | NoValue:
        """Read every key, note the unknown and missing ones, then check how they fit."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a map")
        fields, complete = self.read_fields(node, node.value, place)
        if self.check is not None:
            before = place.reading.errors
            self.check(MappingProxyType(fields), node, place)
            complete = complete and place.reading.errors == before
        return self.cls(**fields) if complete else INVALID

    def read_fields(
        self, node: Node, pairs: Mapping[str, MapEntry], place: DocumentPosition
    ) -> tuple[dict[str, Any], bool]:
        """Read the keys into field values; return whether all of them could be read."""
        fields: dict[str, Any] = {}
        complete = True
        taken: set[str] = set()
        for item in keys_of(self.cls):
            entry = self._find(item, pairs, place, taken)
            if entry is None:
                if item.required:
                    fix = f"add {item.name}"
                    place.at(item.name).error(node, "is missing", fix, "missing_key")
                    complete = False
                continue
            value = item.shape.read(entry.node, place.under(item.name, entry.mark))
            if isinstance(value, NoValue):
                complete = False
            else:
                fields[item.field] = value
        extras = {name: entry for name, entry in pairs.items() if name not in taken}
        if self.extras is not None:
            field_name, shape = self.extras
            for name in sorted(extras.keys() & self.hints.keys()):
                mark = extras[name].mark
                below = place.under(name, mark)
                below.error(mark, "is not allowed here", self.hints[name], "unknown_key")
                complete = False
            value = shape.read(Node(extras, node.mark), place)
            if isinstance(value, NoValue):
                complete = False
            else:
                fields[field_name] = value
        else:
            for name, entry in extras.items():
                complete = self._note_unknown(name, entry, place) and complete
        return fields, complete

    def _find(
        self, item: Key, pairs: Mapping[str, MapEntry], place: DocumentPosition, taken: set[str]
    ) -> MapEntry | None:
        found: MapEntry | None = None
        for name in (item.name, *item.aliases):
            entry = pairs.get(name)
            if entry is None:
                continue
            taken.add(name)
            if found is not None and to_json(found.node) != to_json(entry.node):
                place.under(name, entry.mark).error(
                    entry.mark,
                    f"says something else than {item.name}, which means the same",
                    f"keep {item.name} only",
                    "conflicting_keys",
                )
            found = found or entry
        return found

    def _note_unknown(self, name: str, entry: MapEntry, place: DocumentPosition) -> bool:
        below = place.under(name, entry.mark)
        known = [item.name for item in keys_of(self.cls)]
        near = nearest(name, known)
        if name in self.hints:
            message, fix = "is not allowed here", self.hints[name]
        elif near is not None:
            message, fix = "is an unknown key", f"did you mean {format_key_path([near])}?"
        else:
            message, fix = "is an unknown key", f"known keys: {', '.join(known)}"
        if self.unknown is Severity.ERROR:
            below.error(entry.mark, message, fix, "unknown_key")
            return False
        below.warn(entry.mark, message, fix, "unknown_key")
        return True

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return an object schema under the record's name in `defs` and point to it."""
        name = self.cls.__name__.lstrip("_")
        if name not in defs:
            defs[name] = {}
            defs[name] = self._draw(defs)
        return {"$ref": f"#/$defs/{name}"}

    def _draw(self, defs: JsonObject) -> JsonObject:
        properties: JsonObject = {}
        required: list[JsonValue] = []
        for item in keys_of(self.cls):
            drawn = dict(item.shape.schema(defs))
            drawn["description"] = item.doc
            for name in (item.name, *item.aliases):
                properties[name] = drawn
            if item.required:
                required.append(item.name)
        doc = (self.cls.__doc__ or "").strip().splitlines()[0]
        result: JsonObject = {"type": "object", "description": doc, "properties": properties}
        if required:
            result["required"] = required
        if self.extras is None and self.unknown is Severity.ERROR:
            result["additionalProperties"] = False
        return {**result, **self.schema_extra}
