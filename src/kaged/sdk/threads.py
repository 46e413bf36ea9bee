"""`Threads`: where plain handlers run, so that a slow one never holds up the conversation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

THREADS_LIMIT = 16


class Threads:
    """Runs plain functions in threads of its own; more than the limit at once take turns.

    Threads start when they are needed and stay. They are daemons: a process that was told to shut
    down does not wait for a handler that never returns.
    """

    def __init__(self, limit: int = THREADS_LIMIT) -> None:
        self._limit = limit
        self._work: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._unfinished = 0
        self._closed = False

    def submit(self, work: Callable[..., Callable[[], Any] | None], *args: Any) -> None:
        """Run `work(*args)` soon. It must not raise: nobody would hear it.

        What it returns is called when its thread counts as free again: who is told of a result so
        finds that thread idle, however late it runs on.
        """
        with self._lock:
            if self._closed:
                return
            self._unfinished += 1
            grow = self._unfinished > self._started and self._started < self._limit
            if grow:
                self._started += 1
        self._work.put((work, args))
        if grow:
            threading.Thread(target=self._run, name="handler", daemon=True).start()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(*args)` in a thread and return what it returns or raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def work() -> Callable[[], Any]:
            result, problem = None, None
            try:
                result = function(*args)
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
                problem = raised
            return lambda: loop.call_soon_threadsafe(_settle, answer, result, problem)

        self.submit(work)
        return await answer

    def close(self) -> None:
        """Start nothing more and let the idle threads end; what runs is not waited for."""
        with self._lock:
            self._closed = True
            started = self._started
        for _ in range(started):
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, args = item
            tell = None
            try:
                if not self._closed:
                    tell = work(*args)
            finally:
                with self._lock:
                    self._unfinished -= 1
            if tell is not None:
                tell()


def _settle(answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    # A future refuses this one, which means the end of an iteration to whoever awaits it.
    elif isinstance(problem, StopIteration):
        answer.set_exception(RuntimeError(f"the handler raised {problem!r}"))
    else:
        answer.set_exception(problem)
