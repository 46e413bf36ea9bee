"""What a merge leaves out: `DiscardedChange`, and how the parts of the merge say it."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.tiers import SLOT_POLICIES, MutabilityTier, SlotName

UNCHANGED: object = object()
"""What the merge of a slot returns when the host's value stays."""


@dataclass(frozen=True, slots=True)
class DiscardedChange:
    """A change that did not come through: where, under which tier and why; never the values."""

    slot: str
    tier: MutabilityTier
    reason: str


class TookAway(Exception):
    """A plugin took something away from a slot that only grows."""

    def __init__(self, slot: SlotName, detail: str) -> None:
        super().__init__(detail)
        self.slot = slot
        self.detail = detail


def discard(discarded: list[DiscardedChange], slot: SlotName, reason: str) -> object:
    """Note a change that is left out; return that nothing changes."""
    discarded.append(DiscardedChange(slot.value, SLOT_POLICIES[slot].tier, reason))
    return UNCHANGED
