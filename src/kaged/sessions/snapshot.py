"""`SessionSnapshot`: agents, tools and cages of a project, fixed when a session starts.

Later changes of the project's files concern later sessions only (AT-RES-02, AT-SESS-16). What
plugins are configured with is not in here: it may change between two calls. `ToolNames` is what
tools are called towards models, whose vendors allow few letters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, cast

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree, ResolvedAgent
from kaged.kernel.policy import CagePolicy
from kaged.models.turn import ToolSpec
from kaged.sessions.messages import estimate_json
from kaged.tools.registry import ToolRegistry
from kaged.tools.resolution import AgentTools

MAX_NAME_CHARS: Final = 64
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARS = 8


class ToolNames:
    """Both names of each tool of an agent: its own, and the one that the model uses.

    `file.read` becomes `file_read`. Where two tools would share a name, or one is too long, it
    ends with letters made from the tool's own name, so that it stays the same in every session.
    `others` are tools that the agent does not have: a model that asks for one all the same is
    understood, so that the refusal says why and the record says what was asked for.
    """

    __slots__ = ("_by_own", "_by_safe")

    def __init__(self, names: Iterable[str], others: Iterable[str] = ()) -> None:
        self._by_own: dict[str, str] = {}
        self._by_safe: dict[str, str] = {}
        ordered = sorted(names)
        plain = [_FORBIDDEN.sub("_", name) for name in ordered]
        shared = {one for one in plain if plain.count(one) > 1}
        for name, wanted in zip(ordered, plain, strict=True):
            # A name that needs no change keeps it, whoever else would like to have it.
            taken = wanted != name and wanted in shared
            safe = _marked(name, wanted) if taken or len(wanted) > MAX_NAME_CHARS else wanted
            self._by_own[name] = safe
            self._by_safe[safe] = name
        for name in sorted(others):
            self._by_safe.setdefault(_FORBIDDEN.sub("_", name), name)

    def safe(self, name: str) -> str:
        """Return the name a model knows a tool by; one that is not offered is made harmless."""
        return self._by_own.get(name) or _FORBIDDEN.sub("_", name)[:MAX_NAME_CHARS] or "_"

    def own(self, said: str) -> str:
        """Return the tool that a model means; an unknown name stays as it is.

        Models that know a tool's own name from elsewhere may use it as well.
        """
        return self._by_safe.get(said, said)


def _marked(name: str, wanted: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{wanted[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


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
    """Every agent of a project, by path.

    `instructions`: the project's own files add to their prompts; `restricted`: nobody has agreed to
    the project yet.
    """

    project_id: str
    project_root: str
    agents: Mapping[str, AgentSnapshot]
    instructions: bool = True
    restricted: bool = False


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
        names = ToolNames(own.names, registry.names())
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
    return SessionSnapshot(
        project_id,
        root,
        MappingProxyType(made),
        instructions=tree.project.dsl.instructions,
        restricted=tree.restricted,
    )
