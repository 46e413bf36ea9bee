"""`GuestConnection`: a connection on which one plugin's statements run, fenced in.

Beside the guard, which decides what may be touched, the fence bounds what a statement may cost:
its time, the size of every value, the pages it may add, and what it may spill to disk for sorting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection

from kaged.base import Clock
from kaged.store.backends.sqlite import SqliteBackend
from kaged.store.backends.sqlite_faults import STATEMENT_ERRORS, fault_of
from kaged.store.backends.sqlite_fence import SCRATCH_LIMIT_BYTES, raise_fence, scratch_bytes
from kaged.store.backends.sqlite_file import driver_of
from kaged.store.backends.sqlite_guard import SqlGuard, Verb, verb_of
from kaged.store.guest import FaultKind, GuestFault, GuestLimits, GuestRows, GuestStep

PAGES_MAX = 2**31 - 2  # SQLite's own limit
_SCRATCH_LOOK_S = 0.02
_LEAST_JSON_BYTES = 5  # `"":1,` in the answer, for each value beside the text in it
_SIZES = ("page_count", "page_size")
_FREE = "freelist_count"


class GuestConnection:
    """One plugin's way into the database. Used by one thread at a time; `stop` by any.

    A reading one is guarded for good. A writing one is guarded while a statement of the plugin
    runs (`change`) and free for the host's own book-keeping in the same transaction (`host`).
    """

    def __init__(self, conn: Connection, guard: SqlGuard, clock: Clock, *, writes: bool) -> None:
        self._conn = conn
        self._driver = driver_of(conn)
        self._guard = guard
        self._clock = clock
        self._deadline_s: float | None = None
        self._look_s = 0.0
        self._fault: FaultKind | None = None
        self._take_down = raise_fence(self._driver, self._look, writes=writes)
        if writes:
            self._driver.text_factory = bytes  # rows of RETURNING are never looked at
        else:
            self._driver.set_authorizer(guard)

    @classmethod
    def reading(cls, backend: SqliteBackend, guard: SqlGuard, clock: Clock) -> GuestConnection:
        """Open one that cannot write."""
        return cls(backend.connect_reader(), guard, clock, writes=False)

    @classmethod
    def writing(cls, backend: SqliteBackend, guard: SqlGuard, clock: Clock) -> GuestConnection:
        """Open one for `transaction` and `change`."""
        return cls(backend.connect_writer(), guard, clock, writes=True)

    def close(self) -> None:
        """Close it; what was open is undone."""
        self._driver.set_authorizer(None)
        self._conn.close()
        self._take_down()

    def stop(self) -> None:
        """Make the statement that runs in another thread end soon; a no-op when it is closed."""
        with suppress(sqlite3.ProgrammingError):
            self._driver.interrupt()

    # -- reading -------------------------------------------------------------------------------

    def query(self, step: GuestStep, limits: GuestLimits) -> GuestRows:
        """Run a SELECT and take its rows, within the limits.

        Raises:
            GuestFault: it is denied, wrong, too slow or too large.
        """
        self._begin(step, limits.time_s)
        try:
            return self._rows(step, limits)
        except STATEMENT_ERRORS as error:
            if "Could not decode" not in str(error):
                raise self._fault_of(error, limits.time_s) from error
        finally:
            self._end()
        return self._lenient_rows(step, limits)

    def _lenient_rows(self, step: GuestStep, limits: GuestLimits) -> GuestRows:
        # Text that is no UTF-8 can only come from a CAST; better a mark in it than nothing.
        self._driver.text_factory = _lenient
        try:
            with self._running(step, limits.time_s):
                return self._rows(step, limits)
        finally:
            self._driver.text_factory = str

    def _rows(self, step: GuestStep, limits: GuestLimits) -> GuestRows:
        cursor = self._driver.execute(step.statement.sql, step.values)
        try:
            columns = tuple(column[0] for column in cursor.description or ())
            rows: list[tuple[Any, ...]] = []
            size = 0
            for row in cursor:
                rows.append(row)
                size += _LEAST_JSON_BYTES * len(row)
                for value in row:
                    if type(value) is str or type(value) is bytes:
                        size += len(value)
                if size > limits.result_bytes:
                    raise _over(FaultKind.RESULT, "the rows are too large", limits.result_bytes)
                if len(rows) > limits.rows:
                    raise _over(FaultKind.ROWS, "there are too many rows", limits.rows)
            return GuestRows(columns, rows, size)
        finally:
            cursor.close()

    # -- writing -------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do what is in the block together or, if it raises, not at all."""
        with self._translating(None):
            self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._translating(None):
                self._driver.execute("COMMIT")
        finally:
            # A full disk and OR ROLLBACK end a transaction unasked.
            if self._driver.in_transaction:
                self._driver.execute("ROLLBACK")

    def change(self, step: GuestStep, time_s: float) -> int:
        """Run a statement of the plugin, guarded; return how many rows it changed.

        Raises:
            GuestFault: it is denied, wrong or too slow; the transaction has to be given up.
        """
        is_rows = verb_of(step.statement.sql) is Verb.ROWS
        with self._running(step, time_s):
            self._driver.set_authorizer(self._guard)
            try:
                cursor = self._driver.execute(step.statement.sql, step.values)
                for _ in cursor:
                    pass
                cursor.close()
            finally:
                self._driver.set_authorizer(None)
        return int(self.host("SELECT changes()")[0][0]) if is_rows else 0

    def host(self, sql: str, *values: str | float | None) -> list[tuple[Any, ...]]:
        """Run a statement of the host's own, unguarded; texts come back as bytes."""
        with self._translating(None):
            return self._driver.execute(sql, values).fetchall()

    def allow_growth(self, limit_bytes: int) -> None:
        """Let the database grow by so much and no further, until this is called again."""
        (pages,), (page_bytes,) = (self.host(f"PRAGMA {name}")[0] for name in _SIZES)
        most = min(PAGES_MAX, pages + max(0, limit_bytes) // page_bytes)
        self.host(f"PRAGMA max_page_count={most}")

    def used_bytes(self) -> int:
        """Count the bytes of the pages in use, by everybody."""
        (pages,), (page_bytes,), (free,) = (self.host(f"PRAGMA {n}")[0] for n in (*_SIZES, _FREE))
        return (pages - free) * page_bytes

    # -- own -----------------------------------------------------------------------------------

    @contextmanager
    def _running(self, step: GuestStep, time_s: float) -> Generator[None]:
        self._begin(step, time_s)
        try:
            with self._translating(time_s):
                yield
        finally:
            self._end()

    def _begin(self, step: GuestStep, time_s: float) -> None:
        statement = step.statement
        self._guard.expect(verb_of(statement.sql), statement.queried, statement.made)
        self._fault = None
        self._look_s = self._clock.monotonic_s()
        self._deadline_s = self._look_s + time_s

    def _end(self) -> None:
        self._deadline_s = None
        self._fault = None
        self._guard.denial = None

    def _look(self) -> int:
        """Return, in the middle of a statement, whether it has to end."""
        if self._deadline_s is None:
            return 0
        now_s = self._clock.monotonic_s()
        if now_s > self._deadline_s:
            self._fault = FaultKind.TIME
        elif now_s - self._look_s > _SCRATCH_LOOK_S:
            self._look_s = now_s
            if scratch_bytes() > SCRATCH_LIMIT_BYTES:
                self._fault = FaultKind.SCRATCH
        return int(self._fault is not None)

    @contextmanager
    def _translating(self, time_s: float | None) -> Generator[None]:
        try:
            yield
        except STATEMENT_ERRORS as error:
            raise self._fault_of(error, time_s) from error

    def _fault_of(self, error: Exception, time_s: float | None) -> GuestFault:
        if self._fault is FaultKind.TIME and time_s is not None:
            return _over(FaultKind.TIME, "the statement took too long and was stopped", time_s)
        if self._fault is FaultKind.SCRATCH:
            text = "the statement needs too much room for sorting"
            return _over(FaultKind.SCRATCH, text, SCRATCH_LIMIT_BYTES)
        return fault_of(error, self._guard.denial)


def _over(kind: FaultKind, message: str, limit: float) -> GuestFault:
    return GuestFault(kind, message, limit=limit)


def _lenient(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
