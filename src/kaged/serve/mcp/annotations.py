"""What clients are told about a tool's effects, read off its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.kernel.requirements import CapabilityRequirement, NetRequirement
from kaged.tools import ToolSource

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.tools.registry import RegisteredTool

RUNS_PROGRAMS: Final = frozenset({"shell", "exec"})
REPEATABLE: Final = frozenset({"file.write", "search.ast_rewrite"})
"""Tools that change something, and change nothing more when they are called again."""

RECORDS: Final = "kaged"
"""The namespace of issues, todos and questions: they add to the record and destroy nothing."""


def annotations_of(entry: RegisteredTool) -> JsonObject:
    """Return the four hints of MCP. They err on the side of caution and never promise too much.

    What a plugin, an outside server or a shell command does is not known here, so these count as
    destructive and open to the world.
    """
    definition = entry.definition
    unknown = definition.source is ToolSource.PLUGIN
    runs = any(
        isinstance(one, CapabilityRequirement) and one.name in RUNS_PROGRAMS
        for one in definition.requires
    )
    reaches_net = entry.tool.reaches_net or any(
        isinstance(one, NetRequirement) for one in definition.requires
    )
    read_only = entry.tool.changes is False and not unknown and not runs
    return {
        "title": entry.name,
        "readOnlyHint": read_only,
        "destructiveHint": not read_only and definition.namespace != RECORDS,
        "idempotentHint": read_only or entry.name in REPEATABLE,
        "openWorldHint": unknown or runs or reaches_net,
    }
