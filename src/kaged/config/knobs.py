"""Knobs: settings of a plugin that people may turn, declared in the manifest in eight fixed types.

A knob says how it is drawn, what it may hold and which field of the project-side config it writes.
`decide` judges a new value by the knob's own bounds; the config schema is judged beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import ListOf, MapOf
from kaged.config.jsonschemas import compile_schema
from kaged.config.localconfig import ModelTrait
from kaged.config.nodes import Node
from kaged.config.projectpaths import ProjectPathInvalid, parse_location
from kaged.config.reading import DocumentPosition, NoValue
from kaged.config.records import empty_map, key, optional, record
from kaged.config.shapes import Choice, Flag, Number, Shape, TextShape, Whole
from kaged.kernel.decision import Decision

MAX_LABEL_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 280
KNOB_NAME_PATTERN: Final = r"[a-z][a-z0-9_]*"
RULE: Final = "knob.bounds"

_ANY_TEXT: Final = TextShape(min_chars=0)
_LONG_TEXT: Final = TextShape(min_chars=0, one_line=False)


class ModelFilter(StrEnum):
    """Which models a model knob offers."""

    ANY = "any"
    REASONING = "reasoning"
    FAST = "fast"


class PathPrefix(StrEnum):
    """What a path knob's value may begin with."""

    PROJECT = "project:"
    CONFIG = "config:"


@dataclass(frozen=True, slots=True)
class KnobFacts:
    """What a knob must know of the world to judge a value.

    `models` are the operator's aliases with their traits; `exists` says whether a location such as
    `config:/memory` is there.
    """

    models: Mapping[str, frozenset[ModelTrait]] = field(default_factory=empty_map)
    exists: Callable[[str], bool] = lambda _: False


@record
class KnobBase:
    """What every knob has."""

    type: str = key(TextShape(), "One of the eight types.")
    label: str = key(TextShape(max_chars=MAX_LABEL_CHARS), "The words next to the control.")
    description: str = key(
        TextShape(min_chars=0, max_chars=MAX_DESCRIPTION_CHARS, one_line=False),
        "Help text.",
        default="",
    )
    binds_to: str = key(
        TextShape(max_chars=200),
        "The field of the project-side config it writes: `config.<field>`.",
    )

    @property
    def bound_field(self) -> str:
        """The name of the config field that the knob writes."""
        return self.binds_to.removeprefix("config.")

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Return why a value is out of the knob's bounds; empty when it is not."""
        raise TypeError("a knob has one of the eight types")

    def decide(self, value: JsonValue, facts: KnobFacts) -> Decision:
        """Decide whether the knob may be set to a value."""
        reason = self.refusal(value, facts)
        return Decision.deny(RULE, reason) if reason else Decision.allow(RULE)


@record
class RangeKnob(KnobBase):
    """A slider over numbers."""

    min: float = key(Number(), "The lowest value.")
    max: float = key(Number(), "The highest value.")
    step: float = key(Number(above=0), "The distance between values.")
    default: float = key(Number(), "The value at first.")

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "must be a number"
        return _out_of_range(self, value)


@record
class IntRangeKnob(KnobBase):
    """A slider over whole numbers."""

    min: int = key(Whole(), "The lowest value.")
    max: int = key(Whole(), "The highest value.")
    step: int = key(Whole(1), "The distance between values.")
    default: int = key(Whole(), "The value at first.")

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a whole number."""
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        return _out_of_range(self, value)


@record
class EnumKnob(KnobBase):
    """A choice between words."""

    values: tuple[str, ...] = key(
        ListOf(_ANY_TEXT, min_items=1, max_items=200, unique=True), "The words."
    )
    default: str = key(_ANY_TEXT, "The value at first.")
    labels: Mapping[str, str] = key(
        MapOf(TextShape(max_chars=200), _ANY_TEXT),
        "How the words are shown.",
        default_factory=empty_map,
    )

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a word."""
        return "" if value in self.values else f"must be one of {', '.join(self.values)}"


