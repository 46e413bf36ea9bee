"""`GuestReader`: the thread in which one plugin's queries run, one after the other.

Each plugin has a thread of its own, so that a query which takes its time holds up nobody else:
no other plugin, and none of the store's own readers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from kaged.base.log import get_logger
from kaged.store.backends.sqlite_guest import GuestConnection
from kaged.store.errors import StoreUnavailable

T = TypeVar("T")

JOIN_LIMIT_S = 5.0

_log = get_logger(__name__)


class _Job(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class GuestReader:
    """Runs work in its own thread. Its connection is opened there on first use."""

    def __init__(self, name: str, connect: Callable[[], GuestConnection]) -> None:
        self._connect = connect
        self._conn: GuestConnection | None = None
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"kaged-guest-{name}", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> GuestConnection:
        """The connection; only for work that runs in this thread."""
        if self._conn is None:
            self._conn = self._connect()
        return self._conn

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread. Cancelling this makes a running query end soon.

        Raises:
            StoreUnavailable: the reader is closed.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(work, loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._stop()
            raise

    def close(self) -> None:
        """Make what runs end and the thread close its connection, soon; does not wait for it."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._stop()

    def join(self) -> None:
        """Wait until the thread has ended after `close`, but not for ever. Blocks."""
        self._thread.join(JOIN_LIMIT_S)
        if self._thread.is_alive():
            _log.warning("store.plugin_query_stuck", thread=self._thread.name)

    def _stop(self) -> None:
        conn = self._conn
        if conn is not None:
            conn.stop()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._closed:
                _settle(job, None, StoreUnavailable("the store is closed"))
            elif not job.future.cancelled():
                self._do(job)
        if self._conn is not None:
            self._conn.close()

    def _do(self, job: _Job) -> None:
        try:
            result = job.work()
        except Exception as error:  # noqa: BLE001 - boundary: the thread outlives any error
            _settle(job, None, error)
        else:
            _settle(job, result, None)


def _settle(job: _Job, result: object, error: Exception | None) -> None:
    try:
        job.loop.call_soon_threadsafe(_finish, job.future, result, error)
    except RuntimeError:
        _log.warning("store.plugin_query_orphaned")


def _finish(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return  # nobody waits any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
