"""`ToolRule`: one line of an agent's `tools:` map, checked as far as that needs no registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import MapEntry, Node
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.shapes import Shape, wrong_kind

MAX_TOOL_RULES: Final = 500

ROOT_ONLY_TOOLS: Final = (
    "kaged.issue",
    "kaged.issue.list",
    "kaged.issue.get",
    "kaged.issue.create",
    "kaged.issue.comment",
    "kaged.issue.transition",
    "kaged.todo",
    "kaged.ask",
    "kaged.form",
    "kaged.workflow.list",
    "kaged.workflow.trigger",
    "kaged.workflow.status",
)
"""Tools, with their older names, that only the root agent may have (AT-SCOPE-01)."""

NAME_PATTERN: Final = r"[A-Za-z*][A-Za-z0-9_*-]*(?:\.[A-Za-z0-9_*-]+)*"
_NAME = re.compile(NAME_PATTERN)
_SYNTHETIC = re.compile(r"agent-[a-z0-9_*-]*")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A name or glob and whether the tools it matches are on; `line` is where it stands."""

    pattern: str
    enabled: bool
    line: int

    def matches(self, name: str) -> bool:
        """Return whether the rule is about this tool; `*` stands for any characters, dots too."""
        return glob_matches(self.pattern, name)

    @property
    def exact(self) -> bool:
        """Whether the pattern is a plain name."""
        return "*" not in self.pattern

    @property
    def specificity(self) -> tuple[bool, int]:
        """How specific the rule is; of several that match the greatest wins, then the last."""
        return self.exact, len(self.pattern.partition("*")[0])


@dataclass(frozen=True, slots=True)
class ToolRulesShape(Shape[tuple[ToolRule, ...]]):
    """A map of tool name or glob to `{enabled: true}` or `{enabled: false}`."""

    WORDS = "map of tool name or glob to `{enabled: true or false}`"

    def read(self, node: Node, place: DocumentPosition) -> tuple[ToolRule, ...] | NoValue:
        """Read the rules in the order of the file."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a map")
        if len(node.value) > MAX_TOOL_RULES:
            return place.error(node, f"has more than {MAX_TOOL_RULES} entries")
        rules: list[ToolRule] = []
        complete = True
        for pattern, entry in node.value.items():
            rule = _read_rule(pattern, entry, place.under(pattern, entry.mark))
            if isinstance(rule, NoValue):
                complete = False
            else:
                rules.append(rule)
        return tuple(rules) if complete else INVALID

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a map of switches."""
        defs["ToolSwitch"] = {
            "type": "object",
            "properties": {"enabled": {"type": "boolean"}},
            "required": ["enabled"],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "propertyNames": {
                "pattern": f"^(?:{NAME_PATTERN})$",
                "not": {"pattern": f"^(?:{_SYNTHETIC.pattern})$"},
            },
            "additionalProperties": {"$ref": "#/$defs/ToolSwitch"},
        }


def check_root_only(
    rules: tuple[ToolRule, ...], node: Node, place: DocumentPosition, agent: str
) -> None:
    """Refuse rules that switch a root-only tool on for an agent that is not the root."""
    for rule in rules:
        if not rule.enabled:
            continue
        matched = [name for name in ROOT_ONLY_TOOLS if rule.matches(name)]
        if not matched:
            continue
        entry = node.entry(rule.pattern)
        at = node if entry is None else entry.mark
        named = matched[0] if rule.exact else f"{matched[0]} (matched by {rule.pattern!r})"
        place.under(rule.pattern, at.mark if isinstance(at, Node) else at).error(
            at,
            f"{named} is for the root agent only and cannot be enabled on {agent}",
            "remove the entry, or name the tools one by one",
            "principal_scope",
        )


def _read_rule(pattern: str, entry: MapEntry, place: DocumentPosition) -> ToolRule | NoValue:
    if _SYNTHETIC.fullmatch(pattern):
        return place.error(
            entry.mark,
            "agent-… tools follow from the tree of subagents and cannot be switched",
            "remove the entry; to take the tool away, remove the subagent",
            "synthetic_tool",
        )
    if not _NAME.fullmatch(pattern) or len(pattern) > 200:
        return place.error(
            entry.mark,
            "is no tool name and no glob",
            "write for example file.read or file.*; * is the only wildcard",
        )
    value = entry.node.value
    enabled = entry.node.child("enabled")
    if not isinstance(value, Mapping) or enabled is None or len(value) != 1:
        return place.error(
            entry.node,
            "must be {enabled: true} or {enabled: false}, with nothing else in it",
            "write { enabled: true }",
            "wrong_type",
        )
    if not isinstance(enabled.value, bool):
        return wrong_kind(enabled, place.under("enabled", enabled.mark), "true or false")
    return ToolRule(pattern, enabled.value, entry.mark.line)


def glob_matches(pattern: str, name: str) -> bool:
    """Return whether a glob with `*` as its only wildcard matches the whole name.

    Takes the leftmost place for each piece, so no pattern makes it slow.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    at = len(first)
    for piece in rest[:-1]:
        found = name.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    last = rest[-1]
    return name.endswith(last) and len(name) - len(last) >= at
