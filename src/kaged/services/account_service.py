"""`AccountService`: the operator's view of people's accounts, and the providers behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.credentials.secret_keeper import SecretKeeper
from kaged.kernel.describe import UNCAGED
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.services.account_links import AccountLinks
from kaged.services.account_sharing import AccountSharing, ShareDraft
from kaged.services.accounts import Accounts, account_json
from kaged.services.asking import ask_provider
from kaged.services.authflow import AuthFlows
from kaged.services.caller import ContextTokens
from kaged.services.confirmation import Consents, plan_json
from kaged.services.connection_health import ConnectionHealth
from kaged.services.contract import CapabilityProvider, ReachingProvider
from kaged.services.errors import CapabilityError
from kaged.services.gates import usable_in
from kaged.services.manager import CapabilityManager
from kaged.services.registry import (
    CapabilityRegistry,
    ProviderEntry,
    ProviderKind,
    ProviderRules,
)
from kaged.services.rpc import CapabilityRpc
from kaged.services.secret_search import CallSecrets
from kaged.services.vault_key import PUT_BACK
from kaged.store.service_rows import AccountRow

CHECKS_AT_ONCE: Final = 4
ASKING_S: Final = 20.0
"""How long a call waits for its provider when the daemon has only just started."""

_log = get_logger("kaged.services")


class AccountService:
    """The service capabilities of this daemon, and what the operator does with them."""

    def __init__(
        self,
        manager: CapabilityManager,
        tokens: ContextTokens,
        accounts: Accounts,
        health: ConnectionHealth,
        consents: Consents,
        flows: AuthFlows,
        audit: AuditLog,
        sharing: AccountSharing,
        secrets: SecretKeeper,
    ) -> None:
        self.manager = manager
        self.secrets = secrets
        """What keeps the values of credentials at the gate, in the same vault."""
        self.rpc = CapabilityRpc(manager, self._provider_asked)
        self.tokens = tokens
        self.links = AccountLinks(
            manager.linking, flows, accounts, tokens, audit, self._provider_asked
        )
        self._accounts = accounts
        self._health = health
        self._consents = consents
        self._flows = flows
        self._audit = audit
        self._sharing = sharing
        self._problems: list[JsonObject] = []
        self._pending: list[PlannedProvider] = []
        self._registered = asyncio.Event()

    # ---- life

    def plan(self, planned: Sequence[PlannedProvider], problems: Sequence[JsonObject]) -> None:
        """Take what the operator configured; nothing is started yet."""
        self._pending = list(planned)
        self._problems = list(problems)

    async def run(self) -> None:
        """Register the providers in name order, then keep trying those that are down."""
        for one in self._pending:
            try:
                await one.register(self.manager.registry)
            except CapabilityError as error:
                # One bad provider never stops the others (SC-AMB-26).
                _log.error("provider.refused", provider=one.name, reason=error.message)
                self._problems.append({"provider": one.name, "problem": error.message})
        self._pending = []
        try:
            await self._flows.resume(self.manager.registry)
        except KagedError as error:  # pages stay shut; a new flow opens a new one
            _log.warning("flows.not_resumed", error=error.code)
        self._registered.set()
        await self.manager.keep_trying()

    async def _provider_asked(self, params: JsonObject) -> None:
        """Wait, when the daemon has only just started, until it knows what a provider offers.

        A call that comes before would be told that there is no such capability.
        """
        named = params.get("capability")
        namespace = named.partition(".")[0] if isinstance(named, str) else ""
        if not self._pending or self.manager.registry.provider(namespace) is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ASKING_S):
                await self._registered.wait()

    def usable(self) -> bool:
        """Return whether there is any provider whose capabilities could be used."""
        return bool(self._pending) or any(
            one.available for one in self.manager.registry.providers()
        )

    async def checks(self) -> list[CheckRow]:
        """Return doctor's rows: the vault, the accounts, and whether each provider works.

        The services behind providers inside the daemon are asked for something, all at once.
        """
        asked = [_provider_row(entry) for entry in self.manager.registry.providers()]
        rows = [self._vault_row(), await self._accounts_row(), *await asyncio.gather(*asked)]
        fix = "Correct its section in config.toml."
        return rows + [
            _row(said["provider"], CheckStatus.FAIL, str(said["problem"]), fix)
            for said in self._problems
        ]

    async def _accounts_row(self) -> CheckRow:
        what = "The accounts that people have linked."
        counts = await self._accounts.count_status()
        bad = ", ".join(f"{counts[one]} {one}" for one in sorted(counts) if one != "active")
        if not bad:
            cause = f"{counts.get('active', 0)} active"
            return CheckRow("services.accounts", CheckStatus.OK, what, cause)
        fix = "`kaged account list` shows them; `kaged account link` links one again."
        return CheckRow("services.accounts", CheckStatus.WARN, what, f"{bad}.", fix)

    def warnings(self) -> Sequence[str]:
        """Return what a person who asks for the daemon's state must know about accounts."""
        found = self._flows.vault_problem()
        if found is None:
            return []
        problem, locked = found
        said = f"the key of the vault cannot be used: {problem.message}"
        return [f"{said}; accounts that need it: {locked}. {problem.fix or PUT_BACK}"]

    def _vault_row(self) -> CheckRow:
        what = "The key that people's credentials are encrypted with."
        found = self._flows.vault_problem()
        if found is None:
            return CheckRow("services.vault", CheckStatus.OK, what, "It fits.")
        problem, locked = found
        cause = f"{problem.message}; accounts that need it: {locked}."
        return CheckRow("services.vault", CheckStatus.FAIL, what, cause, problem.fix or PUT_BACK)

    # ---- for the operator

    def providers(self) -> Sequence[JsonObject]:
        """Describe the providers and what they offer."""
        listed = self.manager.registry.list()
        return [
            {
                "name": entry.name,
                "namespace": entry.namespace,
                "kind": entry.kind,
                "caged": entry.caged,
                "command": list(entry.command),
                "available": entry.available,
                "reason": entry.reason or None,
                "capabilities": [
                    {
                        "id": one.text,
                        "description": one.description,
                        "sensitive": one.sensitive,
                        "operations": [*sorted(one.operations)],
                    }
                    for one in listed
                    if one.provider is entry
                ],
            }
            for entry in self.manager.registry.providers()
        ]

    async def refresh(self, namespace: str, who: Actor) -> JsonObject:
        """Ask a provider again what it offers; a bad answer changes nothing."""
        _require_operator(who)
        if self._pending:  # the daemon has only just started
            await self._registered.wait()
        if self.manager.registry.provider(namespace) is None:
            raise KagedError(
                "There is no such provider.",
                code="service_provider_unknown",
                fix="List the providers.",
            )
        await self.manager.registry.refresh(namespace)
        return next(one for one in self.providers() if one["namespace"] == namespace)

    async def accounts(
        self, user_id: str | None, limit: int, offset: int, who: Actor
    ) -> Sequence[JsonObject]:
        """Return a page of linked accounts: who and what, never a credential.

        Somebody who comes through a front end sees their own, and in a group, where others read
        along, those that may be used there.
        """
        found = await self._page(user_id, limit, offset, who)
        return [self._shown(one) for one in found]

    async def _page(
        self, user_id: str | None, limit: int, offset: int, who: Actor
    ) -> tuple[AccountRow, ...]:
        return await self._accounts.page(
            user_id=_person(who) or user_id,
            limit=limit,
            offset=offset,
            capabilities=self._usable_in_chat(who),
        )

    def _usable_in_chat(self, who: Actor) -> frozenset[str] | None:
        """Return the capabilities that the chat of a person lets them use; None: nothing is hidden.

        What no provider offers now may be kept for private chats, so it is hidden elsewhere.
        """
        if not who.is_person or who.chat_type == PRIVATE_CHAT:
            return None
        offered = self.manager.registry.list()
        return frozenset(one.text for one in offered if usable_in(who.chat_type, one))

    def _shown(self, account: AccountRow) -> JsonObject:
        locked = self._flows.is_locked(account)
        return {
            "user_id": account.user_id,
            "capability": account.capability_id,
            **account_json(account, locked=locked),
        }

    async def check(
        self, user_id: str | None, limit: int, offset: int, who: Actor
    ) -> Sequence[JsonObject]:
        """Test a page of linked accounts at their services; returns them with what came of it.

        `checked` is false where the provider has no way to test an account.
        """
        self._audit.require_writable()
        if self._pending:  # the daemon has only just started
            with suppress(TimeoutError):
                async with asyncio.timeout(ASKING_S):
                    await self._registered.wait()
        found = await self._page(user_id, limit, offset, who)
        turns = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def checked(account: AccountRow) -> JsonObject | None:
            async with turns:
                capability = self.manager.registry.get(account.capability_id)
                done = await self._health.check(account, capability)
            now = await self._accounts.get(
                account.user_id, account.capability_id, account.account_ref
            )
            return None if now is None else {**self._shown(now), "checked": done}

        shown = await asyncio.gather(*(checked(one) for one in found))
        return [one for one in shown if one is not None]

    async def revoke(
        self, user_id: str, capability: str, account_ref: str, who: Actor
    ) -> JsonObject:
        """Take somebody's account back; people only their own, where they see it."""
        self._audit.require_writable()
        told, usable = None, self._usable_in_chat(who)
        if _person(who) in {None, user_id} and (usable is None or capability in usable):
            told = await self.manager.linking.revoke_any(user_id, capability, account_ref)
        if told is None:
            raise KagedError(
                "No such account is linked.", code="account_unknown", fix="List the accounts."
            )
        await self._audit.record(
            AuditEvent(
                "capability_account_revoked",
                {
                    "user_id": user_id,
                    "capability.id": capability,
                    "account_ref": account_ref,
                    "provider_revoked": told,
                },
                request_id=who.request_id,
                caller=who.label,
            )
        )
        return {"ok": True, "account_ref": account_ref, "provider_revoked": told}

    async def share(self, draft: ShareDraft, who: Actor) -> JsonObject:
        """Let a person or a team use an account of one's own, for named operations."""
        await self._provider_asked({"capability": draft.capability_id})
        usable = self._usable_in_chat(who)
        if usable is not None and draft.capability_id not in usable:
            raise KagedError(
                "No such account is linked.", code="account_unknown", fix="List the accounts."
            )
        return self._sharing.described(await self._sharing.share(draft, who), who)

    async def shares(self, limit: int, offset: int, who: Actor) -> Sequence[JsonObject]:
        """Return a page of shares: those that somebody gave and was given; the operator sees all.

        In a group only those of what may be used there.
        """
        return await self._sharing.list(who, self._usable_in_chat(who), limit, offset)

    async def unshare(self, share_id: str, who: Actor) -> JsonObject:
        """End a share; calls that have not reached the provider yet fail."""
        return self._sharing.described(await self._sharing.end(share_id, who), who)

    async def approvals(self, who: Actor) -> Sequence[JsonObject]:
        """Return what waits for consent, and what was decided lately."""
        return [plan_json(one) for one in await self._consents.list(who)]

    async def decide(self, plan_id: str, *, allowed: bool, who: Actor) -> JsonObject:
        """Consent to an operation, or refuse it; through a front end only on one's own account."""
        self._audit.require_writable()
        plan = await self._consents.decide(plan_id, allowed=allowed, who=who)
        if plan is None:
            raise KagedError(
                "Nothing of this id waits for consent.",
                code="approval_unknown",
                fix="List the approvals.",
            )
        return plan_json(plan)

    async def rotate_vault(self, who: Actor) -> JsonObject:
        """Encrypt every credential and pending flow anew, with a fresh key."""
        _require_operator(who)
        self._audit.require_writable()
        records, flows = await self._flows.rotate_vault()
        await self._audit.record(
            AuditEvent(
                "capability_vault_rotated",
                {"records": records, "flows": flows},
                request_id=who.request_id,
                caller=who.label,
            )
        )
        return {"ok": True, "records": records, "flows": flows}


