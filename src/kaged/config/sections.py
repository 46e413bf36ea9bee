"""`Sections`: named parts of an operator's file that stand or fall alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Generic, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import NamedValues
from kaged.config.nodes import Node
from kaged.config.problems import ConfigFileInvalid, Problem
from kaged.config.reading import DocumentPosition, NoValue
from kaged.config.shapes import wrong_kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sections(Generic[T]):
    """Named sections: those that could be read, and what is wrong with the others.

    A broken section is out of use and says why; the rest of the file is not affected by it.
    """

    good: Mapping[str, T] = field(default_factory=lambda: MappingProxyType({}))
    broken: Mapping[str, tuple[Problem, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, name: str) -> T | None:
        """Return a section; None when there is none of that name.

        Raises:
            ConfigFileInvalid: the section exists but cannot be used.
        """
        if name in self.broken:
            raise ConfigFileInvalid(self.broken[name])
        return self.good.get(name)

    def __iter__(self) -> Iterator[str]:
        """Return the names of the sections that can be used."""
        return iter(self.good)

    def __len__(self) -> int:
        """Count the sections that can be used."""
        return len(self.good)

    def __contains__(self, name: object) -> bool:
        """Return whether a section of this name can be used."""
        return name in self.good


@dataclass(frozen=True, slots=True)
class SectionsOf(NamedValues[T, Sections[T]]):
    """A map with free names; a value that cannot be read is set apart, not fatal."""

    def read(self, node: Node, place: DocumentPosition) -> Sections[T] | NoValue:
        """Read each section on its own."""
        if not isinstance(node.value, Mapping):
            return wrong_kind(node, place, "a table")
        good: dict[str, T] = {}
        broken: dict[str, tuple[Problem, ...]] = {}
        for name, entry in node.value.items():
            apart = place.reading.contained()
            below = place.under(name, entry.mark).inside(apart)
            self.names.read(Node(name, entry.mark), below)
            item = self.value.read(entry.node, below)
            place.reading.add_contained(apart)
            if isinstance(item, NoValue) or apart.failed:
                broken[name] = apart.sorted_problems()
            else:
                good[name] = item
        return Sections(MappingProxyType(good), MappingProxyType(broken))
