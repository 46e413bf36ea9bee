"""Tasks with an owner: nothing runs in the background that nobody waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from kaged.base.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_log = get_logger("kaged.tasks")


def report_failure(name: str, error: BaseException) -> None:
    """Log a background task that ended with an error."""
    _log.error("task.failed", task=name, error=repr(error))


def report_kind(name: str, error: BaseException) -> None:
    """Log a background task that ended with an error whose text may hold a secret."""
    _log.error("task.failed", task=name, error=type(error).__name__)


class Tasks:
    """Owns background tasks for as long as an object lives.

    Use `asyncio.TaskGroup` when the work ends with a block; use this when it ends with an object
    (a daemon, a plugin, a connection). Every task has a name, a reference and a reader of its
    failure: `on_failure(name, error)` is called for each task that ends with an exception.
    """

    def __init__(
        self, owner: str, on_failure: Callable[[str, BaseException], None] = report_failure
    ) -> None:
        self._owner = owner
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `work` under this owner. Raises RuntimeError after `close`."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed and starts no more tasks ({name})")
        # This is the one place that may create a bare task; the linter bans it everywhere else.
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}/{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        """Count the tasks still running."""
        return len(self._running)

    async def close(self) -> None:
        """Cancel what still runs and wait until all of it has ended. Safe to call twice."""
        self._closed = True
        current = asyncio.current_task()
        pending = [task for task in self._running if task is not current]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_failure(task.get_name(), error)
