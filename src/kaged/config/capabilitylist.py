"""The shape of a capability list, as manifests and operator grants write it."""

from __future__ import annotations

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, to_json
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.shapes import Shape, wrong_kind
from kaged.kernel.capabilities import (
    FORMS,
    CapabilityInvalid,
    CapabilitySet,
    parse_capabilities,
    parse_capability,
)

_PATH = r"(?:config:|project:)?/[^*?\[\x00-\x1f\x7f]*"
CAPABILITY_PATTERN = (
    rf"^(?:(?:read|write):fs:{_PATH}|exec:[A-Za-z0-9_][A-Za-z0-9_.+-]*:{_PATH}"
    r"|net:\*|net: ?\[\]|net:(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/*]+):(?:\*|[1-9][0-9]{0,4})"
    r"|kaged:storage:(?:read|write)|kaged:events:(?:publish|subscribe))$"
)
"""The grammar as far as a regular expression can say it; `..` and port ranges go beyond it."""


@dataclass(frozen=True, slots=True)
class CapabilityListShape(Shape[CapabilitySet]):
    """A list of capabilities; every wrong entry is reported at its own line."""

    WORDS = "list of capabilities"

    def read(self, node: Node, place: DocumentPosition) -> CapabilitySet | NoValue:
        """Read the list with the kernel's grammar."""
        if not isinstance(node.value, tuple):
            return wrong_kind(node, place, "a list of capabilities")
        before = place.reading.errors
        for index, item in enumerate(node.value):
            try:
                parse_capability(to_json(item))
            except CapabilityInvalid as error:
                found = error.problems[0]
                fix = f"did you mean {found.nearest}?" if found.nearest else f"forms: {_forms()}"
                shown = found.text
                if place.reading.secretive:
                    shown, fix = "the entry", f"forms: {_forms()}"
                place.under(index, item.mark).error(
                    item, f"{shown} {found.message}", fix, "bad_capability"
                )
        if place.reading.errors > before:
            return INVALID
        try:
            return parse_capabilities(to_json(node))
        except CapabilityInvalid as error:
            for found in error.problems:
                place.error(node, f"{found.text} {found.message}", code="bad_capability")
            return INVALID

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a list of texts, with the one mapping that is allowed."""
        nothing: JsonObject = {
            "type": "object",
            "properties": {"net": {"type": "array", "maxItems": 0}},
            "required": ["net"],
            "additionalProperties": False,
        }
        no_net: JsonObject = {"anyOf": [{"enum": ["net:[]", "net: []"]}, nothing]}
        named = r"^net:[^\[ ]|^net:\[[0-9A-Fa-f:.]+\]:"
        some_net: JsonObject = {"type": "string", "pattern": named}
        return {
            "type": "array",
            "maxItems": 256,
            "items": {"anyOf": [{"type": "string", "pattern": CAPABILITY_PATTERN}, nothing]},
            "not": {"allOf": [{"contains": no_net}, {"contains": some_net}]},
        }


def _forms() -> str:
    return ", ".join(FORMS)
