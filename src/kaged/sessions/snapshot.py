"""`SessionSnapshot`: agents, tools and cages of a project, fixed when a session starts.

Later changes of the project's files concern later sessions only (AT-RES-02, AT-SESS-16). What
plugins are configured with is not in here: it may change between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from kaged.models.turn import ToolSpec
from kaged.sessions.tokens import estimate_json
from kaged.sessions.toolnames import ToolNames

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.config.agents import AgentTree, ResolvedAgent
    from kaged.kernel.policy import CagePolicy
    from kaged.tools.registry import ToolRegistry
    from kaged.tools.resolution import AgentTools


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """One agent as it was when the session started. `specs` is what its model is told."""

    agent: ResolvedAgent
    tools: AgentTools
    policy: CagePolicy | None
    names: ToolNames
    specs: tuple[ToolSpec, ...]
    spec_tokens: int


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """Every agent of a project, by path."""

    project_id: str
    project_root: str
    agents: Mapping[str, AgentSnapshot]


def take_snapshot(
    project_id: str,
    tree: AgentTree,
    registry: ToolRegistry,
    tools: Mapping[str, AgentTools],
    *,
    root: str,
    cages_off: bool = False,
) -> SessionSnapshot:
    """Fix what a session's agents are. `tools` are those of each agent as of now."""
    made: dict[str, AgentSnapshot] = {}
    for agent in tree:
        own = tools[agent.path]
        names = ToolNames(own.names)
        exported = own.export(registry)
        made[agent.path] = AgentSnapshot(
            agent=agent,
            tools=own,
            policy=None if cages_off else agent.cage.value,
            names=names,
            specs=tuple(
                ToolSpec(
                    names.safe(str(one["name"])),
                    str(one["description"]),
                    cast("JsonObject", one["parameters"]),
                )
                for one in exported
            ),
            spec_tokens=estimate_json([*exported]),
        )
    return SessionSnapshot(project_id, root, MappingProxyType(made))
