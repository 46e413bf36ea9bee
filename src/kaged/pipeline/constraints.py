"""`validate_tier_constraints`: a strict check of two containers, for tests of plugin authors.

The pipeline itself does not use it: it merges, and what may not change simply does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kaged.pipeline.tiers import (
    SLOT_POLICIES,
    MutabilityTier,
    SlotName,
    TierViolationError,
    resolve_rights,
)

if TYPE_CHECKING:
    from kaged.pipeline.slots import Extensions


def validate_tier_constraints(
    before: Extensions, after: Extensions, capabilities: frozenset[str], plugin_name: str
) -> None:
    """Raise TierViolationError at the first change, in slot order, that has no right to be.

    Compares whole containers: a filtered view differs from its source wherever something is
    hidden, so compare views with views.
    """
    rights = resolve_rights(capabilities)
    for slot, policy in SLOT_POLICIES.items():
        old, new = _value(before, slot), _value(after, slot)
        if old == new or policy.tier is MutabilityTier.MUTABLE:
            continue
        if not rights.may_write(slot):
            needed = "nothing can change it" if policy.write_cap is None else policy.write_cap
            raise TierViolationError(plugin_name, slot, policy.tier, f"changed; {needed}")
        if policy.tier is MutabilityTier.MONOTONIC and not _grew(slot, old, new):
            raise TierViolationError(plugin_name, slot, policy.tier, "something was taken away")


def _value(extensions: Extensions, slot: SlotName) -> Any:
    value: Any = extensions
    for name in slot.value.split("."):
        value = getattr(value, name, None)
    return value


def _grew(slot: SlotName, old: Any, new: Any) -> bool:
    if old is None:
        return True
    if new is None:
        return False
    if slot is SlotName.DELEGATION:
        return new.chain[: len(old.chain)] == old.chain
    return old <= new
