"""`CapabilityDiff`: what changes between two versions of a capability list."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities.sets import CapabilitySet
from kaged.kernel.capabilities.terms import ManifestCapability


@dataclass(frozen=True, slots=True)
class CapabilityDiff:
    """The entries that came, went and stayed, and which of the new ones widen the cage.

    `widens` speaks of the whole lists: taking a `read:fs` entry away from inside a `write:fs` one
    widens, too, although nothing was added.
    """

    added: tuple[ManifestCapability, ...]
    removed: tuple[ManifestCapability, ...]
    same: tuple[ManifestCapability, ...]
    widening: tuple[ManifestCapability, ...]
    widens: bool

    @property
    def changed(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.added or self.removed)


def diff(old: CapabilitySet, new: CapabilitySet) -> CapabilityDiff:
    """Compare two lists entry by entry, by normalised text."""
    before, after = set(old.items), set(new.items)
    added = tuple(item for item in new if item not in before)
    return CapabilityDiff(
        added=added,
        removed=tuple(item for item in old if item not in after),
        same=tuple(item for item in new if item in before),
        widening=tuple(item for item in added if not old.covers(item)),
        widens=not new.issubset(old),
    )
