"""`StaleFileSweeper`: clears a project of half-written files of a killed daemon, once per start."""

from __future__ import annotations

import asyncio

from kaged.base import Clock, Tasks
from kaged.base.log import get_logger
from kaged.config.agents import AgentTree
from kaged.workspace.stale_files import remove_stale_files

_log = get_logger("kaged.projects")


class StaleFileSweeper:
    """Looks through each project when it is first loaded, beside everything else."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks = tasks
        self._since_s = clock.now_ms() / 1000
        self._seen: set[str] = set()

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Start looking, unless this project was looked through already."""
        del project_id
        root = str(tree.project.root)
        if root not in self._seen:
            self._seen.add(root)
            self._tasks.start(self._sweep(root), "stale files")

    async def _sweep(self, root: str) -> None:
        removed = await asyncio.to_thread(remove_stale_files, root, self._since_s)
        if removed:
            _log.info("project.stale_files_removed", root=root, removed=removed)
