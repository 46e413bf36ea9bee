"""`build_services`: people's accounts, put together: vault, providers, gates and who may ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import structlog

from kaged.app.settings import Settings
from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, JsonObject, KagedError
from kaged.cage import Spawner
from kaged.config.providers import (
    CapabilitiesSection,
    Provider,
    ProviderType,
    RateName,
    VaultKeyPlace,
    plan_providers,
)
from kaged.kernel.policy import CageLimits
from kaged.serve.http.hub import EventHub
from kaged.serve.http.services import Asker, CheckRow, CheckStatus
from kaged.services.accounts import Accounts, account_json
from kaged.services.admission import Admission
from kaged.services.authflow import AuthFlows
from kaged.services.caller import ContextTokens
from kaged.services.confirmation import Consents, plan_json
from kaged.services.contract import CapabilityProvider
from kaged.services.errors import CapabilityError
from kaged.services.idempotency import MutatingCalls
from kaged.services.limits import DEFAULT_RATES, NO_LIMITS, RateLimits, RateRules
from kaged.services.linking import AccountLinking
from kaged.services.manager import CapabilityManager, ManagerParts
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.registry import CapabilityRegistry, ProviderEntry, ProviderRules
from kaged.services.rpc import CapabilityRpc
from kaged.services.skill_files import read_skills
from kaged.services.skills import SkillBook, SkillSettings
from kaged.services.trail import Trail
from kaged.services.vault import Vault
from kaged.services.vault_key import KeyPlace, open_ring, ring_stores
from kaged.store import Store
from kaged.store.service_call_rows import PlanRow, ServiceCallRows
from kaged.store.service_rows import ServiceRows
from kaged.store.vault_rows import VaultRows
from kaged.wire.token_keys import SECRET_VARIABLE, TokenKey, parse_key

TOPIC: Final = "services"
GOG_PREFIXES: Final = ("GOGCLI_",)
_FINGERPRINT_LABEL: Final = b"kaged audit fingerprints of capability inputs v1"

FirstParty = Callable[[Provider], CapabilityProvider]

_log = structlog.get_logger("kaged.services")


class AccountUnknown(KagedError):
    """No such account is linked."""

    code: ClassVar[str] = "account_unknown"


class ApprovalUnknown(KagedError):
    """Nothing of this id waits for consent."""

    code: ClassVar[str] = "approval_unknown"


class OperatorOnly(KagedError):
    """The caller came through a front end and is not the operator."""

    code: ClassVar[str] = "operator_only"


class ServiceProviderUnknown(KagedError):
    """There is no such provider of account capabilities."""

    code: ClassVar[str] = "service_provider_unknown"


@dataclass(frozen=True, slots=True)
class _Memory:
    """What of the accounts outlives the process."""

    rows: ServiceRows
    calls: ServiceCallRows
    vault: Vault


class Services:
    """The service capabilities of this daemon, and the operator's desk for them."""

    def __init__(
        self,
        manager: CapabilityManager,
        tokens: ContextTokens,
        accounts: Accounts,
        consents: Consents,
        flows: AuthFlows,
        vault: Vault,
        audit: AuditLog,
    ) -> None:
        self.manager = manager
        self.rpc = CapabilityRpc(manager)
        self.tokens = tokens
        self._accounts = accounts
        self._consents = consents
        self._flows = flows
        self._vault = vault
        self._audit = audit
        self._problems: list[JsonObject] = []
        self._pending: list[_Planned] = []
        self._registered = asyncio.Event()

    # ---- life

    def plan(self, planned: Sequence[_Planned], problems: Sequence[JsonObject]) -> None:
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
        self._registered.set()
        await self.manager.keep_trying()

    def checks(self) -> list[CheckRow]:
        """Say for doctor how providers are doing, and which bridges run without a cage."""
        rows = [_provider_row(entry) for entry in self.manager.registry.providers()]
        rows += [
            CheckRow(
                f"services.{problem['provider']}",
                CheckStatus.FAIL,
                "A provider of account capabilities.",
                str(problem["problem"]),
                "Correct its section in config.toml.",
            )
            for problem in self._problems
        ]
        return rows

    # ---- the operator's desk

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

    async def refresh(self, namespace: str, who: Asker) -> JsonObject:
        """Ask a provider again what it offers; a bad answer changes nothing."""
        _require_operator(who)
        if self._pending:  # the daemon has only just started
            await self._registered.wait()
        if self.manager.registry.provider(namespace) is None:
            raise ServiceProviderUnknown("There is no such provider.", fix="List the providers.")
        await self.manager.registry.refresh(namespace)
        return next(one for one in self.providers() if one["namespace"] == namespace)

    async def accounts(
        self, user_id: str | None, limit: int, offset: int, who: Asker
    ) -> Sequence[JsonObject]:
        """Give a page of linked accounts: who and what, never a credential.

        Somebody who comes through a front end sees their own.
        """
        user_id = _person(who) or user_id
        found = await self._accounts.page(user_id=user_id, limit=limit, offset=offset)
        return [
            {"user_id": one.user_id, "capability": one.capability_id, **account_json(one)}
            for one in found
        ]

    async def revoke(
        self, user_id: str, capability: str, account_ref: str, who: Asker
    ) -> JsonObject:
        """Take somebody's account back; through a front end only one's own."""
        self._audit.require_writable()
        told = None
        if _person(who) in {None, user_id}:
            told = await self.manager.linking.revoke_any(user_id, capability, account_ref)
        if told is None:
            raise AccountUnknown("No such account is linked.", fix="List the accounts.")
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
                caller=who.caller.label,
            )
        )
        return {"ok": True, "account_ref": account_ref, "provider_revoked": told}

    async def approvals(self, who: Asker) -> Sequence[JsonObject]:
        """Give what waits for consent, and what was decided lately."""
        person = _person(who)
        listed = await self._consents.list()
        return [plan_json(one) for one in listed if person in {None, one.user_id}]

    async def decide(self, plan_id: str, *, allowed: bool, who: Asker) -> JsonObject:
        """Consent to an operation, or refuse it; through a front end only on one's own account."""
        self._audit.require_writable()
        plan = None
        if any(one["plan_id"] == plan_id for one in await self.approvals(who)):
            plan = await self._consents.decide(plan_id, allowed=allowed, by=who.caller.label)
        if plan is None:
            raise ApprovalUnknown(
                "Nothing of this id waits for consent.", fix="List the approvals."
            )
        await self._audit.record(
            AuditEvent(
                "capability_consent_decided",
                {
                    "plan_id": plan.plan_id,
                    "user_id": plan.user_id,
                    "capability.id": plan.capability_id,
                    "operation": plan.operation,
                    "outcome": plan.status.value,
                },
                request_id=who.request_id,
                caller=who.caller.label,
            )
        )
        return plan_json(plan)

    async def rotate_vault(self, who: Asker) -> JsonObject:
        """Encrypt every credential and pending flow anew, with a fresh key."""
        _require_operator(who)
        self._audit.require_writable()
        records = await self._vault.rotate()
        flows = await self._flows.reseal()
        await self._vault.drop_old_keys()
        await self._audit.record(
            AuditEvent(
                "capability_vault_rotated",
                {"records": records, "flows": flows},
                request_id=who.request_id,
                caller=who.caller.label,
            )
        )
        return {"ok": True, "records": records, "flows": flows}


