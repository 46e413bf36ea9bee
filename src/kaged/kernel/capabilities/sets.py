"""`CapabilitySet`: a whole capability list, its rules and how two lists compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities.grammar import (
    CapabilityInvalid,
    CapabilityProblem,
    parse_capability,
    shown,
)
from kaged.kernel.capabilities.terms import (
    CapabilityPath,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    StorageCapability,
    covers,
)
from kaged.kernel.paths import parents
from kaged.kernel.policy import FsMode

MAX_CAPABILITIES = 256
"""The most entries one list may have; more cannot be read by the person who must agree to them."""

_RANK = {None: 0, FsMode.RO: 1, FsMode.RW: 2}


@dataclass(frozen=True, slots=True)
class CapabilitySet:
    """What one capability list grants, in the order it was written, each entry once.

    `declared` is the list as its author spelled it, for showing to people. Paths follow the mounts
    that come of them: the most specific entry decides, and read plus write on one path is write.
    """

    items: tuple[ManifestCapability, ...] = ()
    declared: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, items: Iterable[ManifestCapability]) -> CapabilitySet:
        """Make a set of terms; repeated terms count once."""
        unique = tuple(dict.fromkeys(items))
        return cls(unique, tuple(item.text for item in unique))

    def __iter__(self) -> Iterator[ManifestCapability]:
        """Return the terms in written order."""
        return iter(self.items)

    def __len__(self) -> int:
        """Count the distinct terms."""
        return len(self.items)

    @property
    def texts(self) -> tuple[str, ...]:
        """The normalised text of each term, in written order."""
        return tuple(item.text for item in self.items)

    def mode_at(self, place: CapabilityPath) -> FsMode | None:
        """Return how a path is granted by the fs entries: not at all, read-only or read-write."""
        return _mode_at(_fs_modes(self.items), place)

    def covers(self, item: ManifestCapability) -> bool:
        """Return whether this list gives everything that `item` alone would give."""
        return CapabilitySet((item,)).issubset(self)

    def issubset(self, other: CapabilitySet) -> bool:
        """Return whether this list grants nothing that `other` does not grant.

        Compared as texts: that `config:` or `project:` may lie below some host path is not seen.
        """
        mine, theirs = _fs_modes(self.items), _fs_modes(other.items)
        # Modes only change at the entries of either list, so looking there looks everywhere.
        if any(
            _RANK[_mode_at(mine, place)] > _RANK[_mode_at(theirs, place)]
            for place in (*mine, *theirs)
        ):
            return False
        return all(
            any(covers(held, item) for held in other.items)
            for item in self.items
            if not isinstance(item, FsCapability | NoNetCapability)
        )

    def normalised(self) -> CapabilitySet:
        """Return the smallest list that grants the same, sorted by text.

        Two lists grant the same exactly when their normalised lists are equal.
        """
        modes = _fs_modes(self.items)
        kept: list[ManifestCapability] = [
            FsCapability(mode, place)
            for place, mode in modes.items()
            if _mode_above(modes, place) is not mode
        ]
        others = [i for i in self.items if not isinstance(i, FsCapability | NoNetCapability)]
        kept += [
            item
            for item in dict.fromkeys(others)
            if not any(held != item and covers(held, item) for held in others)
        ]
        return CapabilitySet.of(sorted(kept, key=lambda item: item.text))

    def joined(self, grants: CapabilitySet) -> CapabilitySet:
        """Add what the operator granted on this machine.

        The operator's network grants set the author's `net:[]` aside.
        """
        items = (*self.items, *grants.items)
        if any(isinstance(item, NetCapability) for item in items):
            items = tuple(item for item in items if not isinstance(item, NoNetCapability))
        return CapabilitySet.of(items)

    def overreach(self, claimed: Iterable[object]) -> tuple[str, ...]:
        """Return the claims of a running plugin that this list does not have, as it wrote them.

        Claims are compared as whole normalised texts: a narrower path that is not listed is
        overreach. Only `kaged:storage:read` is covered by another entry, `kaged:storage:write`.
        """
        return tuple(shown(claim) for claim in claimed if not self._has(claim))

    def _has(self, claim: object) -> bool:
        try:
            item = parse_capability(claim)
        except CapabilityInvalid:
            return False
        if isinstance(item, StorageCapability):
            return any(covers(held, item) for held in self.items if type(held) is type(item))
        return item in self.items


def parse_capabilities(values: object, where: str = "capabilities") -> CapabilitySet:
    """Read a whole capability list.

    Raises:
        CapabilityInvalid: with every entry that is wrong; also when `net:[]` stands beside other
            network entries, or the list is too long or no list.
    """
    if not isinstance(values, list | tuple):
        raise CapabilityInvalid(_problem(where, values, "must be a list of texts"))
    entries: list[object] = list(values)
    if len(entries) > MAX_CAPABILITIES:
        raise CapabilityInvalid(
            _problem(where, f"{len(entries)} entries", f"at most {MAX_CAPABILITIES} are allowed")
        )
    items: list[ManifestCapability] = []
    problems: list[CapabilityProblem] = []
    for index, value in enumerate(entries):
        try:
            items.append(parse_capability(value, f"{where}[{index}]"))
        except CapabilityInvalid as error:
            problems.extend(error.problems)
    if any(isinstance(item, NoNetCapability) for item in items):
        problems.extend(
            _problem(where, item.text, "contradicts net:[], which says no network")
            for item in dict.fromkeys(items)
            if isinstance(item, NetCapability)
        )
    if problems:
        raise CapabilityInvalid(*problems)
    written = ("net: []" if isinstance(value, Mapping) else str(value) for value in entries)
    return CapabilitySet(CapabilitySet.of(items).items, tuple(written))


def _problem(where: str, value: object, message: str) -> CapabilityProblem:
    return CapabilityProblem(where, shown(value), message, "")


_Modes = dict[CapabilityPath, FsMode]


def _fs_modes(items: Iterable[ManifestCapability]) -> _Modes:
    modes: _Modes = {}
    for item in items:
        if isinstance(item, FsCapability) and modes.get(item.place) is not FsMode.RW:
            modes[item.place] = item.mode
    return modes


def _mode_at(modes: _Modes, place: CapabilityPath) -> FsMode | None:
    return modes.get(place) or _mode_above(modes, place)


def _mode_above(modes: _Modes, place: CapabilityPath) -> FsMode | None:
    above = (modes.get(CapabilityPath(place.base, path)) for path in parents(place.path))
    return next((mode for mode in above if mode is not None), None)
