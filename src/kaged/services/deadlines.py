"""`Deadlines`: many waits of one length, under one timer of the event loop."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadlines:
    """Ends waits that take longer than `seconds`; each as `asyncio.timeout` would end it.

    A timer of its own for every call costs as much as all gates of the call, and nearly none ever
    goes off. Waits of the same length end in the order in which they began, so one timer for the
    oldest does for all of them.
    """

    __slots__ = ("_seconds", "_timer", "_waits")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits: dict[Wait, None] = {}  # in the order of their ends
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> Wait:
        """Begin to wait; to be entered at once, by the task that waits.

        Raises:
            TimeoutError: on leaving, when it took too long; whatever ran inside was cancelled.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "only a task can wait"
        wait = Wait(self._waits, task, loop.time() + self._seconds)
        self._waits[wait] = None
        if self._timer is None:
            self._timer = loop.call_at(wait.due_s, self._ring, loop)
        return wait

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for wait in self._waits:
            if wait.due_s > now_s:
                self._timer = loop.call_at(wait.due_s, self._ring, loop)
                return
            wait.expire()
        self._timer = None


class Wait:
    """One wait, from entering to leaving."""

    __slots__ = ("_cancelling", "_expired", "_task", "_waits", "due_s")

    def __init__(self, waits: dict[Wait, None], task: asyncio.Task[object], due_s: float) -> None:
        self.due_s = due_s
        self._waits = waits
        self._task = task
        self._cancelling = task.cancelling()
        self._expired = False

    def expire(self) -> None:
        """End it: its task is cancelled, once."""
        if not self._expired:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        """Begin what may take only so long."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise TimeoutError in place of the cancellation that `expire` has caused."""
        del self._waits[self]
        # A task that somebody else cancels meanwhile stays cancelled.
        if (
            self._expired
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error
