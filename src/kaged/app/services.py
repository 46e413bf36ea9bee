"""`build_services`: people's accounts, put together: vault, providers, gates and who may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, JsonObject, KagedError
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.config.credentials_section import OAuthClient as ClientSection
from kaged.config.providers import (
    PROGRAMS,
    Provider,
    ProviderType,
    plan_providers,
)
from kaged.config.settings import Settings
from kaged.config.skill_file import SkillMetadata
from kaged.config.skill_settings import skills_in_force
from kaged.events import EventHub
from kaged.inbox import Inbox
from kaged.kernel.account_shares import AccountShare
from kaged.kernel.identity import PersonGrant
from kaged.pipeline.pipeline import Pipeline
from kaged.services.account_policies import AccountPolicies
from kaged.services.account_service import AccountService, PlannedProvider
from kaged.services.account_sharing import AccountSharing, unshared_event
from kaged.services.accounts import Accounts
from kaged.services.admission import CallerAdmission
from kaged.services.authflow import AuthFlows
from kaged.services.caller import ContextTokens
from kaged.services.configured import provider_kind, provider_rules, rate_rules, signing_key
from kaged.services.confirmation import Consents, MutationPlan
from kaged.services.connection_health import ConnectionHealth
from kaged.services.contract import CapabilityProvider
from kaged.services.credential_vault import VaultSecrets
from kaged.services.idempotency import MutatingCalls
from kaged.services.limits import RateLimits, keep_limits
from kaged.services.linking import AccountLinking
from kaged.services.manager import CapabilityManager, ManagerParts
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import bridge_spec
from kaged.services.providers.first_party import FirstPartyProviders
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.oauth_server import OAuthSettings
from kaged.services.providers.sidecar import SidecarProvider
from kaged.services.registry import CapabilityRegistry
from kaged.services.skills import SkillRegistry
from kaged.services.trail import Trail
from kaged.services.vault import Vault
from kaged.services.vault_opening import open_memory
from kaged.store import Store
from kaged.store.account_share_rows import AccountShareRows
from kaged.tools.call_approvals import CallApprovals
from kaged.tools.session_labels import SessionLabels

TOPIC: Final = "services"
TOKEN_S: Final = 20.0
"""How long the server of a credential's tokens may take."""

_log = get_logger("kaged.services")


def _credential_secrets(vault: Vault, clock: Clock) -> VaultSecrets:
    """Return what keeps the values of credentials at the gate, in the vault of the accounts."""

    def token_client(client: ClientSection, secret: str | None) -> OAuthClient:
        known = OAuthSettings(
            client_id=client.client_id, token_url=client.token_url, scopes=client.scopes
        )
        return OAuthClient(known, clock=clock, client_secret=secret, timeout_s=TOKEN_S)

    return VaultSecrets(vault, token_client)


