"""`Readers`: a few threads, each with a connection that cannot write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from kaged.base.log import get_logger
from kaged.store.backends import SqliteBackend
from kaged.store.errors import StoreUnavailable

T = TypeVar("T")

READER_THREADS = 4
WAITING_LIMIT = 1024

_log = get_logger(__name__)


class Query(Generic[T]):
    """One read that can be stopped from another thread."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self.stopped = False

    def run(self, conn: Connection) -> T:
        """Do it, in one read transaction: it sees one state of the database throughout."""
        if self.stopped:
            raise StoreUnavailable("the read was stopped before it began")
        with conn.begin():
            return self._work(conn)

    def stop(self) -> None:
        """Make it end soon, with an error; a no-op when it has ended."""
        self.stopped = True


class _ReaderThread:
    """One thread's connection, and the query that runs on it."""

    def __init__(self, backend: SqliteBackend) -> None:
        self.query: Query[Any] | None = None
        self.conn = backend.connect_reader(self._stopped)

    def _stopped(self) -> bool:
        return self.query is not None and self.query.stopped


class Readers:
    """Runs reads beside the writer. In WAL mode neither ever waits for the other."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="kaged-store-reader")
        self._local = threading.local()
        self._open: set[Connection] = set()
        self._queries: set[Query[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, query: Query[T]) -> Future[T]:
        """Queue a read.

        Raises:
            StoreUnavailable: the store is closed, or far too many reads wait already.
        """
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if len(self._queries) >= WAITING_LIMIT:
                raise StoreUnavailable(
                    f"{WAITING_LIMIT} reads wait already", fix="try again in a moment"
                )
            self._queries.add(query)
            future = self._pool.submit(self._run, query)
        future.add_done_callback(lambda _: self._ended(query))
        return future

    def close(self) -> None:
        """Stop what runs and end. Blocks until then; safe to call twice."""
        with self._lock:
            self._closed = True
            running = list(self._queries)
        for query in running:
            query.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left, self._open = self._open, set()
        for conn in left:
            conn.close()

    def _ended(self, query: Query[T]) -> None:
        with self._lock:
            self._queries.discard(query)

    def _run(self, query: Query[T]) -> T:
        try:
            reader = self._reader()
            reader.query = query
            try:
                return query.run(reader.conn)
            finally:
                reader.query = None
        except Exception as error:
            translated = self._backend.translate(error)
            if translated is None:
                raise
            if isinstance(translated, StoreUnavailable):
                self._drop()
            raise translated from error

    def _reader(self) -> _ReaderThread:
        reader: _ReaderThread | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = _ReaderThread(self._backend)
            with self._lock:
                self._open.add(reader.conn)
        return reader

    def _drop(self) -> None:
        """Begin with a fresh connection next time."""
        reader: _ReaderThread | None = getattr(self._local, "reader", None)
        self._local.reader = None
        if reader is None:
            return
        with self._lock:
            self._open.discard(reader.conn)
        try:
            reader.conn.close()
        except Exception as error:  # noqa: BLE001 - boundary: closing a broken connection may fail
            _log.warning("store.close_failed", error=type(error).__name__)
