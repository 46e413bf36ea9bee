"""`RestartPolicy`: when to start a peer again, and when to give up. Pure; time is handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kaged.base.lazy_dataclass import dataclass

DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # PH-SUP-21
FAILURES_TO_GIVE_UP = 5  # PH-SUP-22
WINDOW_S = 600.0  # PH-SUP-22, PH-AMB-35
JITTER = 0.1  # PH-BEY-11: peers that died together do not all come back in the same moment


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it down until a person acts; `failures` is the count of the series."""

    failures: int


class RestartPolicy:
    """Counts consecutive failures of one peer.

    The delay climbs with each failure of a series. A series ends after ten minutes of running
    without failure or when the operator says so; five failures within ten minutes end the tries
    (PH-AMB-35). `spread` returns a number from 0 to 1: the share of the jitter that a delay gets.
    """

    def __init__(self, spread: Callable[[], float] | None = None) -> None:
        self._spread = spread
        self._step = 0
        self._recent: deque[float] = deque()
        self._running_since_s: float | None = None
        self.failures = 0

    def running(self, now_s: float) -> None:
        """Take note that the peer is up."""
        self._running_since_s = now_s

    def failed(self, now_s: float) -> Again | GiveUp:
        """Take note of a failure and return what to do."""
        if self._running_since_s is not None and now_s - self._running_since_s >= WINDOW_S:
            self.reset()
        self._running_since_s = None
        self.failures += 1
        self._recent.append(now_s)
        while now_s - self._recent[0] > WINDOW_S:
            self._recent.popleft()
        if len(self._recent) >= FAILURES_TO_GIVE_UP:
            return GiveUp(self.failures)
        delay_s = DELAYS_S[min(self._step, len(DELAYS_S) - 1)]
        self._step += 1
        return Again(delay_s if self._spread is None else delay_s * (1 + JITTER * self._spread()))

    def reset(self) -> None:
        """Forget the series: the operator enabled the peer again."""
        self._step = 0
        self._recent.clear()
        self._running_since_s = None
        self.failures = 0
