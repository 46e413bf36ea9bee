"""`FileThreads`: where disk work runs, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

MAX_THREADS: Final = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


class FileThreads:
    """A few threads for the files of all projects of the daemon; started when first used."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="kaged-files")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run work that changes nothing; a cancelled caller does not wait for its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def finish(self, work: Callable[[], _T], then: Callable[[_T], _R]) -> _R:
        """Run work that changes something, and `then` on the loop, whatever becomes of the caller.

        A caller that is cancelled meanwhile gets its CancelledError when both have ended: locks it
        holds stay held while the disk is being changed, and what was changed is recorded.
        """
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            return then(future.result())
        finally:
            if cancelled is not None:
                raise cancelled

    def close(self) -> None:
        """End the threads when their work is done."""
        self._pool.shutdown(wait=True)
