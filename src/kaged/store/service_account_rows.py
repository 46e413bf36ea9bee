"""`ServiceAccountRows`: programs with a token of their own, and what each may use.

Of a token nothing is kept but a digest. A name is never given twice: what belongs to an account
that is gone does not pass to another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from sqlalchemy import Connection

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import service_account_tokens

MAX_ACCOUNTS = 200
"""How many there may be, those that were revoked among them."""

_C = service_account_tokens.c


@dataclass(frozen=True, slots=True)
class ServiceAccountRecord:
    """One service account. `projects` and `operations` None allow every one."""

    id: str
    name: str
    digest: str = field(repr=False)
    roles: list[str]
    teams: list[str]
    projects: list[str] | None
    operations: list[str] | None
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    revoked_at_ms: int | None = None


_ACCOUNTS = RecordTable(
    service_account_tokens,
    ServiceAccountRecord,
    json_columns=("roles", "teams", "projects", "operations"),
)


class ServiceAccountRows(RowRepository):
    """The service accounts of this daemon."""

    async def add(self, account: ServiceAccountRecord) -> None:
        """Store an account.

        Raises:
            KagedError: `service_account_exists`; the name is or was somebody's.
            KagedError: `too_many_service_accounts`; there are enough.
        """

        def work(conn: Connection) -> None:
            if _ACCOUNTS.first(conn, _C.name == account.name) is not None:
                raise KagedError(
                    f"There is or was a service account {account.name}.",
                    code="service_account_exists",
                    fix="take another name; names are not given twice",
                )
            if _ACCOUNTS.count(conn) >= MAX_ACCOUNTS:
                raise KagedError(
                    f"There are {MAX_ACCOUNTS} service accounts, those revoked among them.",
                    code="too_many_service_accounts",
                    fix="use one that there is",
                )
            _ACCOUNTS.insert(conn, account)

        await self._database.write(work)

    async def revoke(self, account_id: str) -> ServiceAccountRecord:
        """Note that an account's token counts no more; one that is revoked stays as it is."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> ServiceAccountRecord:
            found = _ACCOUNTS.first(conn, _C.id == account_id)
            assert found is not None, "accounts are never deleted"
            if found.revoked_at_ms is None:
                found = replace(found, revoked_at_ms=now_ms)
                _ACCOUNTS.put(conn, found)
            return found

        return await self._database.write(work)

    async def list(self) -> Sequence[ServiceAccountRecord]:
        """Return all of them, in the order of their names."""
        return await self._all(_ACCOUNTS, _ACCOUNTS.select().order_by(_C.name))
