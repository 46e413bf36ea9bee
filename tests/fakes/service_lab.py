"""The service capabilities of a host, whole but for processes, with a provider that tests drive."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fakes.audit_sink import MemorySink
from kaged.audit import AuditEvent, AuditLog, AuditRow, AuditSink, ChainKey
from kaged.audit.folding import FoldingLimits
from kaged.base import Ids, JsonObject, ManualClock, Tasks
from kaged.inbox import Inbox
from kaged.kernel.identity import EVERYTHING, PersonGrant
from kaged.services.account_policies import AccountPolicies
from kaged.services.account_sharing import AccountSharing
from kaged.services.accounts import Accounts
from kaged.services.admission import CallerAdmission
from kaged.services.authflow import DEFAULT_TTL_S, AuthFlows
from kaged.services.caller import ContextTokens
from kaged.services.confirmation import Consents
from kaged.services.connection_health import ConnectionHealth
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    AuthPollCall,
    AuthPollResult,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    CapabilityAuthPending,
    CapabilityDefinition,
    CapabilityOperation,
    InvokeCall,
)
from kaged.services.idempotency import MutatingCalls
from kaged.services.limits import RateLimits
from kaged.services.linking import AccountLinking
from kaged.services.manager import CapabilityManager, ManagerParts
from kaged.services.registry import CapabilityRegistry, ProviderRules
from kaged.services.rpc import CapabilityRpc
from kaged.services.sanitize import harden
from kaged.services.skills import SkillRegistry
from kaged.services.trail import Trail
from kaged.services.vault import Vault
from kaged.services.vault_key import FileRing
from kaged.services.vault_opening import open_vault
from kaged.store import Store, sqlite_url
from kaged.store.account_share_rows import AccountShareRows
from kaged.store.service_call_rows import ServiceCallRows
from kaged.store.service_rows import ServiceRows
from kaged.store.vault_rows import VaultRows
from kaged.tools.session_labels import NewLabels, SessionLabels
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims

KEY = TokenKey(b"the key of the host's own tokens")

FOLDER: JsonObject = {
    "type": "object",
    "required": ["folder"],
    "properties": {"folder": {"type": "string"}},
}


def operations(*more: CapabilityOperation) -> dict[str, CapabilityOperation]:
    """Return the operations of the sample capability, and some more."""
    listed = (
        CapabilityOperation("list_messages", "List messages.", input_schema=FOLDER),
        CapabilityOperation("whoami", "Say whose account it is."),
        CapabilityOperation("ping", "Say hello.", requires_auth=False),
        CapabilityOperation("send", "Send a message.", mutating=True),
        *more,
    )
    return {one.name: one for one in listed}


def definition(capability_id: str = "gog.email", **fields: Any) -> CapabilityDefinition:
    """Return a capability with the sample operations."""
    fields.setdefault("operations", operations())
    return CapabilityDefinition(id=capability_id, description="Email operations.", **fields)


class FakeProvider:
    """A provider that does what a test says, and remembers every call."""

    def __init__(self, namespace: str = "gog", *definitions: CapabilityDefinition) -> None:
        self._namespace = namespace
        self.offered = list(definitions) or [definition(f"{namespace}.email")]
        self.calls: list[Any] = []
        self.asked = 0
        self.on_definitions: Callable[[], None] | None = None
        self.on_begin: Callable[[AuthBeginCall], Awaitable[CapabilityAuthBeginResult]] | None = None
        self.on_complete: (
            Callable[[AuthCompleteCall], Awaitable[CapabilityAuthCompleteResult]] | None
        ) = None
        self.on_poll: Callable[[AuthPollCall], Awaitable[AuthPollResult]] | None = None
        self.on_invoke: Callable[[InvokeCall], Awaitable[Any]] | None = None

    @property
    def namespace(self) -> str:
        return self._namespace

    async def definitions(self) -> list[CapabilityDefinition]:
        self.asked += 1
        if self.on_definitions is not None:
            self.on_definitions()
        return self.offered

    async def auth_begin(self, call: AuthBeginCall) -> CapabilityAuthBeginResult:
        self.calls.append(call)
        if self.on_begin is not None:
            return await self.on_begin(call)
        return CapabilityAuthBeginResult("https://login.example/authorize?client_id=kaged")

    async def auth_complete(self, call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        self.calls.append(call)
        if self.on_complete is not None:
            return await self.on_complete(call)
        secret = f"refresh-{call.context.user_id}-{call.authorization_code}"
        await call.credentials.put({"refresh_token": secret})
        name = call.account_hint or "default"
        return CapabilityAuthCompleteResult(
            f"acct_{name}", metadata={"account_email": f"{name}@example.org"}
        )

    async def auth_poll(self, call: AuthPollCall) -> AuthPollResult:
        self.calls.append(call)
        if self.on_poll is not None:
            return await self.on_poll(call)
        return CapabilityAuthPending()

    async def invoke(self, call: InvokeCall) -> JsonObject:
        self.calls.append(call)
        if self.on_invoke is not None:
            return await self.on_invoke(call)
        return {"user": call.context.user_id, "account": call.account_ref, "messages": []}

    def of(self, kind: type) -> list[Any]:
        """Return the calls of one kind."""
        return [call for call in self.calls if isinstance(call, kind)]


async def _no_labels(session_id: str) -> tuple[str, ...]:
    return ()


async def _forget(new: NewLabels) -> None:
    pass


class ServiceLab:
    """A host's service capabilities in a folder of their own."""

    def __init__(self, root: Path, clock: ManualClock | None = None) -> None:
        self.root = root
        self.clock = clock or ManualClock()
        self.ids = Ids(self.clock)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.skills = SkillRegistry()
        self.provider = FakeProvider()
        self.grants: dict[str, PersonGrant] = {}

    async def open(
        self,
        *,
        sink: AuditSink | None = None,
        require_skill: bool = False,
        strict_output: bool = False,
        flow_ttl_s: int = DEFAULT_TTL_S,
    ) -> ServiceLab:
        clock = self.clock
        self.tasks = Tasks("lab", lambda _name, _error: None)
        self.store = await Store.open(
            sqlite_url(self.root / "kaged.db"), clock=clock, ids=self.ids, backup_dir=self.root
        )
        self.audit = await AuditLog.open(
            sink or MemorySink(),
            clock=clock,
            ids=self.ids,
            key=ChainKey(b"k" * 32),
            folding=FoldingLimits(burst=100_000),  # tables of refusals are larger
        )
        self.audit.subscribe(self._row)
        self.vault_rows = VaultRows(self.store)
        self.rows = ServiceRows(self.store)
        self.call_rows = ServiceCallRows(self.store)
        self.vault = await self.opened_vault()
        self.tokens = ContextTokens(KEY, clock)
        self.registry = CapabilityRegistry(clock, self._registry_event)
        self.accounts = Accounts(self.rows, clock)
        self.sharing = AccountSharing(
            AccountShareRows(self.store),
            self.accounts,
            self.registry,
            lambda person: self.grants.get(person, EVERYTHING),
            self.audit,
            clock,
            allowed=True,
        )
        self.limits = RateLimits(clock)
        self.flows = AuthFlows(
            self.rows, self.accounts, self.vault, self.limits, clock, ttl_s=flow_ttl_s
        )
        self.calls = MutatingCalls(self.call_rows, clock)
        self.inbox = Inbox(
            self.store.inbox,
            record=self.audit.record,
            post=self.audit.post,
            announce=lambda _name, _data: None,
            clock=clock,
        )
        self.consents = Consents(self.inbox, clock)
        self.trail = Trail(self.audit, clock, b"fingerprints")
        admission = CallerAdmission(
            self.tokens, self.registry, self.skills, self.trail, require_skill=require_skill
        )
        self.health = ConnectionHealth(self.accounts, self.flows, self.inbox, self.audit)
        linking = AccountLinking(
            admission, self.registry, self.accounts, self.flows, self.health, self.sharing
        )
        self.manager = CapabilityManager(
            ManagerParts(
                admission,
                self.registry,
                linking,
                self.accounts,
                self.health,
                self.vault,
                self.calls,
                self.consents,
                self.limits,
                self.trail,
                self.rows,
                AccountPolicies(
                    lambda: None, SessionLabels(_no_labels, _forget), lambda _: EVERYTHING, clock
                ),
                self.sharing,
            ),
            strict_output=strict_output,
        )
        self.rpc = CapabilityRpc(self.manager)
        return self

    async def register(self, provider: FakeProvider | None = None, **rules: Any) -> FakeProvider:
        """Register a provider, by default the lab's own."""
        found = provider or self.provider
        await self.registry.register(found, rules=ProviderRules(**rules))
        return found

    async def opened_vault(self) -> Vault:
        """Open the vault as a start does: it knows what is stored, and nothing else."""
        own, spare = (FileRing(self.root / f"vault{one}.key") for one in ("", ".replacement"))
        return await open_vault(self.vault_rows, (own,), spare, self.clock)

    async def start_again(self) -> None:
        """Stop the host and start it: it knows what is stored, and nothing else."""
        await self.close()
        await self.open()
        await self.register()

    async def close(self) -> None:
        await self.tasks.close()
        await self.manager.close()
        await self.audit.close()
        await self.store.close()

    def token(
        self,
        user: str = "alice",
        chat_type: str | None = "private",
        *,
        skill: str | None = None,
        caps: tuple[str, ...] | None = None,
        **routing: str,
    ) -> str:
        """Make a token as the host makes them for sandboxes."""
        claims = RoutingClaims(chat_type=chat_type, **routing)
        made = self.tokens.mint(user, routing=claims, skill=skill, caps=caps)
        assert made is not None
        return made

    async def call(
        self, method: str, user: str = "alice", *, token: Any = ..., **params: Any
    ) -> Any:
        """Call a method as a user in a private chat, or with a token of the test's own."""
        given = self.token(user) if token is ... else token
        answer = await self.rpc.call(f"capability.{method}", {"context_token": given, **params})
        # SC-RPC-11: no answer that any test of the suite ever gets holds a credential's key.
        harden(answer)
        return answer

    async def invoke(
        self,
        operation: str = "whoami",
        user: str = "alice",
        *,
        capability: str = "gog.email",
        given: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Any:
        """Invoke an operation; returns the whole answer."""
        return await self.call(
            "invoke",
            user,
            capability=capability,
            operation=operation,
            input=dict(given or {}),
            **params,
        )

    async def link(
        self, user: str = "alice", hint: str | None = None, capability: str = "gog.email"
    ) -> str:
        """Link an account; returns its name."""
        flow = await self.call("auth.begin", user, capability=capability, account_hint=hint)
        code = f"code-{user}-{hint}"
        done = await self.call("auth.complete", user, flow_id=flow["flow_id"], code=code)
        ref: str = done["account_ref"]
        return ref

    async def seen(self, *names: str) -> list[dict[str, Any]]:
        """Return the data of the audit events of these names."""
        await self.audit.flush()
        return [data for name, data in self.events if not names or name in names]

    def _row(self, row: AuditRow) -> None:
        self.events.append((row.name, json.loads(row.data_json)))

    def _registry_event(self, name: str, data: JsonObject) -> None:
        self.audit.post(AuditEvent(name, data))
