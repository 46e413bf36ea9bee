"""`AccountSharing`: accounts that their owners let others use, for named operations.

Off unless the operator allows it. Whoever uses a shared account names the share; it is never
chosen for them. The provider sees the owner of the account, and nobody sees its credential.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Final

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import Clock, JsonObject, KagedError, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.account_shares import (
    SHARE_DENIED,
    SHARE_PREFIX,
    AccountShare,
    decide_share,
    is_shared_with,
)
from kaged.kernel.decision import Decision
from kaged.kernel.describe import describe_denial
from kaged.kernel.identity import Actor, PersonGrant
from kaged.services.accounts import Accounts
from kaged.services.caller import ServiceCaller
from kaged.services.contract import CapabilityCallContext
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityError, auth_required
from kaged.services.gates import decide_person
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.store.account_share_rows import AccountShareRows
from kaged.store.service_rows import AccountRow

SHARES_PER_OWNER: Final = 100
SHARES_SHOWN: Final = 50
_UNKNOWN: Final = "no such account is linked, or shared with this person"


@dataclass(frozen=True, slots=True)
class SharedAccount:
    """An account of somebody else's, and the share by which it may be used."""

    share: AccountShare
    account: AccountRow

    def context(self, caller: ServiceCaller) -> CapabilityCallContext:
        """Return what the provider sees: the owner, and in what kind of chat it is asked."""
        return CapabilityCallContext(self.share.owner, chat_type=caller.context.chat_type)


@dataclass(frozen=True, slots=True)
class ShareDraft:
    """A share that an owner asks for: with a person or with a team."""

    capability_id: str
    account_ref: str
    person: str | None
    team: str | None
    operations: tuple[str, ...]
    expires_in_s: int | None


