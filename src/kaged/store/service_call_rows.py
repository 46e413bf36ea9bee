"""`ServiceCallRows`: mutating calls that must not happen twice, and consents to them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, delete, select, update

from kaged.base import Clock
from kaged.store.database import Database
from kaged.store.record_table import RecordTable
from kaged.store.schema import service_calls, service_plans

_C = service_calls.c
_P = service_plans.c


class CallStatus(StrEnum):
    """What is known of a mutating call. `unknown`: it may or may not have taken effect."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class PlanStatus(StrEnum):
    """How far a consent has come; each is used once."""

    PRESENTED = "presented"
    CONFIRMED = "confirmed"
    DENIED = "denied"
    EXECUTED = "executed"


@dataclass(frozen=True, slots=True)
class CallKey:
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


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One operation that waits for its owner's consent, or has it."""

    plan_id: str
    user_id: str
    capability_id: str
    operation: str
    account_ref: str
    input_hash: str
    thread_id: str | None
    summary: str
    status: PlanStatus
    decided_by: str | None
    created_at_ms: int
    decided_at_ms: int | None
    expires_at_ms: int


_CALLS = RecordTable(service_calls, CallRow, reads={"status": CallStatus})
_PLANS = RecordTable(service_plans, PlanRow, reads={"status": PlanStatus})


class ServiceCallRows:
    """Calls by key, and plans by id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # ---- calls

    async def begin(self, key: CallKey, row: CallRow, *, limit: int) -> CallRow | None:
        """Note that a call begins; returns the one that was there before and keeps that instead.

        Expired calls go, and the oldest of a user who has more than `limit`.
        """
        now = self._clock.now_ms()

        def work(conn: Connection) -> CallRow | None:
            conn.execute(delete(service_calls).where(_C.expires_at_ms <= now))
            found = _CALLS.first(conn, _call_key(key))
            if found is None:
                _make_space(conn, key.user_id, limit)
                _CALLS.insert(conn, row, **asdict(key))
            return found

        return await self._database.write(work)

    async def end(self, key: CallKey, row: CallRow) -> None:
        """Note how a call ended."""
        await self._database.write(
            lambda conn: conn.execute(
                update(service_calls).where(_call_key(key)).values(_CALLS.values(row))
            )
        )

    async def forget(self, key: CallKey) -> None:
        """Take back that a call began: it never reached its provider."""
        await self._database.write(
            lambda conn: conn.execute(delete(service_calls).where(_call_key(key)))
        )

    async def settle(self) -> int:
        """After a start: calls that ran when the host died have an unknown outcome."""

        def work(conn: Connection) -> int:
            running = _C.status == CallStatus.RUNNING.value
            changed = update(service_calls).where(running)
            return conn.execute(changed.values(status=CallStatus.UNKNOWN.value)).rowcount

        return await self._database.write(work)

    # ---- plans

    async def add_plan(self, plan: PlanRow, *, limit: int) -> bool:
        """Keep a plan; False, and nothing kept, when its user has so many already."""
        now = self._clock.now_ms()

        def work(conn: Connection) -> bool:
            conn.execute(delete(service_plans).where(_P.expires_at_ms <= now))
            if _PLANS.count(conn, _P.user_id == plan.user_id) >= limit:
                return False
            _PLANS.insert(conn, plan)
            return True

        return await self._database.write(work)

    async def plan(self, plan_id: str) -> PlanRow | None:
        """Return one plan, expired or not."""
        return await self._database.read(lambda conn: _PLANS.first(conn, _P.plan_id == plan_id))

    async def plans(self, *, user_id: str | None, limit: int = 200) -> tuple[PlanRow, ...]:
        """Return the unexpired plans of one user or of everybody, newest first."""
        query = _PLANS.select(_P.expires_at_ms > self._clock.now_ms())
        if user_id is not None:
            query = query.where(_P.user_id == user_id)
        query = query.order_by(_P.created_at_ms.desc(), _P.plan_id).limit(limit)
        return await self._database.read(lambda conn: tuple(_PLANS.all(conn, query)))

    async def move_plan(
        self, plan_id: str, before: PlanStatus, after: PlanStatus, decided_by: str | None
    ) -> bool:
        """Take a plan from one status to the next, once; False when it was not there any more."""
        now = self._clock.now_ms()
        wanted = and_(_P.plan_id == plan_id, _P.status == before.value, _P.expires_at_ms > now)
        values: dict[str, Any] = {"status": after.value, "decided_at_ms": now}
        if decided_by is not None:
            values["decided_by"] = decided_by
        return await self._database.write(
            lambda conn: (
                conn.execute(update(service_plans).where(wanted).values(values)).rowcount > 0
            )
        )


def _make_space(conn: Connection, user_id: str, limit: int) -> None:
    mine = _C.user_id == user_id
    count = _CALLS.count(conn, mine)
    if count < limit:
        return
    # What runs is never forgotten: a repeat of it must not pass for a first call.
    settled = and_(mine, _C.status != CallStatus.RUNNING.value)
    oldest = conn.execute(
        select(_C.operation, _C.capability_id, _C.account_ref, _C.key)
        .where(settled)
        .order_by(_C.created_at_ms)
        .limit(count - limit + 1)
    ).all()
    for operation, capability_id, account_ref, key in oldest:
        row = CallKey(user_id, capability_id, operation, account_ref, key)
        conn.execute(delete(service_calls).where(_call_key(row)))


def _call_key(key: CallKey) -> Any:
    return and_(
        _C.user_id == key.user_id,
        _C.capability_id == key.capability_id,
        _C.operation == key.operation,
        _C.account_ref == key.account_ref,
        _C.key == key.key,
    )
