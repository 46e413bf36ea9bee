"""`GuestsReach`: what the agents of a project that live in cages may write of the host's files."""

from __future__ import annotations

from kaged.config.agents import AgentTree
from kaged.config.project import OnDenied
from kaged.kernel.mounts import Mount, MountTable
from kaged.kernel.policy import FsMode


class GuestsReach:
    """Worked out from the cages that a project's agents are given."""

    def __init__(self, tree: AgentTree) -> None:
        guests = [(one, one.cage.value) for one in tree if one.cage.value is not None]
        self._tables = [
            MountTable(Mount(item.path, item.mode) for item in cage.fs) for _, cage in guests
        ]
        self._written = [
            MountTable(Mount(item.path, item.mode) for item in cage.fs if item.mode is FsMode.RW)
            for _, cage in guests
        ]
        self._asking = any(one.on_denied.value is OnDenied.ASK for one, _ in guests)

    def writable(self, path: str) -> bool:
        """Return whether one of them may write an absolute path."""
        return any(table.mode_at(path) is FsMode.RW for table in self._tables)

    def changeable(self, path: str) -> bool:
        """Return whether one of them may write at or below a path, or may come to be allowed to."""
        below = (table.holds_below(path) for table in self._written)
        return self._asking or self.writable(path) or any(below)