def _person(who: Asker) -> str | None:
    """Give whom a front end speaks for; None for the operator's own doors."""
    return None if who.caller.front_end is None else who.caller.operator_id


def _require_operator(who: Asker) -> None:
    if _person(who) is not None:
        raise OperatorOnly("Only the operator may do this.")


@dataclass(frozen=True, slots=True)
class _Planned:
    """A provider on its way into the registry."""

    name: str
    provider: CapabilityProvider
    rules: ProviderRules
    bridge: bool
    caged: bool | None
    command: tuple[str, ...]

    async def register(self, registry: CapabilityRegistry) -> None:
        await registry.register(
            self.provider,
            name=self.name,
            rules=self.rules,
            kind="bridge" if self.bridge else "first-party",
            caged=self.caged,
            command=self.command,
            keep_if_down=True,
        )


async def build_services(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    store: Store,
    audit: AuditLog,
    hub: EventHub,
    clock: Clock,
    closing: AsyncExitStack,
    first_party: FirstParty | None = None,
) -> Services:
    """Build everything about people's accounts; providers are started by `Services.run`.

    Raises:
        KagedError: the key of the vault or the signing secret cannot be used.
    """
    config = settings.daemon.value
    section = config.capabilities
    key = _token_key(environ, audit)
    memory = await _open_memory(settings, section, environ, store, clock)

    def on_plan(plan: PlanRow) -> None:
        hub.publish(TOPIC, "services.approval_wanted", {"plan_id": plan.plan_id})

    registry = CapabilityRegistry(clock, lambda name, data: audit.post(AuditEvent(name, data)))
    trail = Trail(audit, clock, key.sign(_FINGERPRINT_LABEL))
    tokens = ContextTokens(key, clock)
    skills = SkillBook(
        {
            name: SkillSettings(one.enabled, one.allow_chat_ids)
            for name, one in config.skills.good.items()
        },
        await asyncio.to_thread(read_skills, settings.places.config_dir / "skills"),
    )
    accounts = Accounts(memory.rows, clock)
    limits = RateLimits(clock)
    flows = AuthFlows(
        memory.rows, accounts, memory.vault, limits, clock, ttl_s=section.flow_ttl_seconds
    )
    calls = MutatingCalls(memory.calls, clock)
    consents = Consents(memory.calls, clock, on_plan)
    admission = Admission(tokens, registry, skills, trail, require_skill=section.require_skill)
    linking = AccountLinking(admission, registry, accounts, flows)
    manager = CapabilityManager(
        ManagerParts(
            admission,
            registry,
            linking,
            accounts,
            memory.vault,
            calls,
            consents,
            limits,
            trail,
            memory.rows,
        ),
        strict_output=section.strict_output,
    )
    closing.push_async_callback(manager.close)
    lost = await calls.settle()
    if lost:
        _log.warning("services.outcomes_unknown", calls=lost)
    services = Services(manager, tokens, accounts, consents, flows, memory.vault, audit)
    everybody = asyncio.Semaphore(section.max_bridges)

    def bridge(one: Provider) -> CapabilityProvider:
        return BridgeProvider(
            _spec(one),
            key,
            spawner=spawner,
            everybody=everybody,
            clock=clock,
            environ=environ,
            directory=settings.places.data_dir / "bridges" / one.name,
        )

    plan = plan_providers(config.skills, section, settings.daemon.provenance)
    planned: list[_Planned] = []
    problems: list[JsonObject] = [
        {"provider": one.key_path, "problem": one.message} for one in plan.problems
    ]
    for one in plan.providers:
        limits.set_rules(one.namespace, _rates(one))
        bridged = one.section.type is ProviderType.BRIDGE
        try:
            if not bridged and first_party is None:
                raise _no_first_party(one)
            made = bridge(one) if bridged or first_party is None else first_party(one)
        except KagedError as error:
            _log.error("provider.refused", provider=one.name, reason=error.message)
            problems.append({"provider": one.name, "problem": error.message})
            continue
        caged = one.cage is not None if bridged else None
        planned.append(_Planned(one.name, made, _rules(one), bridged, caged, one.command))
    services.plan(planned, problems)
    return services