class AccountSharing:
    """Makes, shows and ends shares, and lets calls use them."""

    def __init__(
        self,
        rows: AccountShareRows,
        accounts: Accounts,
        registry: CapabilityRegistry,
        grant_of: Callable[[str], PersonGrant],
        audit: AuditLog,
        clock: Clock,
        *,
        allowed: bool,
    ) -> None:
        self._rows = rows
        self._accounts = accounts
        self._registry = registry
        self._grant_of = grant_of
        self._audit = audit
        self._clock = clock
        self._allowed = allowed

    # -- for owners ----------------------------------------------------------------------------

    async def share(self, draft: ShareDraft, who: Actor) -> AccountShare:
        """Share an account of one's own.

        Raises:
            KagedError: `account_sharing_off`, `account_unknown`, `account_share_invalid`,
                `account_share_exists`, `too_many_account_shares`.
        """
        self._audit.require_writable()
        if not self._allowed:
            raise KagedError(
                "The operator has not allowed that accounts are shared.",
                code="account_sharing_off",
                fix="The operator sets share_accounts = true in [capabilities].",
            )
        owner = who.person_id or ""
        if await self._accounts.get(owner, draft.capability_id, draft.account_ref) is None:
            raise KagedError(
                "No such account is linked.", code="account_unknown", fix="List the accounts."
            )
        self._require_sensible(draft, owner)
        now_ms = self._clock.now_ms()
        share = AccountShare(
            share_id=f"{SHARE_PREFIX}{secrets.token_hex(12)}",
            owner=owner,
            capability_id=draft.capability_id,
            account_ref=draft.account_ref,
            person=draft.person,
            team=draft.team,
            operations=sorted({*draft.operations}),
            created_at_ms=now_ms,
            expires_at_ms=None
            if draft.expires_in_s is None
            else now_ms + draft.expires_in_s * 1000,
        )
        await self._rows.add(share, limit=SHARES_PER_OWNER)
        try:
            await self._audit.record(
                AuditEvent(
                    "capability_account_shared",
                    {
                        **_named(share),
                        "operations": [*share.operations],
                        "expires_at": _time(share.expires_at_ms),
                    },
                    request_id=who.request_id,
                    caller=who.label,
                )
            )
        except BaseException:  # what is not on record is not in force
            await self._rows.remove(share.share_id)
            raise
        return share

    def _require_sensible(self, draft: ShareDraft, owner: str) -> None:
        capability = self._registry.get(draft.capability_id)
        offered = {} if capability is None else capability.operations
        unknown = sorted({*draft.operations} - {*offered})
        if unknown or not draft.operations:
            raise KagedError(
                f"{draft.capability_id} has no operation {', '.join(unknown) or 'without a name'}.",
                code="account_share_invalid",
                fix=f"Name some of: {', '.join(sorted(offered)) or 'none is offered now'}.",
            )
        if (draft.person is None) == (draft.team is None):
            raise KagedError(
                "A share is with one person or with one team.",
                code="account_share_invalid",
                fix="Name either of them.",
            )
        if draft.person == owner:
            raise KagedError(
                "This account is that person's own.",
                code="account_share_invalid",
                fix="Name somebody else.",
            )

    async def end(self, share_id: str, who: Actor) -> AccountShare:
        """End a share; people only those that they gave. Raises `account_share_unknown`."""
        self._audit.require_writable()
        found = await self._rows.get(share_id)
        own = found is not None and (not who.is_person or who.person_id == found.owner)
        if found is None or not own or not await self._rows.remove(share_id):
            raise KagedError(
                "There is no such share.", code="account_share_unknown", fix="List the shares."
            )
        await self._audit.record(unshared_event(found, "ended", who))
        return found

    async def list(
        self, who: Actor, capabilities: Collection[str] | None, limit: int, offset: int
    ) -> Sequence[JsonObject]:
        """Return a page of the shares that somebody gave or was given; the operator sees all."""
        person = (who.person_id or "") if who.is_person else None
        found = await self._rows.page(person, who.teams, capabilities, limit, offset)
        return [self.described(one, who) for one in found]

    def described(self, share: AccountShare, who: Actor) -> JsonObject:
        """Describe a share; by whom it was used is for its owner and the operator."""
        own = not who.is_person or who.person_id == share.owner
        expired = share.expires_at_ms is not None and share.expires_at_ms <= self._clock.now_ms()
        in_force = self._allowed and not expired
        return {
            "share_id": share.share_id,
            "owner": share.owner,
            "capability": share.capability_id,
            "account_ref": share.account_ref,
            "person": share.person,
            "team": share.team,
            "operations": [*share.operations],
            "state": "active" if in_force else "expired" if expired else "off",
            "created_at": iso_utc(share.created_at_ms),
            "expires_at": _time(share.expires_at_ms),
            "last_used_at": _time(share.last_used_at_ms) if own else None,
            "last_used_by": share.last_used_by if own else None,
        }

    # -- for calls -----------------------------------------------------------------------------

    async def offered_to(
        self, caller: ServiceCaller, capability: RegisteredCapability
    ) -> Sequence[SharedAccount]:
        """Return the accounts of a capability that a caller may use by somebody's share."""
        if not self._allowed:
            return ()
        teams = self._teams(caller)
        shares = await self._rows.offered_to(caller.user_id, teams, capability.text, SHARES_SHOWN)
        found: list[SharedAccount] = []
        for share in shares:
            if not self._decide(share, caller, capability, None).allowed:
                continue
            account = await self._account(share)
            if account is not None:
                found.append(SharedAccount(share, account))
        return found

    async def choose(
        self, caller: ServiceCaller, capability: RegisteredCapability, operation: str, wanted: str
    ) -> SharedAccount:
        """Return the shared account that a call names.

        Raises:
            CapabilityError: `capability_auth_required`; there is none for this caller.
            CapabilityError: `capability_access_denied`; it is shared, and not for this.
        """
        share = await self._rows.get(wanted) if self._allowed else None
        # To whomever it is not with, a share is unknown.
        if share is None or not is_shared_with(share, caller.user_id, self._teams(caller)):
            raise auth_required(_UNKNOWN)
        _require(self._decide(share, caller, capability, operation))
        account = await self._account(share)
        if account is None:
            raise auth_required(_UNKNOWN)
        return SharedAccount(share, account)

    async def use(
        self,
        shared: SharedAccount,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: str,
        request_id: str,
    ) -> None:
        """Make sure that a share still stands, and put its use on record, before it is used.

        Raises:
            CapabilityError: it has ended since it was chosen, or cannot be recorded.
        """
        share = shared.share
        await self.choose(caller, capability, operation, share.share_id)
        try:
            await self._audit.record(
                AuditEvent(
                    "capability_shared_use",
                    {**_named(share), "used_by": caller.user_id, "operation": operation},
                    request_id=request_id,
                    project_id=caller.token.routing.project_id,
                )
            )
        except AuditUnavailable:
            raise CapabilityBackendUnavailable("the audit log cannot be written now") from None
        if not await self._rows.used(share.share_id, caller.user_id):
            raise auth_required(_UNKNOWN)

    def _decide(
        self,
        share: AccountShare,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: str | None,
    ) -> Decision:
        decision = decide_share(
            share,
            caller.user_id,
            self._teams(caller),
            capability.text,
            operation,
            self._clock.now_ms(),
        )
        if not decision.allowed:
            return decision
        # Nobody gives away more than the operator lets them do themselves.
        return decide_person(self._grant_of(share.owner).operations, capability, operation)

    def _teams(self, caller: ServiceCaller) -> frozenset[str]:
        facts = None if caller.actor is None else caller.actor.facts
        said = frozenset[str]() if facts is None else facts.teams
        return said | self._grant_of(caller.user_id).teams

    async def _account(self, share: AccountShare) -> AccountRow | None:
        return await self._accounts.get(share.owner, share.capability_id, share.account_ref)


def shared_json(shared: SharedAccount) -> JsonObject:
    """Describe a shared account to somebody who may use it."""
    share = shared.share
    return {
        "account_ref": share.share_id,
        "shared_by": share.owner,
        "account_name": shared.account.account_name,
        "operations": [*share.operations],
        "expires_at": _time(share.expires_at_ms),
        "status": shared.account.status,
    }


def unshared_event(share: AccountShare, why: str, who: Actor | None = None) -> AuditEvent:
    """Return what is put on record when a share ends; `who` is None for the daemon itself."""
    if who is None:
        return AuditEvent("capability_account_unshared", {**_named(share), "reason": why})
    return AuditEvent(
        "capability_account_unshared",
        {**_named(share), "reason": why},
        request_id=who.request_id,
        caller=who.label,
    )


def _named(share: AccountShare) -> JsonObject:
    return {
        "user_id": share.owner,
        "capability.id": share.capability_id,
        "account_ref": share.account_ref,
        "share_id": share.share_id,
        "person": share.person,
        "team": share.team,
    }


def _require(decision: Decision) -> None:
    if not decision.allowed:
        raise CapabilityError(describe_denial(decision).words, code=SHARE_DENIED)


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso_utc(at_ms)
