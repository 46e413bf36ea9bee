"""`ServiceCallRows`: mutating calls that must not happen twice."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update

from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable, equal
from kaged.store.rows import RowRepository
from kaged.store.schema import service_calls

_C = service_calls.c


class CallStatus(StrEnum):
    """What is known of a mutating call. `unknown`: it may or may not have taken effect."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class CallKey(NamedTuple):
    """What makes two calls the same one; an empty `account_ref` is a call without an account."""

    user_id: str
    capability_id: str
    operation: str
    account_ref: str
    key: str


@dataclass(frozen=True, slots=True)
class CallRow:
    """One mutating call and how it ended. `output` is JSON text, None when it was too large."""

    fingerprint: str
    status: CallStatus
    request_id: str
    output: str | None
    error_code: str | None
    error_message: str | None
    created_at_ms: int
    expires_at_ms: int


_CALLS = RecordTable(service_calls, CallRow, reads={"status": CallStatus})


class ServiceCallRows(RowRepository):
    """Calls by key."""

    async def begin(self, key: CallKey, row: CallRow, *, limit: int) -> CallRow | None:
        """Note that a call begins; returns the one that was there before and keeps that instead.

        Expired calls go, and the oldest of a user who has more than `limit`.
        """
        now = self._clock.now_ms()

        def work(conn: Connection) -> CallRow | None:
            conn.execute(delete(service_calls).where(_C.expires_at_ms <= now))
            found = _CALLS.first(conn, _is(key))
            if found is None:
                _make_space(conn, key.user_id, limit)
                _CALLS.insert(conn, row, **key._asdict())
            return found

        return await self._database.write(work)

    async def end(self, key: CallKey, row: CallRow) -> None:
        """Note how a call ended."""
        await self._execute(update(service_calls).where(_is(key)).values(_CALLS.values(row)))

    async def forget(self, key: CallKey) -> None:
        """Take back that a call began: it never reached its provider."""
        await self._execute(delete(service_calls).where(_is(key)))

    async def settle(self) -> int:
        """After a start: calls that ran when the host died have an unknown outcome."""
        running = update(service_calls).where(_C.status == CallStatus.RUNNING.value)
        return await self._execute(running.values(status=CallStatus.UNKNOWN.value))


def _make_space(conn: Connection, user_id: str, limit: int) -> None:
    mine = _C.user_id == user_id
    count = _CALLS.count(conn, mine)
    if count < limit:
        return
    # What runs is never forgotten: a repeat of it must not pass for a first call.
    settled = and_(mine, _C.status != CallStatus.RUNNING.value)
    oldest = (
        select(*(_C[name] for name in CallKey._fields))
        .where(settled)
        .order_by(_C.created_at_ms)
        .limit(count - limit + 1)
    )
    for found in conn.execute(oldest).all():
        conn.execute(delete(service_calls).where(_is(CallKey._make(found))))


def _is(key: CallKey) -> ColumnElement[bool]:
    return equal(service_calls, key._asdict())
