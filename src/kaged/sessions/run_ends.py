"""`RunEnds`: how the latest runs ended, and who waits for the run that goes on after one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from kaged.sessions.run_values import RunEnd

MAX_ENDS: Final = 200
"""How many ended runs are remembered in memory; older ones are asked of the store."""

MAX_LATEST: Final = 10_000
"""Of how many sessions their last run is remembered."""


class RunEnds:
    """Remembers, for a while, how runs ended and which run of a session is its latest."""

    def __init__(self) -> None:
        self._ends: OrderedDict[str, RunEnd] = OrderedDict()
        self._latest: OrderedDict[str, str] = OrderedDict()
        self._followers: dict[str, set[asyncio.Future[str]]] = {}

    def get(self, run_id: str) -> RunEnd | None:
        """Return how a run ended; None when that is not known any more."""
        return self._ends.get(run_id)

    def keep(self, end: RunEnd) -> None:
        """Remember how a run ended."""
        self._ends[end.run_id] = end
        while len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)

    def started(self, session_id: str, run_id: str) -> None:
        """Notify whoever waits for the next run of a session which one it is."""
        self._latest[session_id] = run_id
        self._latest.move_to_end(session_id)
        while len(self._latest) > MAX_LATEST:
            self._latest.popitem(last=False)
        for one in self._followers.get(session_id, ()):
            if not one.done():
                one.set_result(run_id)

    async def next_after(self, end: RunEnd) -> str:
        """Wait for the run that goes on where a paused one stopped; return its id."""
        session_id = end.session_id
        latest = self._latest.get(session_id, end.run_id)
        if latest != end.run_id:
            return latest
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._followers.setdefault(session_id, set()).add(started)
        try:
            return await started
        finally:
            self._followers[session_id].discard(started)
            if not self._followers[session_id]:
                del self._followers[session_id]
