"""`AccountShareRows`: which accounts are shared, with whom and for what.

A share ends with its account: `ServiceRows` removes both in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, or_, select, update

from kaged.base import KagedError
from kaged.kernel.account_shares import AccountShare
from kaged.store.record_table import RecordTable, equal
from kaged.store.rows import RowRepository
from kaged.store.schema import account_shares, service_accounts, service_state

_C = account_shares.c
_SHARES = RecordTable(account_shares, AccountShare, json_columns=("operations",))

SCOPE_PREFIX: Final = "~"
"""Begins the name under which a provider's state of a share is kept: no person is called so."""


def state_scope(share_id: str) -> str:
    """Return under whose name a provider remembers something about the use of a share."""
    return f"{SCOPE_PREFIX}{share_id}"


def end_shares(
    conn: Connection, owner: str, capability_id: str, account_ref: str
) -> list[AccountShare]:
    """Remove the shares of an account, within the transaction that removes it; return them."""
    named = {"owner": owner, "capability_id": capability_id, "account_ref": account_ref}
    found = _SHARES.all(conn, _SHARES.select(equal(account_shares, named)))
    _remove(conn, [one.share_id for one in found])
    return found


def _remove(conn: Connection, ids: Collection[str]) -> None:
    if not ids:
        return
    conn.execute(delete(account_shares).where(_C.share_id.in_(ids)))
    scopes = [state_scope(one) for one in ids]
    conn.execute(delete(service_state).where(service_state.c.user_id.in_(scopes)))


class AccountShareRows(RowRepository):
    """The shares of accounts on this daemon."""

    async def add(self, share: AccountShare, *, limit: int) -> None:
        """Store a share of a linked account; those of its owner that have expired make room.

        Raises:
            KagedError: `account_unknown`; the account is not linked any more.
            KagedError: `account_share_exists`; it is shared with them already.
            KagedError: `too_many_account_shares`; its owner has so many.
        """
        account = {
            "user_id": share.owner,
            "capability_id": share.capability_id,
            "account_ref": share.account_ref,
        }
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> None:
            linked = select(service_accounts.c.user_id).where(equal(service_accounts, account))
            if conn.execute(linked).first() is None:
                raise KagedError(
                    "No such account is linked.", code="account_unknown", fix="List the accounts."
                )
            own = _C.owner == share.owner
            ended = _SHARES.all(conn, _SHARES.select(own, _C.expires_at_ms <= now_ms))
            _remove(conn, [one.share_id for one in ended])
            given = _SHARES.all(conn, _SHARES.select(own))
            for one in given:
                if _combination(one) == _combination(share):
                    raise KagedError(
                        "This account is shared with them already.",
                        code="account_share_exists",
                        fix=f"End {one.share_id} first.",
                    )
            if len(given) >= limit:
                raise KagedError(
                    f"There are {limit} shares of this person's accounts.",
                    code="too_many_account_shares",
                    fix="End one that is not needed.",
                )
            _SHARES.insert(conn, share)

        await self._database.write(work)

    async def get(self, share_id: str) -> AccountShare | None:
        """Return one share, expired or not."""
        return await self._first(_SHARES, _C.share_id == share_id)

    async def remove(self, share_id: str) -> bool:
        """Remove a share and what was remembered of it; returns whether it was there."""

        def work(conn: Connection) -> bool:
            there = _SHARES.count(conn, _C.share_id == share_id) > 0
            _remove(conn, [share_id])
            return there

        return await self._database.write(work)

    async def used(self, share_id: str, by: str) -> bool:
        """Note a use; False when the share is gone."""
        noted = update(account_shares).where(_C.share_id == share_id)
        values = {"last_used_at_ms": self._clock.now_ms(), "last_used_by": by}
        return await self._execute(noted.values(**values)) > 0

    async def offered_to(
        self, person: str, teams: Collection[str], capability_id: str, limit: int
    ) -> Sequence[AccountShare]:
        """Return the shares of a capability that name somebody, or one of their teams."""
        query = _SHARES.select(_C.capability_id == capability_id, _names(person, teams))
        return await self._all(_SHARES, query.order_by(_C.owner, _C.share_id).limit(limit))

    async def page(
        self,
        person: str | None,
        teams: Collection[str],
        capabilities: Collection[str] | None,
        limit: int,
        offset: int,
    ) -> Sequence[AccountShare]:
        """Return a page of the shares that somebody gave or was given; of all without a person."""
        query = _SHARES.select().order_by(_C.owner, _C.capability_id, _C.share_id)
        if person is not None:
            query = query.where(or_(_C.owner == person, _names(person, teams)))
        if capabilities is not None:
            query = query.where(_C.capability_id.in_(sorted(capabilities)))
        return await self._all(_SHARES, query.limit(limit).offset(offset))


def _combination(share: AccountShare) -> tuple[str | None, ...]:
    return share.capability_id, share.account_ref, share.person, share.team


def _names(person: str, teams: Collection[str]) -> ColumnElement[bool]:
    return or_(_C.person == person, _C.team.in_(sorted(teams)))
