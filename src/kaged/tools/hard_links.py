"""`HardLinkPolicy`: a cage that does not trust files with a further name, or mounted elsewhere.

A hard link inside a granted folder may be the same file as one outside it, and what is mounted into
the folder comes from somewhere else; by its path alone neither shows. Off unless the operator asks
for it: package managers link files on purpose.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kaged.kernel.decision import Decision
from kaged.kernel.mounts import Mount
from kaged.kernel.permissions import CompiledPolicy, PathFact
from kaged.kernel.policy import CagePolicy, FsMode
from kaged.kernel.requirements import FsRequirement, ToolRequirement

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
REMEDY: Final = "set refuse_hard_links = false in [tools] of config.toml, or copy the file"
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_POINT: Final = 4  # the column of a mount's own place


class HardLinkPolicy(CompiledPolicy):
    """A compiled policy that refuses files with a link count above one, and mounts below grants."""

    __slots__ = ("_points",)

    def __init__(
        self, policy: CagePolicy, mounts: Iterable[Mount], table: str | None = None
    ) -> None:
        granted = tuple(mounts)
        super().__init__(policy, granted)
        shown = mount_points(read_mount_table() if table is None else table)
        roots = tuple(one.path.rstrip("/") + "/" for one in granted if not one.pattern)
        self._points = tuple(f"{one}/" for one in shown if one.startswith(roots)) if roots else ()

    def mode_at(self, path: str) -> FsMode | None:
        """Return how a resolved path is granted; not at all when it may be something outside."""
        mode = super().mode_at(path)
        return None if mode is None or self._comes_from_elsewhere(path) else mode

    def decide(
        self, requirements: Sequence[ToolRequirement], path_facts: Sequence[PathFact] = ()
    ) -> Decision:
        """Decide as every policy does, and refuse paths that may be something outside."""
        facts = tuple(path_facts)
        decision = super().decide(requirements, facts)
        if not decision.allowed or not facts:
            return decision
        need = next((one for one in requirements if isinstance(one, FsRequirement)), None)
        if need is None:
            return decision
        for fact in facts:
            if self._comes_from_elsewhere(fact.resolved):
                return Decision.deny("tool.hard_link", f"{need.mode}:fs:{fact.requested}", REMEDY)
        return decision

    def _comes_from_elsewhere(self, path: str) -> bool:
        if self._points and f"{path}/".startswith(self._points):
            return True
        try:
            info = os.lstat(path)
        except OSError:
            return False  # nothing there: what is made anew has one name
        return info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode)


def mount_points(table: str) -> tuple[str, ...]:
    """Return the places of all mounts out of the text of a mount table."""
    found: list[str] = []
    for line in table.splitlines():
        columns = line.split(" ")
        if len(columns) > _POINT:
            found.append(_OCTAL.sub(lambda code: chr(int(code[1], 8)), columns[_POINT]))
    return tuple(found)


def read_mount_table() -> str:
    """Read what is mounted where as this process sees it.

    Raises:
        OSError: there is no such table; a policy is malformed then, and grants nothing.
    """
    return MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