@record
class BooleanKnob(KnobBase):
    """A switch."""

    default: bool = key(Flag(), "The value at first.")

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a switch."""
        return "" if isinstance(value, bool) else "must be true or false"


@record
class TextKnob(KnobBase):
    """A line of text."""

    default: str = key(_ANY_TEXT, "The value at first.")
    max_length: int | None = optional(
        Whole(0, 1_000_000), "How many characters it may have.", default=None
    )
    pattern: str | None = optional(
        TextShape(max_chars=1000), "A regular expression it must match.", default=None
    )

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a line of text; the pattern may match anywhere, as in JSON Schema."""
        if not isinstance(value, str) or "\n" in value or "\r" in value:
            return "must be one line of text"
        if self.max_length is not None and len(value) > self.max_length:
            return f"must have at most {self.max_length} characters"
        if self.pattern is not None and not _matches(self.pattern, value):
            return f"must match {self.pattern}"
        return ""


@record
class MultilineKnob(KnobBase):
    """A text of several lines."""

    default: str = key(_LONG_TEXT, "The value at first.")
    max_length: int | None = optional(
        Whole(0, 1_000_000), "How many characters it may have.", default=None
    )

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a text."""
        if not isinstance(value, str):
            return "must be text"
        if self.max_length is not None and len(value) > self.max_length:
            return f"must have at most {self.max_length} characters"
        return ""


class _TextOrNull(Shape["str | None"]):
    """Text, or null for none."""

    WORDS = "text or null"

    def read(self, node: Node, place: DocumentPosition) -> str | NoValue | None:
        """Read either."""
        return None if node.value is None else TextShape(max_chars=128).read(node, place)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return either."""
        return {"type": ["string", "null"], "minLength": 1, "maxLength": 128}


@record
class ModelAliasKnob(KnobBase):
    """A choice between the operator's models."""

    default: str | None = key(_TextOrNull(), "The alias at first, or null for none.")
    filter: ModelFilter = key(
        Choice(ModelFilter), "Which models are offered.", default=ModelFilter.ANY
    )

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge an alias against the operator's models."""
        if value is None:
            return "" if self.default is None else "must be the alias of a model"
        if not isinstance(value, str) or value not in facts.models:
            return "must be the alias of a model in local.toml"
        wanted = self.filter.value
        if self.filter is not ModelFilter.ANY and wanted not in facts.models[value]:
            return f"must be the alias of a {wanted} model"
        return ""


@record
class PathKnob(KnobBase):
    """A place in the project, or in the directory kept for the plugin."""

    default: str = key(TextShape(max_chars=1000), "The value at first.")
    prefixes: tuple[PathPrefix, ...] = key(
        ListOf(Choice(PathPrefix), min_items=1, unique=True), "What the value may begin with."
    )
    must_exist: bool = key(Flag(), "Whether the place must be there already.", default=False)

    def refusal(self, value: JsonValue, facts: KnobFacts) -> str:
        """Judge a location."""
        reason = self.form_refusal(value)
        if not reason and self.must_exist and isinstance(value, str) and not facts.exists(value):
            return "must exist"
        return reason

    def form_refusal(self, value: JsonValue) -> str:
        """Judge the form of a location only."""
        listed = " or ".join(f"{prefix.value}/" for prefix in self.prefixes)
        if not isinstance(value, str) or not value.startswith(
            tuple(f"{prefix.value}/" for prefix in self.prefixes)
        ):
            return f"must begin with {listed}"
        try:
            parse_location(value)
        except ProjectPathInvalid as error:
            return error.message
        return ""


Knob: TypeAlias = (
    RangeKnob
    | IntRangeKnob
    | EnumKnob
    | BooleanKnob
    | TextKnob
    | MultilineKnob
    | ModelAliasKnob
    | PathKnob
)

KNOB_TYPES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "range": RangeKnob,
        "int_range": IntRangeKnob,
        "enum": EnumKnob,
        "boolean": BooleanKnob,
        "text": TextKnob,
        "multiline": MultilineKnob,
        "model_alias": ModelAliasKnob,
        "path": PathKnob,
    }
)
"""The eight types of knobs."""


def _out_of_range(knob: RangeKnob | IntRangeKnob, value: float) -> str:
    inside = knob.min <= value <= knob.max
    return "" if inside else f"must be from {knob.min} to {knob.max}"


def _matches(pattern: str, text: str) -> bool:
    validator = compile_schema({"pattern": pattern})
    return bool(validator.is_valid(text))
