"""`ServiceRows`: linked accounts, pending flows and stored state of the service capabilities.

Credentials are not here; they are in `vault_rows`, which nothing but the vault may import.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from kaged.base import Clock, JsonObject
from kaged.store.database import Database
from kaged.store.record_table import RecordTable
from kaged.store.schema import service_accounts, service_flows, service_state

_A = service_accounts.c
_F = service_flows.c
_S = service_state.c


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One linked account of one user with one capability."""

    user_id: str
    capability_id: str
    account_ref: str
    account_name: str | None
    account_email: str | None
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One pending flow. `sealed` holds its secrets, encrypted."""

    flow_id: str
    user_id: str
    capability_id: str
    account_hint: str | None
    flow_type: str
    auth_url: str = field(repr=False)
    user_code: str | None = field(repr=False)
    poll_interval_s: int | None
    sealed: bytes = field(repr=False)
    failures: int
    created_at_ms: int
    expires_at_ms: int


_ACCOUNTS = RecordTable(service_accounts, AccountRow)
_FLOWS = RecordTable(service_flows, FlowRow)


class ServiceRows:
    """Who has linked what, and what is being linked."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # ---- accounts

    async def accounts(self, user_id: str, capability_id: str) -> tuple[AccountRow, ...]:
        """Return the accounts of one user with one capability, by name."""
        own = _ACCOUNTS.select(_A.user_id == user_id, _A.capability_id == capability_id)
        wanted = own.order_by(_A.account_ref)
        return await self._database.read(lambda conn: tuple(_ACCOUNTS.all(conn, wanted)))

    async def all_accounts(
        self, *, user_id: str | None, limit: int, offset: int
    ) -> tuple[AccountRow, ...]:
        """Return a page of accounts for the operator, of one user or of all."""
        query = _ACCOUNTS.select().order_by(_A.user_id, _A.capability_id, _A.account_ref)
        if user_id is not None:
            query = query.where(_A.user_id == user_id)
        page = query.limit(limit).offset(offset)
        return await self._database.read(lambda conn: tuple(_ACCOUNTS.all(conn, page)))

    async def link(self, account: AccountRow, flow_id: str) -> None:
        """Link an account and end its flow, both or neither."""

        def work(conn: Connection) -> None:
            _ACCOUNTS.put(conn, account)
            conn.execute(delete(service_flows).where(_F.flow_id == flow_id))

        await self._database.write(work)

    async def unlink(self, user_id: str, capability_id: str, account_ref: str) -> bool:
        """Remove an account and what was remembered of it; returns whether it was there."""
        wanted = and_(
            _A.user_id == user_id, _A.capability_id == capability_id, _A.account_ref == account_ref
        )
        return await self._database.write(
            lambda conn: conn.execute(delete(service_accounts).where(wanted)).rowcount > 0
        )

    # ---- flows

    async def flow(self, flow_id: str) -> FlowRow | None:
        """Return one flow, expired or not."""
        return await self._database.read(lambda conn: _FLOWS.first(conn, _F.flow_id == flow_id))

    async def pending_flows(self, user_id: str) -> tuple[FlowRow, ...]:
        """Return the unexpired flows of one user, the latest expiry first."""
        own = _FLOWS.select(_F.user_id == user_id, _F.expires_at_ms > self._clock.now_ms())
        wanted = own.order_by(_F.expires_at_ms.desc(), _F.flow_id)
        return await self._database.read(lambda conn: tuple(_FLOWS.all(conn, wanted)))

    async def add_flow(self, flow: FlowRow, limit: int) -> bool:
        """Keep a flow; False, and nothing kept, when so many are pending already."""
        now = self._clock.now_ms()

        def work(conn: Connection) -> bool:
            conn.execute(delete(service_flows).where(_F.expires_at_ms <= now))
            if _FLOWS.count(conn) >= limit:
                return False
            _FLOWS.insert(conn, flow)
            return True

        return await self._database.write(work)

    async def fail_flow(self, flow_id: str, limit: int) -> None:
        """Count a failed completion; the flow ends with the last one that is allowed."""

        def work(conn: Connection) -> None:
            changed = update(service_flows).where(_F.flow_id == flow_id)
            conn.execute(changed.values(failures=_F.failures + 1))
            conn.execute(
                delete(service_flows).where(and_(_F.flow_id == flow_id, _F.failures >= limit))
            )

        await self._database.write(work)

    async def end_flow(self, flow_id: str) -> None:
        """Forget a flow."""
        await self._database.write(
            lambda conn: conn.execute(delete(service_flows).where(_F.flow_id == flow_id))
        )

    async def reseal_flow(self, flow_id: str, sealed: bytes) -> None:
        """Replace the secrets of a flow."""
        await self._database.write(
            lambda conn: conn.execute(
                update(service_flows).where(_F.flow_id == flow_id).values(sealed=sealed)
            )
        )

    async def all_flows(self) -> tuple[FlowRow, ...]:
        """Return every flow, for a change of the key."""
        return await self._database.read(lambda conn: tuple(_FLOWS.all(conn, _FLOWS.select())))

    # ---- what providers remember

    async def state(
        self, user_id: str, capability_id: str, chat_id: str, name: str
    ) -> JsonObject | None:
        """Return one entry; an empty `chat_id` is what belongs to no chat."""
        wanted = _state_key(user_id, capability_id, chat_id, name)

        def work(conn: Connection) -> JsonObject | None:
            text = conn.execute(select(_S.value).where(wanted)).scalar()
            return None if text is None else json.loads(text)

        return await self._database.read(work)

    async def put_state(
        self,
        user_id: str,
        capability_id: str,
        chat_id: str,
        name: str,
        value: JsonObject,
        *,
        limit: int,
    ) -> bool:
        """Write one entry; False, and nothing written, when the scope already has so many."""
        wanted = _state_key(user_id, capability_id, chat_id, name)
        values: dict[str, Any] = {
            "value": json.dumps(value),
            "updated_at_ms": self._clock.now_ms(),
        }

        def work(conn: Connection) -> bool:
            if conn.execute(update(service_state).where(wanted).values(values)).rowcount:
                return True
            scope = and_(_S.user_id == user_id, _S.capability_id == capability_id)
            count = conn.execute(select(func.count()).select_from(service_state).where(scope))
            if (count.scalar() or 0) >= limit:
                return False
            key = {
                "user_id": user_id,
                "capability_id": capability_id,
                "chat_id": chat_id,
                "name": name,
            }
            conn.execute(insert(service_state).values(**key, **values))
            return True

        return await self._database.write(work)

    async def delete_state(self, user_id: str, capability_id: str, chat_id: str, name: str) -> bool:
        """Remove one entry; returns whether it was there."""
        wanted = _state_key(user_id, capability_id, chat_id, name)
        return await self._database.write(
            lambda conn: conn.execute(delete(service_state).where(wanted)).rowcount > 0
        )


def _state_key(user_id: str, capability_id: str, chat_id: str, name: str) -> Any:
    return and_(
        _S.user_id == user_id,
        _S.capability_id == capability_id,
        _S.chat_id == chat_id,
        _S.name == name,
    )
