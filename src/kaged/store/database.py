"""`Database`: one open database. Units of work go in, results come out when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from kaged.base import Clock, Ids
from kaged.store.backends import SqliteBackend
from kaged.store.errors import StoreError, StoreUnavailable
from kaged.store.readers import Query, Readers
from kaged.store.writer import Writer

T = TypeVar("T")

WRITES_WAITING_LIMIT = 1024
READ_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0


class Database:
    """What repositories are built on: `write` and `read`, from the loop or from a thread."""

    def __init__(
        self, backend: SqliteBackend, clock: Clock, ids: Ids, *, read_only: bool = False
    ) -> None:
        self.backend = backend
        self.clock = clock
        self.ids = ids
        self._writer = None if read_only else Writer(backend)
        self._readers = Readers(backend)
        self._slots = asyncio.Semaphore(WRITES_WAITING_LIMIT)
        if self._writer is not None:
            self._writer.start()

    @property
    def read_only(self) -> bool:
        """Whether this database was opened for looking only."""
        return self._writer is None

    @property
    def last_error(self) -> StoreError | None:
        """Why the last commit failed; None when it did not."""
        return self._writer.last_error if self._writer else None

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the writer's thread and transaction; returns when it is committed.

        `work` touches nothing but the connection it is given. If it raises, what it did is undone
        and its error is raised here. Cancelling this does not undo a unit that has begun.

        Raises:
            StoreUnavailable: the disk is full or read-only, or the store is closed.
            StoreConflict: a row was in the way.
        """
        async with self._slots:
            return await asyncio.wrap_future(self._require_writer().submit(work))

    async def write_between(self, work: Callable[[], T]) -> T:
        """Run `work` in the writer's thread between two transactions, on its own connection.

        For writes that may be cut short or undo their whole transaction: nobody else's is hit.
        """
        async with self._slots:
            return await asyncio.wrap_future(self._require_writer().submit_between(work))

    def write_blocking(self, work: Callable[[Connection], T]) -> T:
        """Do the same from a thread that may block. Never call it from the event loop."""
        future = self._require_writer().submit(work)
        try:
            return future.result(WRITE_TIMEOUT_S)
        except TimeoutError as error:
            future.cancel()
            raise StoreUnavailable(
                f"the database did not answer within {WRITE_TIMEOUT_S:.0f} s",
                fix="check the disk",
            ) from error

    async def read(self, work: Callable[[Connection], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """Run `work` in a reader's thread, on one unchanging state of the database.

        Raises:
            StoreError: `store_timeout`; it took longer than `timeout_s` and was stopped.
        """
        query = Query(work)
        future = asyncio.wrap_future(self._readers.submit(query))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise StoreError(
                f"the query took longer than {timeout_s:g} s and was stopped",
                code="store_timeout",
                fix="ask for less at once",
            ) from error
        finally:
            if not future.done() or future.cancelled():
                query.stop()

    def read_blocking(self, work: Callable[[Connection], T]) -> T:
        """Do the same from a thread that may block."""
        query = Query(work)
        try:
            return self._readers.submit(query).result(READ_TIMEOUT_S)
        except TimeoutError as error:
            query.stop()
            raise StoreError(
                "the query took too long and was stopped", code="store_timeout"
            ) from error

    async def backup(self, target: Path) -> None:
        """Copy the whole database, as of now, into a new file; writing goes on meanwhile."""
        await asyncio.to_thread(self._backup, target)

    async def check(self) -> None:
        """Check every page of the database.

        Raises:
            StoreCorrupt: one of them is damaged.
        """
        await asyncio.to_thread(self.backend.check, thorough=True)

    async def close(self) -> None:
        """Finish what is queued and close all connections. Safe to call twice."""
        await asyncio.to_thread(self._close)

    def _backup(self, target: Path) -> None:
        conn = self.backend.connect_reader()
        try:
            self.backend.backup(conn, target)
        finally:
            conn.close()

    def _close(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.close()

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable("the store was opened for reading only")
        return self._writer