async def _open_memory(
    settings: Settings,
    section: CapabilitiesSection,
    environ: Mapping[str, str],
    store: Store,
    clock: Clock,
) -> _Memory:
    vault_rows = VaultRows(store, clock)
    exists = not await vault_rows.is_empty()
    place = _KEY_PLACES[section.vault_key]
    stores = ring_stores(place, _key_file(settings), environ)
    ring, ring_store = await asyncio.to_thread(lambda: open_ring(stores, vault_exists=exists))
    vault = Vault(vault_rows, ring, ring_store, clock)
    return _Memory(ServiceRows(store, clock), ServiceCallRows(store, clock), vault)


_KEY_PLACES: Final = {
    VaultKeyPlace.AUTO: KeyPlace.AUTO,
    VaultKeyPlace.SYSTEMD: KeyPlace.SYSTEMD,
    VaultKeyPlace.KEYRING: KeyPlace.KEYRING,
    VaultKeyPlace.FILE: KeyPlace.FILE,
}


def _key_file(settings: Settings) -> Path:
    return settings.places.data_dir / "vault.key"


def _token_key(environ: Mapping[str, str], audit: AuditLog) -> TokenKey:
    """Give the signing key: the operator's, or a random one that dies with this process."""
    text = environ.get(SECRET_VARIABLE, "")
    if text.strip():
        audit.redactor.learn(text.strip())
        return parse_key(text)
    _log.info("services.random_key", note=f"{SECRET_VARIABLE} is not set; tokens end with me")
    return TokenKey(secrets.token_bytes(32))


def _spec(one: Provider) -> BridgeSpec:
    section = one.section
    prefixes = section.env_prefixes
    if prefixes is None:
        prefixes = GOG_PREFIXES if one.namespace == "gog" else ()
    return BridgeSpec(
        one.name,
        one.namespace,
        one.command,
        timeout_s=one.timeout_s,
        env=tuple((name, value.reveal()) for name, value in one.env.items()),
        env_prefixes=prefixes,
        cage=None if one.cage is None else one.cage.policy(CageLimits()),
        mode=section.mode.value,
        max_concurrency=section.max_concurrency,
        max_output_bytes=section.max_output_bytes,
    )


def _rules(one: Provider) -> ProviderRules:
    section = one.section
    return ProviderRules(
        timeout_s=one.timeout_s,
        allow=section.allow,
        deny=section.deny,
        confirm=section.confirm,
        strict_output=section.strict_output,
        allow_stateless_code=section.allow_stateless_code,
    )


def _rates(one: Provider) -> RateRules:
    section = one.section
    base = DEFAULT_RATES if section.rate is RateName.DEFAULT else NO_LIMITS
    if not section.quota_per_day:
        return base
    return RateRules(base.invoke, base.mutating, base.auth_begin, section.quota_per_day)


def _no_first_party(one: Provider) -> KagedError:
    return CapabilityError(f"{one.name}: this daemon was built without providers of its own")


def _provider_row(entry: ProviderEntry) -> CheckRow:
    name, what = f"services.{entry.name}", "A provider of account capabilities."
    if not entry.available:
        return CheckRow(
            name,
            CheckStatus.FAIL,
            what,
            f"It is not available: {entry.reason}.",
            "Run its command by hand; `kaged bridge check` says what is wrong with it.",
        )
    if entry.kind == "bridge" and entry.caged is False:
        return CheckRow(
            name,
            CheckStatus.WARN,
            what,
            "It runs without a cage, with the daemon's own powers.",
            f"Give [capabilities.providers.{entry.name}] a cage.",
        )
    return CheckRow(name, CheckStatus.OK, what, "It works.")


__all__ = ["Services", "build_services"]
