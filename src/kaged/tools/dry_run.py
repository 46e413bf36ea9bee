"""Calls of an agent that is only to tell what it would do (`dry_run` in the project file)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement

if TYPE_CHECKING:
    from kaged.base import JsonObject, JsonValue
    from kaged.tools.dispatch import AdmittedCall


def is_held_back(call: AdmittedCall) -> bool:
    """Return whether a call would change something, or could.

    A tool that says for each call whether it changes something is believed. Of the others those
    that only read files, or need nothing of the cage, are carried out.
    """
    tool = call.entry.tool
    if not isinstance(tool.changes, bool):
        return tool.changes(call.args)
    return tool.changes or any(
        not isinstance(one, FsRequirement) or one.mode is not FsMode.RO
        for one in tool.definition.requires
    )


def report_of(call: AdmittedCall) -> JsonObject:
    """Return what a call that passed every gate would do; it is not carried out."""
    paths: list[JsonValue] = [one.relative for one in call.paths]
    return {
        "dry_run": True,
        "tool": call.entry.name,
        "would": {"arguments": call.args, "paths": paths},
        "note": "Nothing was done: this agent only reports what it would do.",
    }
