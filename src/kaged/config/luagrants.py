"""`LuaGrants`: `[plugins.capabilities]`, what single Lua scripts may do beyond the ordinary.

One wrong word sets all grants aside: a typo must be loud, and nothing is granted by guessing
(LC-AMB-01). The daemon starts all the same and shows the problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node
from kaged.config.problems import Problem
from kaged.config.reading import DocumentPosition, NoValue, nearest
from kaged.config.shapes import Shape, wrong_kind
from kaged.kernel.lua_powers import LuaPower, LuaPowers

LUA_CAPABILITIES: Final = tuple(power.value for power in LuaPower)
"""Every name a script may ask for (LC-GRANT-07, LC-AMB-19)."""


@dataclass(frozen=True, slots=True)
class LuaGrants:
    """Grants by script name; when `problems` is not empty nothing is granted to anyone."""

    grants: Mapping[str, tuple[LuaPower, ...]] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Problem, ...] = ()

    def of(self, stem: str) -> LuaPowers:
        """Return what the script of this name (`rewind` for `rewind.lua`) was granted."""
        return frozenset(self.grants.get(stem, ()))


@dataclass(frozen=True, slots=True)
class GrantsShape(Shape[LuaGrants]):
    """A table of script name to a list of capability names."""

    WORDS = "table of script name to list of " + ", ".join(f"`{n}`" for n in LUA_CAPABILITIES)

    def read(self, node: Node, place: DocumentPosition) -> LuaGrants | NoValue:
        """Read the grants; a problem anywhere leaves none."""
        apart = place.reading.contained()
        here = place.inside(apart)
        grants: dict[str, tuple[LuaPower, ...]] = {}
        if isinstance(node.value, Mapping):
            for stem, entry in node.value.items():
                names = _read_names(entry.node, stem, here.under(stem, entry.mark))
                grants[stem] = tuple(dict.fromkeys(names))
        else:
            wrong_kind(node, here, "a table")
        place.reading.add_contained(apart)
        if apart.failed:
            return LuaGrants(problems=apart.sorted_problems())
        return LuaGrants(MappingProxyType(grants))

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a map of lists."""
        known: list[JsonValue] = list(LUA_CAPABILITIES)
        return {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"enum": known}},
        }


def _read_names(node: Node, stem: str, place: DocumentPosition) -> list[LuaPower]:
    if not isinstance(node.value, tuple):
        wrong_kind(node, place, "a list of capability names")
        return []
    names: list[LuaPower] = []
    for index, item in enumerate(node.value):
        below = place.under(index, item.mark)
        if not isinstance(item.value, str):
            wrong_kind(item, below, "text (the name of a capability)")
        elif item.value not in LUA_CAPABILITIES:
            near = nearest(item.value, LUA_CAPABILITIES)
            below.error(
                item,
                f"{stem}: unknown capability {place.show(item.value)} "
                f"(known: {', '.join(LUA_CAPABILITIES)}); no script is granted anything",
                f"did you mean {near!r}?" if near else "remove it",
                "unknown_capability",
            )
        else:
            names.append(LuaPower(item.value))
    return names


GRANTS_SHAPE: Final = GrantsShape()
