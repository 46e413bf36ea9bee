"""`ProcessBudget`: how many processes fit into this daemon's limit of open files."""

from __future__ import annotations

import asyncio

from kaged.base.open_files import open_files
from kaged.cage.errors import SpawnFailed

# Two process descriptors, three pipes, and the socket of a gate or a conversation.
PER_PROCESS = 6
# While it starts: both ends of all pipes, one for each grant and made-up file, the options.
PER_START = 48
_START_SHARE, _PROCESS_SHARE = 4, 2  # a quarter and a half; the rest is the daemon's own
_MOST_STARTS = 64


class ProcessBudget:
    """Lets a limited number of starts go on at once, and refuses a process that has no room.

    Running out of descriptors in the middle of everything would hit whoever opens the next file:
    the store, a client, the audit log. A refused start hits only the one who asked for it.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.open_files = open_files() if limit is None else limit
        self.processes = max(1, self.open_files // _PROCESS_SHARE // PER_PROCESS)
        starts = self.open_files // _START_SHARE // PER_START
        self.starting = asyncio.Semaphore(max(1, min(_MOST_STARTS, starts)))

    def require_room(self, running: int) -> None:
        """Raise SpawnFailed when one more process beside so many would be too many."""
        if running >= self.processes:
            raise SpawnFailed(
                f"{running} processes run already, and the limit of {self.open_files} open files "
                "leaves no room for another",
                fix="raise the hard limit of open files (LimitNOFILE= of the service, or "
                "`ulimit -Hn`) and start the daemon again",
                running=running,
            )