async def build_services(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    store: Store,
    audit: AuditLog,
    fingerprints: bytes,
    hub: EventHub,
    inbox: Inbox,
    skill_metadata: dict[str, SkillMetadata],
    grant_of: Callable[[str], PersonGrant],
    pipeline: Callable[[], Pipeline | None],
    labels: SessionLabels,
    approvals: CallApprovals,
    project_name: Callable[[str], str | None],
    clock: Clock,
    closing: AsyncExitStack,
) -> AccountService:
    """Build everything about people's accounts; providers are started by `AccountService.run`.

    Inputs are told apart by a digest with the key `fingerprints`. It outlives the process: a call
    that is repeated after a restart, or waited for consent, is the same call. `skill_metadata` is
    what the files of the operator's skills say; it changes with them. `grant_of` says what
    a person is and may call by now, `project_name` what people call a project.

    Raises:
        KagedError: the signing secret cannot be used.
    """
    config = settings.daemon.value
    section = config.capabilities
    first_party = FirstPartyProviders(clock, settings.places.config_dir, closing)
    key = signing_key(environ, audit)
    memory = await open_memory(settings, section, environ, store, clock)

    def on_plan(plan: MutationPlan) -> None:
        hub.publish(TOPIC, "services.approval_wanted", {"plan_id": plan.plan_id})

    registry = CapabilityRegistry(clock, lambda name, data: audit.post(AuditEvent(name, data)))
    trail = Trail(audit, clock, fingerprints)
    tokens = ContextTokens(key, clock)
    skills = SkillRegistry(skills_in_force(config.skills), skill_metadata)

    def on_unshared(shares: Sequence[AccountShare], why: str) -> None:
        for share in shares:
            audit.post(unshared_event(share, why))

    accounts = Accounts(memory.rows, clock, on_unshared)
    sharing = AccountSharing(
        AccountShareRows(store),
        accounts,
        registry,
        grant_of,
        audit,
        clock,
        allowed=section.share_accounts,
    )
    limits = RateLimits(clock)
    await keep_limits(limits, memory.rows, closing)
    flows = AuthFlows(
        memory.rows,
        accounts,
        memory.vault,
        limits,
        clock,
        ttl_s=section.flow_ttl_seconds,
        project_name=project_name,
    )
    calls = MutatingCalls(memory.calls, clock)
    consents = Consents(inbox, clock, on_plan)
    admission = CallerAdmission(
        tokens,
        registry,
        skills,
        trail,
        require_skill=section.require_skill,
        operations_of=lambda person: grant_of(person).operations,
    )
    health = ConnectionHealth(accounts, flows, inbox, audit)
    linking = AccountLinking(admission, registry, accounts, flows, health, sharing)
    manager = CapabilityManager(
        ManagerParts(
            admission,
            registry,
            linking,
            accounts,
            health,
            memory.vault,
            calls,
            consents,
            limits,
            trail,
            memory.rows,
            AccountPolicies(pipeline, labels, grant_of, clock, approvals),
            sharing,
        ),
        strict_output=section.strict_output,
    )
    closing.push_async_callback(manager.close)
    lost = await calls.settle()
    if lost:
        _log.warning("services.outcomes_unknown", calls=lost)

    secrets = _credential_secrets(memory.vault, clock)
    services = AccountService(
        manager, tokens, accounts, health, consents, flows, audit, sharing, secrets
    )
    everybody = asyncio.Semaphore(section.max_bridges)

    def program(one: Provider) -> CapabilityProvider:
        directory = settings.places.data_dir / "bridges" / one.name
        if one.section.type is ProviderType.SIDECAR:
            page, idle_s = first_party.sidecar(one)
            return SidecarProvider(
                bridge_spec(one),
                key,
                spawner=spawner,
                everybody=everybody,
                clock=clock,
                environ=environ,
                directory=directory,
                page=page,
                idle_s=idle_s,
            )
        return BridgeProvider(
            bridge_spec(one),
            key,
            spawner=spawner,
            everybody=everybody,
            clock=clock,
            environ=environ,
            directory=directory,
            page=first_party.bridge_page(one),
        )

    plan = plan_providers(config.skills, section, settings.daemon.provenance)
    planned: list[PlannedProvider] = []
    problems: list[JsonObject] = [
        {"provider": one.key_path, "problem": one.message} for one in plan.problems
    ]
    for one in plan.providers:
        limits.set_rules(one.namespace, rate_rules(one))
        bridged = one.section.type in PROGRAMS
        try:
            made = program(one) if bridged else first_party(one)
        except KagedError as error:
            _log.error("provider.refused", provider=one.name, reason=error.message)
            problems.append({"provider": one.name, "problem": error.message})
            continue
        caged = one.cage is not None if bridged else None
        planned.append(
            PlannedProvider(
                one.name,
                made,
                provider_rules(one),
                provider_kind(one),
                caged,
                one.command,
            )
        )
    services.plan(planned, problems)
    return services
