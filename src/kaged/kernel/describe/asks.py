"""What something asks for, what changes between two asks, and the question to the operator."""

from __future__ import annotations

from collections.abc import Sequence

from kaged.base.jsonvalue import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities import CapabilityDiff, CapabilitySet, ManifestCapability
from kaged.kernel.describe.grants import describe_grant
from kaged.kernel.describe.sentence import Sentence, SentenceSeverity

_QUESTIONS = {
    "fetch": "Fetch {name} from {source}? [y/N]",
    "install": "Install {name}? [y/N]",
    "upgrade": "Upgrade {name} {old} → {new}? [y/N]",
    "downgrade": "Downgrade {name} {old} → {new}? [y/N]",
    "renew": "Accept the changed files of {name}? [y/N]",
    "use": "Let this project use {name}? [y/N]",
    "path": "{name}: {source}. Path of the plugin's directory?",
}
_BELOW = " " * 8


@dataclass(frozen=True, slots=True)
class AskedCapability:
    """One capability of an ask: as written, in words, and how it came into the list."""

    text: str
    sentence: Sentence
    widening: bool = False
    operator_added: bool = False

    def as_json(self) -> JsonObject:
        """Return it for programs."""
        return {
            "text": self.text,
            **self.sentence.as_json(),
            "widening": self.widening,
            "operator_added": self.operator_added,
        }


def describe_ask(asked: CapabilitySet, grants: CapabilitySet) -> tuple[AskedCapability, ...]:
    """Put into words what a manifest asks for and what the operator added."""
    return (
        *(_asked(item) for item in asked),
        *(_asked(item, operator_added=True) for item in grants),
    )


def describe_changes(
    change: CapabilityDiff,
) -> tuple[tuple[AskedCapability, ...], tuple[AskedCapability, ...]]:
    """Put into words what came and what went between two lists."""
    widening = frozenset(change.widening)
    return (
        tuple(_asked(item, widening=item in widening) for item in change.added),
        tuple(_asked(item) for item in change.removed),
    )


def ask_lines(asked: Sequence[AskedCapability]) -> list[str]:
    """Write an ask as every prompt and page shows it, dangerous parts flagged."""
    if not asked:
        return ["  capabilities: none"]
    found = ["  capabilities:"]
    for one in asked:
        by = "  (added by the operator)" if one.operator_added else ""
        found += [f"    - {one.text}{by}", *one.sentence.lines(_BELOW)]
    return found


def change_lines(
    added: Sequence[AskedCapability], removed: Sequence[AskedCapability], *, widens: bool
) -> list[str]:
    """Write what changes between two asks; `widens` speaks of the lists as a whole."""
    if not added and not removed:
        return ["Capability changes: none"]
    found = ["Capability changes:"]
    for one in added:
        came = Sentence(f"+ {one.text}    (NEW)")
        if one.widening:
            came = Sentence(came.words, SentenceSeverity.WARNING, "WIDENS what it may do")
        found += [f"  {came.words}  {came.flag}".rstrip(), *one.sentence.lines(_BELOW)]
    found += [f"  - {one.text}    (REMOVED)" for one in removed]
    if widens and not any(one.widening for one in added):
        found.append("  !! Removing these widens what it may do: a narrower entry is gone")
    return found


def consent_question(
    step: str, name: str, *, source: str = "", old: str = "", new: str = ""
) -> str:
    """Return the question whose yes allows a step; the default is no."""
    return _QUESTIONS[step].format(name=name, source=source, old=old, new=new)


def _asked(
    item: ManifestCapability, *, widening: bool = False, operator_added: bool = False
) -> AskedCapability:
    return AskedCapability(item.text, describe_grant(item), widening, operator_added)
