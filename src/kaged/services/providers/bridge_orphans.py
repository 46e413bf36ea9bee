"""`BridgeOrphans`: what a bridge without a cage started and did not take along when it ended.

Each process gets a mark of its own in its environment, and only the mark of a process that has
ended is ever looked for: whoever carries it cannot be a call under way.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from kaged.base import Tasks
from kaged.base.log import get_logger
from kaged.base.tasks import report_kind
from kaged.cage import CageProcess
from kaged.cage.orphan_processes import end_orphans_of

GATHER_S: Final = 0.25  # a look at all processes costs milliseconds; endings share one

_log = get_logger("kaged.services")


class BridgeOrphans:
    """Follows the processes of one bridge and ends what outlives them."""

    def __init__(self, provider: str, gather_s: float = GATHER_S) -> None:
        self._provider = provider
        self._gather_s = gather_s
        self._alive: dict[str, CageProcess] = {}
        self._ended: set[str] = set()
        self._tasks = Tasks(f"leavers of {provider}", report_kind)
        self._looking = False

    def account(self) -> str:
        """Return the account that the next process is started on; no two processes share one."""
        return f"bridge:{self._provider}:{secrets.token_hex(8)}"

    def watch(self, account: str, process: CageProcess) -> None:
        """Look after a process that was just started on this account."""
        self._alive[account] = process
        self._tasks.start(self._watch(account, process), "follow a bridge")

    async def close(self) -> None:
        """End the processes that still run, and what any of them left."""
        running = list(self._alive.values())
        for process in running:
            process.kill()
        for process in running:
            await process.wait()
        await self._tasks.close()
        await self._look((*self._alive, *self._ended))
        self._alive.clear()
        self._ended.clear()

    async def _watch(self, account: str, process: CageProcess) -> None:
        await process.wait()
        del self._alive[account]
        self._ended.add(account)
        if not self._looking:
            self._looking = True
            self._tasks.start(self._look_soon(), "look for those who left")

    async def _look_soon(self) -> None:
        try:
            await asyncio.sleep(self._gather_s)
        finally:
            self._looking = False
        taken = tuple(self._ended)
        await self._look(taken)
        self._ended.difference_update(taken)

    async def _look(self, accounts: tuple[str, ...]) -> None:
        if accounts:
            ended = await asyncio.to_thread(end_orphans_of, accounts)
            if ended:
                _log.warning("bridge.orphans_ended", provider=self._provider, ended=ended)
