"""`Accounts`: which accounts a user has linked with a capability, and which one a call means."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Final

from kaged.base import Clock, JsonObject, iso_utc
from kaged.kernel.account_shares import AccountShare
from kaged.services.errors import CapabilityError, auth_required
from kaged.store.service_rows import AccountRow, ServiceRows

CACHE_LIMIT: Final = 10_000
SHOWN_REFS: Final = 20
REASON_CHARS: Final = 300


OnUnshared = Callable[[Sequence[AccountShare], str], None]
"""Is told which shares have ended together with their account, and why."""


class ConnectionStatus(StrEnum):
    """How the connection to a linked account is."""

    ACTIVE = "active"
    EXPIRED = "expired"
    """Its access has ended and cannot be renewed."""
    REVOKED = "revoked"
    """The service no longer accepts it: the password was changed, the access withdrawn."""
    UNREACHABLE = "unreachable"
    """The service, or the way to it, does not work."""
    LOCKED = "locked"
    """The key of the vault is gone. Never stored: the key may come back."""


class Accounts:
    """Linked accounts, always of one user and one capability.

    Kept in memory once read: this process is the only one that writes them.
    """

    def __init__(
        self, rows: ServiceRows, clock: Clock, on_unshared: OnUnshared | None = None
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._on_unshared: OnUnshared = on_unshared or (lambda _shares, _why: None)
        self._cache: OrderedDict[tuple[str, str], tuple[AccountRow, ...]] = OrderedDict()

    async def of(self, user_id: str, capability_id: str) -> tuple[AccountRow, ...]:
        """Return a user's accounts, by name."""
        key = (user_id, capability_id)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = await self._rows.accounts(user_id, capability_id)
            while len(self._cache) > CACHE_LIMIT:
                self._cache.popitem(last=False)
        return found

    async def choose(
        self, user_id: str, capability_id: str, wanted: str | None, *, needed: bool
    ) -> AccountRow | None:
        """Return the account that a call means; None for one that needs none.

        Raises:
            CapabilityError: `capability_auth_required`; none is linked, or not the wanted one.
            CapabilityError: `capability_account_ambiguous`; several are, and none was named.
        """
        if not needed and wanted is None:
            return None
        found = await self.of(user_id, capability_id)
        if wanted is not None:
            for account in found:
                if account.account_ref == wanted:
                    return account
            raise auth_required(f"no such account is linked with {capability_id}")
        if len(found) == 1:
            return found[0]
        if not found:
            raise auth_required(f"link an account with {capability_id} first")
        refs = [account.account_ref for account in found][:SHOWN_REFS]
        raise CapabilityError(
            f"several accounts are linked, name one: {', '.join(refs)}",
            code="capability_account_ambiguous",
            account_refs=[*refs],
        )

    async def before_link(
        self, user_id: str, capability_id: str, account_ref: str, email: str | None
    ) -> None:
        """End the shares of an account that may be another one than it was, before it is in place.

        What was shared is the account of then. Where no address shows that the new one is the
        same, nobody but its owner may use it.
        """
        ended = await self._rows.end_shares_of_other(user_id, capability_id, account_ref, email)
        self._on_unshared(ended, "linked anew")

    async def link(
        self,
        user_id: str,
        capability_id: str,
        account_ref: str,
        *,
        name: str | None,
        email: str | None,
        flow_id: str,
    ) -> AccountRow:
        """Link an account and end the flow that led to it."""
        now = self._clock.now_ms()
        account = AccountRow(user_id, capability_id, account_ref, name, email, now, now)
        await self._rows.link(account, flow_id)
        self._cache.pop((user_id, capability_id), None)
        return account

    async def unlink(self, user_id: str, capability_id: str, account_ref: str) -> bool:
        """Forget an account and its shares; returns whether it was linked."""
        self._cache.pop((user_id, capability_id), None)
        ended = await self._rows.unlink(user_id, capability_id, account_ref)
        self._cache.pop((user_id, capability_id), None)
        self._on_unshared(ended or [], "account revoked")
        return ended is not None

    async def set_status(self, account: AccountRow, status: ConnectionStatus, reason: str) -> bool:
        """Note how an account is doing; False when it is not linked any more."""
        self._cache.pop((account.user_id, account.capability_id), None)
        said = reason[:REASON_CHARS] or None
        kept = await self._rows.set_status(account, status.value, said, self._clock.now_ms())
        self._cache.pop((account.user_id, account.capability_id), None)
        return kept

    async def get(self, user_id: str, capability_id: str, account_ref: str) -> AccountRow | None:
        """Return one account as it is now."""
        found = await self.of(user_id, capability_id)
        return next((one for one in found if one.account_ref == account_ref), None)

    async def count_status(self) -> dict[str, int]:
        """Return how many accounts have each status."""
        return await self._rows.count_status()

    async def page(
        self,
        *,
        user_id: str | None,
        limit: int,
        offset: int,
        capabilities: Collection[str] | None = None,
    ) -> tuple[AccountRow, ...]:
        """Return a page of accounts, of somebody and of some capabilities where these are named."""
        return await self._rows.all_accounts(
            user_id=user_id, limit=limit, offset=offset, capabilities=capabilities
        )


def account_json(account: AccountRow, *, locked: bool) -> JsonObject:
    """Describe a linked account to its user; `locked` when its credential does not open."""
    changed = account.status_at_ms
    return {
        "account_ref": account.account_ref,
        "account_name": account.account_name,
        "account_email": account.account_email,
        "created_at": iso_utc(account.created_at_ms),
        "status": (ConnectionStatus.LOCKED if locked else ConnectionStatus(account.status)).value,
        "status_reason": None if locked else account.status_reason,
        "status_since": None if locked or changed is None else iso_utc(changed),
    }
