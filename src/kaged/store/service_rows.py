"""`ServiceRows`: linked accounts, pending flows and stored state of the service capabilities.

Credentials are not here; they are in `vault_rows`, which nothing but the vault may import.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.account_shares import AccountShare
from kaged.store.account_share_rows import end_shares
from kaged.store.record_table import RecordTable, equal
from kaged.store.rows import RowRepository
from kaged.store.schema import service_accounts, service_flows, service_state

_A = service_accounts.c
_F = service_flows.c


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
    status: str = "active"
    status_reason: str | None = None
    status_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One pending flow. `sealed` holds its secrets, encrypted."""

    flow_id: str
    user_id: str
    capability_id: str
    account_hint: str | None
    flow_type: str
    poll_interval_s: int | None
    sealed: bytes = field(repr=False)
    failures: int
    created_at_ms: int
    expires_at_ms: int


class StateKey(NamedTuple):
    """One entry that a provider remembers; an empty `chat_id` is what belongs to no chat."""

    user_id: str
    capability_id: str
    chat_id: str
    name: str


_ACCOUNTS = RecordTable(service_accounts, AccountRow)
_FLOWS = RecordTable(service_flows, FlowRow)


class ServiceRows(RowRepository):
    """Who has linked what, and what is being linked."""

    # ---- accounts

    async def accounts(self, user_id: str, capability_id: str) -> tuple[AccountRow, ...]:
        """Return the accounts of one user with one capability, by name."""
        own = _ACCOUNTS.select(_A.user_id == user_id, _A.capability_id == capability_id)
        return tuple(await self._all(_ACCOUNTS, own.order_by(_A.account_ref)))

    async def all_accounts(
        self,
        *,
        user_id: str | None,
        limit: int,
        offset: int,
        capabilities: Collection[str] | None = None,
    ) -> tuple[AccountRow, ...]:
        """Return a page of accounts, of one user or of all; of some capabilities if they are named.

        Without a user it is for the operator.
        """
        query = _ACCOUNTS.select().order_by(_A.user_id, _A.capability_id, _A.account_ref)
        if capabilities is not None:
            query = query.where(_A.capability_id.in_(sorted(capabilities)))
        if user_id is not None:
            query = query.where(_A.user_id == user_id)
        return tuple(await self._all(_ACCOUNTS, query.limit(limit).offset(offset)))

    async def link(self, account: AccountRow, flow_id: str) -> None:
        """Link an account and end its flow, both or neither."""

        def work(conn: Connection) -> None:
            _ACCOUNTS.put(conn, account)
            conn.execute(delete(service_flows).where(_F.flow_id == flow_id))

        await self._database.write(work)

    async def end_shares_of_other(
        self, user_id: str, capability_id: str, account_ref: str, email: str | None
    ) -> Sequence[AccountShare]:
        """Remove the shares of an account unless it is known to have this address; return them."""
        key = (user_id, capability_id, account_ref)

        def work(conn: Connection) -> Sequence[AccountShare]:
            before = _ACCOUNTS.first(conn, _account(*key))
            same = before is not None and email is not None and before.account_email == email
            return [] if same else end_shares(conn, *key)

        return await self._database.write(work)

    async def set_status(
        self, account: AccountRow, status: str, reason: str | None, at_ms: int
    ) -> bool:
        """Note how an account is doing; False when it is not linked any more."""
        own = equal(
            service_accounts,
            {
                "user_id": account.user_id,
                "capability_id": account.capability_id,
                "account_ref": account.account_ref,
            },
        )
        values = {"status": status, "status_reason": reason, "status_at_ms": at_ms}
        return await self._execute(update(service_accounts).where(own).values(**values)) > 0

    async def count_status(self) -> dict[str, int]:
        """Return how many accounts have each status."""
        query = select(_A.status, func.count()).group_by(_A.status)

        def work(conn: Connection) -> dict[str, int]:
            return {row[0]: row[1] for row in conn.execute(query)}

        return await self._database.read(work)

    async def unlink(
        self, user_id: str, capability_id: str, account_ref: str
    ) -> Sequence[AccountShare] | None:
        """Remove an account with its shares; return these, or None when it was not there."""
        key = (user_id, capability_id, account_ref)

        def work(conn: Connection) -> Sequence[AccountShare] | None:
            ended = end_shares(conn, *key)
            gone = conn.execute(delete(service_accounts).where(_account(*key))).rowcount
            return ended if gone else None

        return await self._database.write(work)

    # ---- flows

    async def flow(self, flow_id: str) -> FlowRow | None:
        """Return one flow, expired or not."""
        return await self._first(_FLOWS, _F.flow_id == flow_id)

    async def pending_flows(self, user_id: str) -> tuple[FlowRow, ...]:
        """Return the unexpired flows of one user, the latest expiry first."""
        own = _FLOWS.select(_F.user_id == user_id, _F.expires_at_ms > self._clock.now_ms())
        return tuple(await self._all(_FLOWS, own.order_by(_F.expires_at_ms.desc(), _F.flow_id)))

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
        own = _F.flow_id == flow_id

        def work(conn: Connection) -> None:
            conn.execute(update(service_flows).where(own).values(failures=_F.failures + 1))
            conn.execute(delete(service_flows).where(own, _F.failures >= limit))

        await self._database.write(work)

    async def end_flow(self, flow_id: str) -> None:
        """Forget a flow."""
        await self._execute(delete(service_flows).where(_F.flow_id == flow_id))

    async def reseal_flow(self, flow_id: str, sealed: bytes) -> None:
        """Replace the secrets of a flow."""
        own = update(service_flows).where(_F.flow_id == flow_id)
        await self._execute(own.values(sealed=sealed))

    async def all_flows(self) -> tuple[FlowRow, ...]:
        """Return every flow, for a change of the key."""
        return tuple(await self._all(_FLOWS, _FLOWS.select()))

    # ---- what providers remember

    async def state(self, key: StateKey) -> JsonObject | None:
        """Return one entry."""
        text = await self._scalar(select(service_state.c.value).where(_is(key)))
        return None if text is None else json.loads(text)

    async def put_state(self, key: StateKey, value: JsonObject, *, limit: int) -> bool:
        """Write one entry; False, and nothing written, when the scope already has so many."""
        values = {"value": json.dumps(value), "updated_at_ms": self._clock.now_ms()}
        scope = equal(service_state, {"user_id": key.user_id, "capability_id": key.capability_id})

        def work(conn: Connection) -> bool:
            if conn.execute(update(service_state).where(_is(key)).values(values)).rowcount:
                return True
            count = conn.execute(select(func.count()).select_from(service_state).where(scope))
            if (count.scalar() or 0) >= limit:
                return False
            conn.execute(insert(service_state).values(**key._asdict(), **values))
            return True

        return await self._database.write(work)

    async def delete_state(self, key: StateKey) -> bool:
        """Remove one entry; returns whether it was there."""
        return await self._execute(delete(service_state).where(_is(key))) > 0


def _account(user_id: str, capability_id: str, account_ref: str) -> ColumnElement[bool]:
    key = {"user_id": user_id, "capability_id": capability_id, "account_ref": account_ref}
    return equal(service_accounts, key)


def _is(key: StateKey) -> ColumnElement[bool]:
    return equal(service_state, key._asdict())
