"""`${VAR}` in operators' files: replaced from the environment when the file is loaded.

A variable that is not set is an error that names file, key and variable; it is never replaced by
nothing and never left standing. `$${` stands for a literal `${`. What a variable holds is not
looked through again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import Wrapper
from kaged.config.nodes import MapEntry, Node
from kaged.config.reading import INVALID, DocumentPosition, NoValue

T = TypeVar("T")

_PART: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class WithVariables(Wrapper[T, T]):
    """A shape whose texts may contain `${VAR}`, also deep inside lists and maps."""

    def read(self, node: Node, place: DocumentPosition) -> T | NoValue:
        """Replace the variables, then read."""
        before = place.reading.errors
        replaced = substitute(node, place)
        return self.inner.read(replaced, place) if place.reading.errors == before else INVALID


def substitute(node: Node, place: DocumentPosition) -> Node:
    """Return the node with every variable replaced; note those that are not set."""
    value = node.value
    if isinstance(value, str):
        return replace(node, value=_replace(value, node, place)) if "${" in value else node
    if isinstance(value, tuple):
        items = tuple(
            substitute(item, place.under(index, item.mark)) for index, item in enumerate(value)
        )
        return replace(node, value=items)
    if isinstance(value, Mapping):
        pairs = {
            name: MapEntry(entry.mark, substitute(entry.node, place.under(name, entry.mark)))
            for name, entry in value.items()
        }
        return replace(node, value=pairs)
    return node


def _replace(text: str, node: Node, place: DocumentPosition) -> str:
    environ = place.reading.environ

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name = found[1]
        if name is None or not _NAME.fullmatch(name):
            place.error(
                node,
                "holds ${ without the name of a variable and a closing brace",
                "write ${NAME}, or $${ for a literal ${",
                "bad_variable",
            )
            return ""
        if name not in environ:
            place.error(
                node,
                f"the environment variable {name} is not set",
                f"set {name} for the daemon, or write the value itself",
                "variable_unset",
            )
            return ""
        return environ[name]

    return _PART.sub(fill, text)
