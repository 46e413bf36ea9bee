"""Reading knobs from a manifest: the right type, whole, and in agreement with itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.config.containers import MapOf
from kaged.config.jsonschemas import compile_fault
from kaged.config.knobs import (
    KNOB_NAME_PATTERN,
    KNOB_TYPES,
    Knob,
    KnobFacts,
    ModelAliasKnob,
    PathKnob,
)
from kaged.config.nodes import Node
from kaged.config.reading import INVALID, DocumentPosition, NoValue, nearest
from kaged.config.records import RecordShape, keys_of, strict
from kaged.config.shapes import Shape, TextShape, wrong_kind


class KnobShape(Shape[Knob]):
    """A knob of one of the eight types; unknown keys are errors."""

    WORDS = "knob"

    def read(self, node: Node, place: DocumentPosition) -> Knob | NoValue:
        """Read the type, then the knob."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a map")
        kind = node.child("type")
        if kind is None:
            return place.at("type").error(node, "is missing", f"one of {_types()}", "missing_key")
        if not isinstance(kind.value, str) or kind.value not in KNOB_TYPES:
            near = nearest(str(kind.value), KNOB_TYPES)
            return place.under("type", kind.mark).error(
                kind,
                f"{place.show(kind.value)} is no type of knob",
                f"did you mean {near!r}?" if near else f"one of {_types()}",
            )
        shape = _SHAPES[kind.value]
        knob = shape.read(node, place)
        return INVALID if isinstance(knob, NoValue) else knob

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return one alternative per type."""
        drawn: list[JsonValue] = []
        for name, shape in _SHAPES.items():
            ref = shape.schema(defs)
            drawn.append({"allOf": [{"properties": {"type": {"const": name}}}, ref]})
        return {"oneOf": drawn}


def _check_knob(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    """Check that a knob agrees with itself: its default, its bounds, its labels."""
    low, high = given.get("min"), given.get("max")
    if low is not None and high is not None and low > high:
        place.error(node.child("min") or node, f"min {low} is above max {high}", "swap them")
        return
    pattern = node.child("pattern")
    if pattern is not None and "pattern" in given:
        fault = compile_fault({"type": "string", "pattern": given["pattern"]})
        if fault is not None:
            place.under("pattern", pattern.mark).error(pattern, "is no regular expression")
            return
    labels: Mapping[str, str] = given.get("labels", {})
    for name in labels:
        if name not in given.get("values", (name,)):
            place.error(
                node.child("labels") or node, f"labels has {name!r}, which is not in values"
            )
    cls = KNOB_TYPES[given["type"]]
    if not all(item in given for item in _required(cls)):
        return
    reason = _default_refusal(cls(**given))
    if reason:
        default = node.child("default")
        place.under("default", (default or node).mark).error(default or node, reason)


def _default_refusal(knob: Knob) -> str:
    if isinstance(knob, ModelAliasKnob):
        # Which models there are is known on the operator's machine, not when the plugin is made.
        return ""
    if isinstance(knob, PathKnob):
        return knob.form_refusal(knob.default)
    return knob.refusal(knob.default, KnobFacts())


def _required(cls: type[Any]) -> tuple[str, ...]:
    return tuple(item.field for item in keys_of(cls) if item.required)


def _types() -> str:
    return ", ".join(KNOB_TYPES)


_SHAPES: Final[Mapping[str, RecordShape[Any]]] = MappingProxyType(
    {name: strict(cls, check=_check_knob) for name, cls in KNOB_TYPES.items()}
)

KNOBS_SHAPE: Final = MapOf(
    KnobShape(),
    TextShape(
        max_chars=64, pattern=KNOB_NAME_PATTERN, means="a knob name (lower case, digits and _)"
    ),
    max_items=200,
)
