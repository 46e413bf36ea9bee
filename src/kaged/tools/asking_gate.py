"""`AskingGate`: the gates of the host for agents with `on_denied: ask`.

A gate that a grant would open is shown to a person; after a yes the call passes all gates anew,
with the grant in its context. What no grant opens is refused as everywhere: protected paths, what
lies outside the project, system-call filters, root-only tools, policies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kaged.config.projectpaths import KAGED_DIR
from kaged.kernel.access import AccessGrant, AccessKind, AccessScope
from kaged.kernel.policy import FsMode
from kaged.tools.errors import ToolCapabilityRefused, ToolError

if TYPE_CHECKING:
    from kaged.base import JsonValue
    from kaged.tools.access_requests import AccessRequests
    from kaged.tools.context import ToolCallContext
    from kaged.tools.registry import FoundTool

MAX_ASKED: Final = 4
"""How many questions one call may lead to."""

GRANTABLE: Final = frozenset({"tool.fs", "tool.capability", "tool.net"})
"""The rules whose refusals a grant can change."""


T_co = TypeVar("T_co", covariant=True)


class Gates(Protocol[T_co]):
    """The gates of the host, as dispatch has them; what they admit is dispatch's own."""

    def admit(
        self,
        name: str,
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        schema_hash: str | None = None,
    ) -> T_co:
        """Return the call. Raises ToolError: the first gate that is closed."""
        ...

    def missing_access(
        self, found: FoundTool, params: JsonValue, context: ToolCallContext
    ) -> tuple[AccessGrant, ...]:
        """Return the grants that a call lacks which the cage refuses. Raises ToolError."""
        ...

    def could_have(self, context: ToolCallContext, name: str) -> bool:
        """Return whether a rule could give the calling agent a tool that it does not have."""
        ...


class AskingGate:
    """Admits calls, and asks where that could change the answer."""

    def __init__(self, requests: AccessRequests) -> None:
        self._requests = requests

    async def admit(
        self,
        gates: Gates[T_co],
        name: str,
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        schema_hash: str | None,
    ) -> tuple[T_co, ToolCallContext]:
        """Return an admitted call with the context that it was admitted in.

        Raises:
            ToolError: the first gate that is closed, and that nobody opened.
        """
        once: list[AccessGrant] = []
        given = await self._given(context, name, once)
        for _ in range(MAX_ASKED):
            try:
                return gates.admit(name, found, params, given, schema_hash), given
            except ToolError as refused:
                missing = _missing(gates, found, params, given, refused)
                if not missing or self._still_missing(gates, found, params, given, missing):
                    raise
                scope = await self._requests.ask(
                    context, missing, tool=refused_tool(found, name), reason=refused.message
                )
                if scope is None:
                    raise
                if scope is AccessScope.ONCE:
                    once += missing
            given = await self._given(context, name, once)
        return gates.admit(name, found, params, given, schema_hash), given

    async def _given(
        self, context: ToolCallContext, name: str, once: list[AccessGrant]
    ) -> ToolCallContext:
        wide = await self._requests.grants.widen(context, once)
        if context.reach_person is None or wide.cage_policy is None:
            return wide
        return replace(wide, ask_host=self._requests.host_asker(context, name))

    def _still_missing(
        self,
        gates: Gates[object],
        found: FoundTool | None,
        params: JsonValue,
        context: ToolCallContext,
        missing: tuple[AccessGrant, ...],
    ) -> bool:
        """Return whether the call would be refused with the grants, too: nothing to ask then."""
        if found is None or context.cage_policy is None:
            return False
        policy = self._requests.grants.widened(context.cage_policy, missing, context.project_root)
        tools = frozenset(one.target for one in missing if one.kind is AccessKind.TOOL)
        try:
            wide = replace(context, cage_policy=policy, granted_tools=context.granted_tools | tools)
            gates.admit(found.entry.name, found, params, wide)
        except ToolCapabilityRefused as error:
            # With a tool comes the question what it needs; everything else is final.
            return not tools or error.rule not in GRANTABLE
        except ToolError:
            return True
        return False


def refused_tool(found: FoundTool | None, name: str) -> str:
    """Return what a refused tool is called."""
    return name[:200] if found is None else found.entry.name


def _missing(
    gates: Gates[object],
    found: FoundTool | None,
    params: JsonValue,
    context: ToolCallContext,
    refused: ToolError,
) -> tuple[AccessGrant, ...]:
    """Return the grants that a refused call lacks; nothing where none would help."""
    if found is None:
        return ()
    if isinstance(refused, ToolCapabilityRefused):
        if refused.rule not in GRANTABLE:
            return ()
        missing = gates.missing_access(found, params, context)
        return () if any(map(_defines_cages, missing)) else missing
    not_enabled = isinstance(refused.detail, dict) and refused.detail.get("reason") == "not_enabled"
    name = found.entry.name
    if not_enabled and gates.could_have(context, name):
        return (AccessGrant(AccessKind.TOOL, name),)
    return ()


def _defines_cages(grant: AccessGrant) -> bool:
    """Return whether a grant would let the agent write its own cage."""
    inside = grant.target == KAGED_DIR or grant.target.startswith(f"{KAGED_DIR}/")
    return inside and grant.kind is AccessKind.PATH and grant.mode is FsMode.RW
