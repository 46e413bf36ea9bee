"""`build_services`: people's accounts, put together: vault, providers, gates and who may ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from kaged.app.account_service import AccountService, PlannedProvider
from kaged.app.settings import Settings
from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, JsonObject, KagedError, Tasks
from kaged.cage import Spawner
from kaged.config.providers import (
    CapabilitiesSection,
    Provider,
    ProviderType,
    RateName,
    VaultKeyPlace,
    plan_providers,
)
from kaged.events import EventHub
from kaged.kernel.policy import CageLimits
from kaged.services.accounts import Accounts
from kaged.services.admission import CallerAdmission
from kaged.services.authflow import AuthFlows
from kaged.services.caller import ContextTokens
from kaged.services.confirmation import Consents
from kaged.services.contract import CapabilityProvider
from kaged.services.errors import CapabilityError
from kaged.services.idempotency import MutatingCalls
from kaged.services.kept_limits import KeptLimits
from kaged.services.limits import DEFAULT_RATES, NO_LIMITS, RateLimits, RateRules
from kaged.services.linking import AccountLinking
from kaged.services.manager import CapabilityManager, ManagerParts
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.registry import CapabilityRegistry, ProviderRules
from kaged.services.skill_files import read_skills
from kaged.services.skills import SkillRegistry, SkillSettings
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

FirstParty = Callable[[Provider], CapabilityProvider]

_log = structlog.get_logger("kaged.services")


@dataclass(frozen=True, slots=True)
class _Memory:
    """What of the accounts outlives the process."""

    rows: ServiceRows
    calls: ServiceCallRows
    vault: Vault


async def build_services(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    store: Store,
    audit: AuditLog,
    fingerprints: bytes,
    hub: EventHub,
    clock: Clock,
    closing: AsyncExitStack,
    first_party: FirstParty | None = None,
) -> AccountService:
    """Build everything about people's accounts; providers are started by `AccountService.run`.

    Inputs are told apart by a digest with the key `fingerprints`. It outlives the process: a call
    that is repeated after a restart, or waited for consent, is the same call.

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
    trail = Trail(audit, clock, fingerprints)
    tokens = ContextTokens(key, clock)
    skills = SkillRegistry(
        {
            name: SkillSettings(one.enabled, one.allow_chat_ids)
            for name, one in config.skills.good.items()
        },
        await asyncio.to_thread(read_skills, settings.places.config_dir / "skills"),
    )
    accounts = Accounts(memory.rows, clock)
    limits = RateLimits(clock)
    await _keep_limits(limits, memory.rows, closing)
    flows = AuthFlows(
        memory.rows, accounts, memory.vault, limits, clock, ttl_s=section.flow_ttl_seconds
    )
    calls = MutatingCalls(memory.calls, clock)
    consents = Consents(memory.calls, clock, on_plan)
    admission = CallerAdmission(
        tokens, registry, skills, trail, require_skill=section.require_skill
    )
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
    services = AccountService(manager, tokens, accounts, consents, flows, memory.vault, audit)
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
    planned: list[PlannedProvider] = []
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
        planned.append(PlannedProvider(one.name, made, _rules(one), bridged, caged, one.command))
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


async def _keep_limits(limits: RateLimits, rows: ServiceRows, closing: AsyncExitStack) -> None:
    kept = KeptLimits(limits, rows)
    await kept.load()
    closing.push_async_callback(kept.save)
    tasks = Tasks("rate limits", _report_failure)
    closing.push_async_callback(tasks.close)
    tasks.start(kept.keep(), "keep")


def _report_failure(name: str, error: BaseException) -> None:
    _log.error("task.failed", task=name, error=type(error).__name__)


_KEY_PLACES: Final = {
    VaultKeyPlace.AUTO: KeyPlace.AUTO,
    VaultKeyPlace.SYSTEMD: KeyPlace.SYSTEMD,
    VaultKeyPlace.KEYRING: KeyPlace.KEYRING,
    VaultKeyPlace.FILE: KeyPlace.FILE,
}


def _key_file(settings: Settings) -> Path:
    return settings.places.data_dir / "vault.key"


def _token_key(environ: Mapping[str, str], audit: AuditLog) -> TokenKey:
    """Return the signing key: the operator's, or a random one that dies with this process."""
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
