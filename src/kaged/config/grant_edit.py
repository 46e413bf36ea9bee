"""`write_grants`: a grant is written into the project file; the diff that people are shown before.

The entry that says exactly the grant is added to the agent's own block. Comments and everything
else stay as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.config.yamledit import EditRefused, YamlEdit
from kaged.kernel.access import AccessGrant, AccessKind
from kaged.kernel.policy import FsMode

DIFF_CONTEXT: Final = 1


def write_grants(edit: YamlEdit, agent: str, grants: Sequence[AccessGrant]) -> None:
    """Write into an open project file that an agent has these grants as well.

    Raises:
        EditRefused: it cannot be said there, such as for an agent without a cage block.
    """
    path = tuple(agent.split("."))
    for one in grants:
        _write(edit, path, one)


def shown_diff(before: str, after: str, file: str) -> list[str]:
    """Return the lines by which two texts of a file differ."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), file, file, lineterm="", n=DIFF_CONTEXT
    )
    return list(lines)


def _write(edit: YamlEdit, agent: tuple[str, ...], grant: AccessGrant) -> None:
    cage = (*agent, "cage")
    match grant.kind:
        case AccessKind.TOOL:
            edit.set((*agent, "tools", grant.target), {"enabled": True})
        case AccessKind.PATH:
            _require_block(edit, cage)
            _write_path(edit, (*cage, "fs"), grant)
        case AccessKind.HOST:
            _require_block(edit, cage)
            edit.append((*cage, "net", "allow"), grant.target)
        case AccessKind.CAPABILITY:
            _require_block(edit, cage)
            edit.append((*cage, "capabilities"), grant.target)


def _write_path(edit: YamlEdit, path: tuple[str, ...], grant: AccessGrant) -> None:
    assert grant.mode is not None  # every grant of a path has one
    try:
        known = edit.get(path)
    except KeyError:
        known = None
    for number, entry in enumerate(known if isinstance(known, list) else []):
        if isinstance(entry, dict) and _same_path(entry.get("path"), grant.target):
            if entry.get("mode") != FsMode.RW.value:
                # One path has one mode: a second entry for it would be an error.
                edit.set((*path, number, "mode"), grant.mode.value)
            return
    written: JsonObject = {"mode": grant.mode.value, "path": grant.target}
    edit.append(path, written)


def _same_path(written: JsonValue, target: str) -> bool:
    return isinstance(written, str) and (written.removeprefix("./").rstrip("/") or ".") == target


def _require_block(edit: YamlEdit, cage: tuple[str, ...]) -> None:
    try:
        found = edit.get(cage)
    except KeyError:
        found = None
    if found is not None and not isinstance(found, dict):
        raise EditRefused(f"{'.'.join(cage)} is no block that could be added to")
    if found is None and cage == ("primary", "cage"):
        # A block where there was none would put an agent without a cage into one.
        raise EditRefused("the primary has no cage")
