"""Which definitions the program reaches from where it begins, by the names that its code mentions.

Names, not types: a method counts as called when reached code mentions an attribute of its name. So
a finding is certain, and something dead can hide behind a namesake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from reachability.definitions import QUIET_BASES, Definition, Module


class Reached:
    """The part of a tree that is reached from some modules and names."""

    def __init__(
        self,
        tree: Mapping[str, Module],
        roots: Iterable[str],
        called: Iterable[str] = (),
        given: Iterable[Definition] = (),
    ) -> None:
        self._tree = tree
        self._by_name: defaultdict[str, list[Definition]] = defaultdict(list)
        self._classes: defaultdict[str, list[Definition]] = defaultdict(list)
        self._methods: defaultdict[str, list[Definition]] = defaultdict(list)
        for module in tree.values():
            for one in module.definitions:
                if one.name:
                    self._by_name[one.name].append(one)
                if one.is_class:
                    self._classes[one.name].append(one)
                if one.owner:
                    self._methods[f"{one.module}:{one.owner}"].append(one)
        self._waiting: list[Definition] = []
        self._loaded: set[str] = set()
        self.keys: set[str] = set()
        self.names: set[str] = set()
        """Every name that reached code mentions."""
        for name in roots:
            self._load(name, everything=True)
        for one in given:
            self._load(one.module)
            self._reach(one)
        self._mention(set(called))
        while self._waiting:
            self._follow(self._waiting.pop())

    def __contains__(self, one: Definition) -> bool:
        return one.key in self.keys

    def _load(self, name: str, *, everything: bool = False) -> None:
        module = self._tree.get(name)
        if module is None:
            return
        if everything:
            for one in module.definitions:
                self._reach(one)
        if name in self._loaded:
            return
        self._loaded.add(name)
        for one in module.definitions:
            if not one.name or (one.registered and not one.owner):
                self._reach(one)
        for other in (name.rpartition(".")[0], *module.imports):
            self._load(other)

    def _reach(self, one: Definition) -> None:
        if one.key not in self.keys:
            self.keys.add(one.key)
            self._waiting.append(one)

    def _follow(self, one: Definition) -> None:
        self._mention(one.used)
        if one.is_class:
            for method in self._methods[one.key]:
                if self._is_called(method, one):
                    self._reach(method)

    def _mention(self, words: set[str]) -> None:
        for word in words - self.names:
            self.names.add(word)
            for one in self._by_name[word]:
                if not one.owner or f"{one.module}:{one.owner}" in self.keys:
                    self._reach(one)

    def _is_called(self, method: Definition, owner: Definition) -> bool:
        return (
            method.name in self.names
            or method.registered
            or (method.name.startswith("__") and method.name.endswith("__"))
            or self._has_foreign_base(owner, set())
        )

    def _has_foreign_base(self, owner: Definition, seen: set[str]) -> bool:
        """Return whether a base is another's: that may call what overrides its own methods."""
        for base in owner.bases:
            ours = self._classes.get(base, [])
            if base not in QUIET_BASES and not ours:
                return True
            for one in ours:
                if one.key not in seen and self._has_foreign_base(one, seen | {one.key}):
                    return True
        return False


def uncalled(
    tree: Mapping[str, Module], reached: Reached, packages: Iterable[str]
) -> list[Definition]:
    """Return public definitions of these packages that are not reached.

    The methods of something uncalled are not named one by one.
    """
    wanted = tuple(packages)
    found = [
        one
        for name, module in tree.items()
        if name.split(".")[1:2] and name.split(".")[1] in wanted
        for one in module.definitions
        if one.name and one.is_public and not one.name.startswith("__") and one not in reached
    ]
    dead = {one.key for one in found}
    return [one for one in found if f"{one.module}:{one.owner}" not in dead]


def uncalled_protocol_methods(tree: Mapping[str, Module], reached: Reached) -> list[Definition]:
    """Return methods of Protocols that no reached code mentions: only fakes call them."""
    protocols = {
        one.key for module in tree.values() for one in module.definitions if one.is_protocol
    }
    return [
        one
        for module in tree.values()
        for one in module.definitions
        if f"{one.module}:{one.owner}" in protocols
        and not one.name.startswith("__")
        and one.name not in reached.names
    ]
