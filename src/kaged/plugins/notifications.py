"""`NotificationGate`: which notifications of a plugin are let through, and how many per second."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from kaged.base.lazy_dataclass import dataclass
from kaged.wire.methods import is_plugin_method_name

LIMIT_PER_S = 100  # PH-NOTIF-05
WINDOW_S = 1.0


class NotificationVerdict(StrEnum):
    """What to do with one notification."""

    ACCEPT = "accept"
    ILLEGAL = "illegal"  # a name no plugin may use: dropped as a protocol violation
    DROP = "drop"  # over the rate, told already in this second
    FLOOD = "flood"  # over the rate: dropped, and time to tell about it


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, with the rate seen and the number dropped when it is a flood."""

    verdict: NotificationVerdict
    rate: int = 0
    dropped: int = 0


class NotificationGate:
    """Counts in a sliding window of one second (PH-AMB-49); one per plugin, so floods are apart."""

    def __init__(self) -> None:
        self._accepted: deque[float] = deque()
        self._dropped: deque[float] = deque()
        self._told_at_s = -WINDOW_S
        self.dropped = 0

    def judge(self, name: str, now_s: float) -> Judged:
        """Decide about a notification that arrives now."""
        if not is_plugin_method_name(name):
            return Judged(NotificationVerdict.ILLEGAL)
        for window in (self._accepted, self._dropped):
            while window and now_s - window[0] >= WINDOW_S:
                window.popleft()
        if len(self._accepted) < LIMIT_PER_S:
            self._accepted.append(now_s)
            return Judged(NotificationVerdict.ACCEPT)
        self.dropped += 1
        # Beyond this the exact rate is of no interest; the window itself must stay bounded.
        if len(self._dropped) < LIMIT_PER_S * 100:
            self._dropped.append(now_s)
        if now_s - self._told_at_s < WINDOW_S:
            return Judged(NotificationVerdict.DROP)
        self._told_at_s = now_s
        rate = len(self._accepted) + len(self._dropped)
        return Judged(NotificationVerdict.FLOOD, rate, self.dropped)
