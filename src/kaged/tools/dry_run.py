"""Calls of an agent that is only to tell what it would do (`dry_run` in the project file)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kaged.base import JsonObject, JsonValue
    from kaged.tools.definition import Tool
    from kaged.workspace import ProjectPath


def is_held_back(tool: Tool, args: JsonObject) -> bool:
    """Return whether a call would change something, or could.

    A tool that says for each call whether it changes something is believed. Of the others those
    that only read files, or need nothing of the cage, are carried out.
    """
    if not isinstance(tool.changes, bool):
        return tool.changes(args)
    return tool.changes or any(
        not isinstance(one, FsRequirement) or one.mode is not FsMode.RO
        for one in tool.definition.requires
    )


def report_of(tool: Tool, args: JsonObject, touched: Sequence[ProjectPath]) -> JsonObject:
    """Return what a call that passed every gate would do; it is not carried out."""
    paths: list[JsonValue] = [one.relative for one in touched]
    return {
        "dry_run": True,
        "tool": tool.definition.name,
        "would": {"arguments": args, "paths": paths},
        "note": "Nothing was done: this agent only reports what it would do.",
    }