def _person(who: Actor) -> str | None:
    """Return whom a front end acts for; None for the operator's own listeners."""
    return who.person_id if who.is_person else None


def _require_operator(who: Actor) -> None:
    if _person(who) is not None:
        raise KagedError("Only the operator may do this.", code="operator_only")


@dataclass(frozen=True, slots=True)
class PlannedProvider:
    """A provider on its way into the registry."""

    name: str
    provider: CapabilityProvider
    rules: ProviderRules
    kind: ProviderKind
    caged: bool | None
    command: tuple[str, ...]

    async def register(self, registry: CapabilityRegistry) -> None:
        """Put it into the registry; what is down stays there, marked so."""
        await registry.register(
            self.provider,
            name=self.name,
            rules=self.rules,
            kind=self.kind,
            caged=self.caged,
            command=self.command,
            keep_if_down=True,
        )


async def _provider_row(entry: ProviderEntry) -> CheckRow:
    if not entry.available:
        fix = "Run its command by hand; `kaged bridge check` shows what is wrong with it."
        cause = f"It is not available: {entry.reason}."
        return _row(entry.name, CheckStatus.FAIL, cause, fix)
    if entry.kind == "bridge" and entry.caged is False:
        fix = f"Give [capabilities.providers.{entry.name}] a cage."
        return _row(entry.name, CheckStatus.WARN, f"It {UNCAGED.words}.", fix)
    provider = entry.provider
    if not isinstance(provider, ReachingProvider):
        return _row(entry.name, CheckStatus.OK, "It works.")
    try:
        await ask_provider(entry, provider.reach(), CallSecrets(entry.rules.secrets))
    except CapabilityError as error:
        fix = f"Correct [capabilities.providers.{entry.name}], or see to the service."
        return _row(
            entry.name, CheckStatus.FAIL, f"Its service does not answer: {error.message}.", fix
        )
    return _row(entry.name, CheckStatus.OK, "Its service answers.")


def _row(provider: JsonValue, status: CheckStatus, cause: str, fix: str = "") -> CheckRow:
    what = "A provider of account capabilities."
    return CheckRow(f"services.{provider}", status, what, cause, fix)
