"""`StatusWatch`: what a daemon spends while somebody waits for its status.

A busy machine makes every clock on the wall lie, so this is processor time: all that the daemon's
own threads use between a request for `/status` and its answer. Whatever keeps the event loop, or
the interpreter, from answering is in it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from whole.harness.daemon import PATIENCE_S, Daemon

WORST_S = 0.1
"""Twice what an idle machine is held to; before there were limits it was 0.2 to 1.1."""
_CPU_OF_PROCESS = 2  # CPUCLOCK_SCHED of a whole process, as clock_getcpuclockid(3) makes it


class StatusWatch:
    """Asks for the status over and over during its `with` block; `spent_s` has each one's cost."""

    def __init__(self, daemon: Daemon) -> None:
        self._clock = (~daemon.pid << 3) | _CPU_OF_PROCESS
        self._socket = str(daemon.get("/status")["socket"])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.spent_s: list[float] = []

    @property
    def worst_s(self) -> float:
        """The most that one of them had to wait for."""
        return max(self.spent_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=self._socket, verify=False),
            base_url="http://kaged",
            timeout=PATIENCE_S,
            trust_env=False,
        ) as client:
            while not self._over.is_set():
                before_s = time.clock_gettime(self._clock)
                client.get("/api/v1/status").raise_for_status()
                self.spent_s.append(time.clock_gettime(self._clock) - before_s)


def held_up_s(daemon: Daemon, act: Callable[[], object]) -> float:
    """Return the most that a request for the status cost meanwhile, in the best of three tries.

    On a crowded machine processor time lies as well, though less than the clock on the wall. What
    really holds up others is there each time.
    """
    best_s = math.inf
    for _ in range(3):
        with StatusWatch(daemon) as watch:
            act()
        best_s = min(best_s, watch.worst_s)
        if best_s < WORST_S:
            break
    return best_s
