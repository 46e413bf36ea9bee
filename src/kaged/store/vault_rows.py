"""`VaultRows`: encrypted credentials by (user, capability, account). Only the vault reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field
from typing import Any

from sqlalchemy import Connection, and_, delete, select

from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import service_vault

_C = service_vault.c


@dataclass(frozen=True, slots=True)
class VaultRow:
    """One encrypted credential. What is inside `sealed` only the vault can tell."""

    user_id: str
    capability_id: str
    account_ref: str
    version: int
    key_id: str
    sealed: bytes = field(repr=False)
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int | None


_VAULT = RecordTable(service_vault, VaultRow)


class VaultRows(RowRepository):
    """The credentials of everybody. Every lookup names all three parts of the key."""

    async def get(self, user_id: str, capability_id: str, account_ref: str) -> VaultRow | None:
        """Return one row."""
        return await self._first(_VAULT, _key(user_id, capability_id, account_ref))

    async def put(self, row: VaultRow) -> None:
        """Write one row in place of what was there; the time of its making stays."""
        await self._database.write(lambda conn: _VAULT.put(conn, row))

    async def delete(self, user_id: str, capability_id: str, account_ref: str) -> bool:
        """Remove one row; returns whether it was there."""
        wanted = _key(user_id, capability_id, account_ref)
        return await self._execute(delete(service_vault).where(wanted)) > 0

    async def rewrite(self, change: Callable[[VaultRow], VaultRow | None]) -> int:
        """Let `change` replace every row, all of them or none; None leaves a row as it is."""

        def work(conn: Connection) -> int:
            changed = 0
            for found in _VAULT.all(conn, _VAULT.select()):
                fresh = change(found)
                if fresh is not None:
                    _VAULT.put(conn, fresh)
                    changed += 1
            return changed

        return await self._database.write(work)

    async def samples(self, per_key: int) -> dict[str, tuple[VaultRow, ...]]:
        """Return a few rows of each key that rows are encrypted with, by the id of the key."""

        def work(conn: Connection) -> dict[str, tuple[VaultRow, ...]]:
            key_ids = conn.execute(select(_C.key_id).distinct()).scalars().all()
            return {
                one: tuple(_VAULT.all(conn, _VAULT.select(_C.key_id == one).limit(per_key)))
                for one in key_ids
            }

        return await self._database.read(work)

    async def keys_sealed_with(self, key_ids: Collection[str]) -> tuple[tuple[str, str, str], ...]:
        """Return the keys of the rows that are encrypted with one of these keys."""
        columns = select(_C.user_id, _C.capability_id, _C.account_ref)
        wanted = columns.where(_C.key_id.in_(key_ids))

        def work(conn: Connection) -> tuple[tuple[str, str, str], ...]:
            return tuple((a, b, c) for a, b, c in conn.execute(wanted))

        return await self._database.read(work)

    async def keys(self) -> tuple[tuple[str, str, str], ...]:
        """Return the keys of all rows, without what they hold."""

        def work(conn: Connection) -> tuple[tuple[str, str, str], ...]:
            columns = (_C.user_id, _C.capability_id, _C.account_ref)
            return tuple((a, b, c) for a, b, c in conn.execute(select(*columns)))

        return await self._database.read(work)


def _key(user_id: str, capability_id: str, account_ref: str) -> Any:
    return and_(
        _C.user_id == user_id, _C.capability_id == capability_id, _C.account_ref == account_ref
    )
