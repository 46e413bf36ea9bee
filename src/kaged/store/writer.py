"""`Writer`: the one thread that writes. Units of work that arrive together share a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

from kaged.base.log import get_logger
from kaged.store.backends import SqliteBackend
from kaged.store.errors import StoreCorrupt, StoreError, StoreUnavailable

T = TypeVar("T")

GROUP_LIMIT_UNITS = 64

_log = get_logger(__name__)


class _Unit(NamedTuple):
    work: Callable[..., Any]
    future: Future[Any]
    alone: bool = False  # runs between two transactions, on a connection of its own


class _Outcome(NamedTuple):
    future: Future[Any]
    result: Any
    error: BaseException | None


class _TransactionLost(Exception):
    """The database gave up the whole transaction, not only the unit that ran."""

    def __init__(self, unit: _Unit, error: Exception) -> None:
        super().__init__()
        self.unit = unit
        self.error = error


class Writer:
    """Runs units of work one after the other on the one connection that may write.

    Units that wait at the same time run in one transaction, each behind a savepoint: one that
    fails is undone alone. A future is resolved after the commit, so an answer means "on disk".
    One writer means that our own threads never meet a locked database; for other programs the
    connection waits up to ten seconds.
    """

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._queue: SimpleQueue[_Unit | None] = SimpleQueue()
        self._conn: Connection | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kaged-store-writer", daemon=True)
        self.last_error: StoreError | None = None

    def start(self) -> None:
        """Begin to take units."""
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Queue a unit; its future gives the result once it is durable.

        `work` touches nothing but the connection, because it may run twice: a neighbour that
        spoils the transaction they share is taken out, and the others run again. Cancelling the
        future before the unit begins drops it; after that it runs to its end.

        Raises:
            StoreUnavailable: the store is closed.
        """
        return self._put(_Unit(work, Future()))

    def submit_between(self, work: Callable[[], T]) -> Future[T]:
        """Queue work for a moment when this thread has no transaction open.

        It takes its turn like any unit and brings its own connection, so whatever becomes of its
        transaction, no other unit is undone by it.

        Raises:
            StoreUnavailable: the store is closed.
        """
        return self._put(_Unit(work, Future(), alone=True))

    def _put(self, unit: _Unit) -> Future[Any]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._queue.put(unit)
        return unit.future

    def close(self) -> None:
        """Finish what is queued, tidy up and end. Blocks until then; safe to call twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (unit := self._queue.get()) is not None:
            group, ended = self._gather(unit)
            for alone, units in groupby(group, _is_alone):
                if alone:
                    for one in units:
                        self._run_alone(one)
                else:
                    self._commit(list(units))
            if ended:
                break
        self._end()

    def _gather(self, first: _Unit) -> tuple[list[_Unit], bool]:
        """Take what else waits already, so that it shares the commit."""
        group = [first]
        while len(group) < GROUP_LIMIT_UNITS:
            try:
                unit = self._queue.get_nowait()
            except Empty:
                break
            if unit is None:
                return group, True
            group.append(unit)
        return group, False

    def _run_alone(self, unit: _Unit) -> None:
        if not unit.future.set_running_or_notify_cancel():
            return
        try:
            if isinstance(self.last_error, StoreCorrupt):
                raise self.last_error
            result = unit.work()
        except Exception as error:  # noqa: BLE001 - boundary: the writer's thread outlives any error
            unit.future.set_exception(error)
        else:
            unit.future.set_result(result)

    def _commit(self, units: list[_Unit]) -> None:
        try:
            outcomes = self._transaction(units)
        except _TransactionLost as lost:
            self._again(units, lost)
            return
        except Exception as error:  # noqa: BLE001 - boundary: the writer's thread outlives any error
            self._fail(units, error)
            return
        self.last_error = None
        for outcome in outcomes:
            if outcome.error is not None:
                outcome.future.set_exception(outcome.error)
            else:
                outcome.future.set_result(outcome.result)

    def _transaction(self, units: list[_Unit]) -> list[_Outcome]:
        if isinstance(self.last_error, StoreCorrupt):
            raise self.last_error  # writing on could make it worse
        conn = self._conn
        if conn is None:
            conn = self._conn = self._backend.connect_writer()
        with conn.begin():
            if len(units) == 1:
                # Alone in its transaction: undoing the unit is undoing all of it.
                (unit,) = units
                return [_Outcome(unit.future, unit.work(conn), None)] if _begun(unit) else []
            return [self._guarded(conn, unit) for unit in units if _begun(unit)]

    def _guarded(self, conn: Connection, unit: _Unit) -> _Outcome:
        savepoint = conn.begin_nested()
        try:
            result = unit.work(conn)
        except Exception as error:
            translated = self._backend.translate(error)
            if isinstance(translated, StoreUnavailable | StoreCorrupt):
                raise
            if not self._backend.in_transaction(conn):
                raise _TransactionLost(unit, error) from error
            savepoint.rollback()
            return _Outcome(unit.future, None, translated or error)
        savepoint.commit()
        return _Outcome(unit.future, result, None)

    def _again(self, units: list[_Unit], lost: _TransactionLost) -> None:
        """Let those who shared a lost transaction not pay for the one who lost it."""
        self._drop_connection()
        for unit in units:
            if unit is lost.unit:
                self._fail([unit], lost.error)
            else:
                self._commit([unit])

    def _fail(self, units: list[_Unit], error: Exception) -> None:
        known = error if isinstance(error, StoreError) else self._backend.translate(error)
        if isinstance(known, StoreUnavailable | StoreCorrupt):
            if type(known) is not type(self.last_error):
                _log.error("store.write_failed", error=known.message)
            self.last_error = known
            self._drop_connection()
        for unit in units:
            if _begun(unit):
                unit.future.set_exception(known or error)

    def _drop_connection(self) -> None:
        """Begin with a fresh connection next time; this one may have seen the disk fail."""
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            conn.close()
        except Exception as error:  # noqa: BLE001 - boundary: closing a broken connection may fail
            _log.warning("store.close_failed", error=type(error).__name__)

    def _end(self) -> None:
        if self._conn is not None and self.last_error is None:
            try:
                self._backend.tidy(self._conn)
            except Exception as error:  # noqa: BLE001 - boundary: nothing depends on tidiness
                _log.warning("store.optimize_failed", error=type(error).__name__)
        self._drop_connection()


def _begun(unit: _Unit) -> bool:
    """Mark that the unit runs now; False if nobody wants it any more."""
    return unit.future.running() or unit.future.set_running_or_notify_cancel()


def _is_alone(unit: _Unit) -> bool:
    return unit.alone
