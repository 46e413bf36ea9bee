"""`CapabilityManager`: who may do what with whose account, and the one way in which it is done.

`invoke` is the walk of a call, top to bottom: token, policy, account, provider, hardened result.
Nothing of a provider, a process or the vault is touched before every gate has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.tasks import report_kind
from kaged.kernel.account_shares import SHARE_PREFIX
from kaged.kernel.service_ids import ServiceIdInvalid, parse_operation
from kaged.services.account_policies import AccountPolicies, HookedOperation
from kaged.services.account_sharing import AccountSharing, SharedAccount
from kaged.services.accounts import Accounts
from kaged.services.admission import CallerAdmission, fault_of
from kaged.services.asking import ask_provider, scrubbed_error
from kaged.services.caller import ServiceCaller
from kaged.services.confirmation import Consents
from kaged.services.connection_health import ConnectionHealth
from kaged.services.contract import InvokeCall
from kaged.services.errors import (
    CapabilityError,
    CapabilityInternalError,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
    OutcomeLost,
)
from kaged.services.idempotency import (
    KEPT_S,
    KeptRefusal,
    MutatingCalls,
    Replay,
    Ticket,
    parse_idempotency_key,
)
from kaged.services.limits import RateLimits
from kaged.services.linking import AccountLinking
from kaged.services.params import capability_param, name_param, object_param, text_param
from kaged.services.registry import CapabilityRegistry, RegisteredCapability, RegisteredOperation
from kaged.services.sanitize import OutputRefused, harden
from kaged.services.secret_search import CallSecrets
from kaged.services.state import BoundState
from kaged.services.trail import Record, Trail
from kaged.services.vault import CredentialScope, Vault
from kaged.store.account_share_rows import state_scope
from kaged.store.service_call_rows import CallKey
from kaged.store.service_rows import AccountRow, ServiceRows
from kaged.wire.tokens import MAX_LIFETIME_S

_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")
_IDLE_S: Final = 60.0
_SHORTEST_S: Final = 0.1
# From here on the provider may have done something.
_UNDERWAY: Final = frozenset({"provider", "output"})


@dataclass(frozen=True, slots=True)
class ManagerParts:
    """Everything that a manager works with."""

    admission: CallerAdmission
    registry: CapabilityRegistry
    linking: AccountLinking
    accounts: Accounts
    health: ConnectionHealth
    vault: Vault
    calls: MutatingCalls
    consents: Consents
    limits: RateLimits
    trail: Trail
    rows: ServiceRows
    policies: AccountPolicies
    sharing: AccountSharing


@dataclass(slots=True)
class _Invocation:
    """One invoke on its way through the gates; filled step by step."""

    caller: ServiceCaller
    params: JsonObject
    record: Record
    capability: RegisteredCapability
    operation: RegisteredOperation
    account: AccountRow | None = None
    shared: SharedAccount | None = None
    input_data: JsonObject | None = None
    key: str | None = None

    @property
    def account_ref(self) -> str | None:
        return None if self.account is None else self.account.account_ref

    @property
    def owner(self) -> str:
        """Whose account it is: the caller's, unless it is shared with them."""
        return self.caller.user_id if self.shared is None else self.shared.share.owner


class CapabilityManager:
    """Runs operations on accounts for sandboxes."""

    def __init__(self, parts: ManagerParts, *, strict_output: bool = False) -> None:
        self._parts = parts
        self._strict = strict_output
        self._tasks = Tasks("services", report_kind)
        self._closed = False

    @property
    def registry(self) -> CapabilityRegistry:
        """What is offered, and by whom."""
        return self._parts.registry

    @property
    def linking(self) -> AccountLinking:
        """The methods around accounts."""
        return self._parts.linking

    async def invoke(self, token: JsonValue, params: JsonObject) -> JsonObject:
        """Run one operation for the user whose token this is."""
        # 1. Verify the token; who calls and from where is read from its claims and nowhere else.
        admission = self._parts.admission
        caller, params = admission.admit("capability.invoke", token, params)
        record = admission.record("capability_invoke", caller)
        ticket: Ticket | None = None
        try:
            # 2. Policy: the skill, the capability, the operation; the first denial ends it.
            capability = await admission.pass_gates(record, caller, capability_param(params))
            operation = self._operation(record, caller, capability, params)
            call = _Invocation(caller, params, record, capability, operation)

            # 3. Whose account: one of this user's, for this capability. Then what is asked of it.
            await self._choose_account(call)
            self._read_input(call)
            hooked = await self._pass_policies(call)
            if operation.spec.mutating:
                entered = await self._enter(call)
                if isinstance(entered, Replay):
                    return await self._replay(call, entered, hooked)
                ticket = entered
            self._pass_limits(call)

            # 4. Run it inside the host, and on record: what cannot be recorded is not done.
            if operation.spec.mutating:
                await self._confirm(call)
                await self._announce(call)
            elif capability.sensitive:
                record.gate = "audit"
                self._parts.trail.require_writable()
            await hooked.label()
            output, known = await self._run(call)

            # 5. Only what holds no credential leaves the host.
            hardened = await hooked.after(await self._harden(call, output, known))
            schema = operation.output_schema
            if schema is not None and not schema.is_valid(hardened):
                raise CapabilityInvalidOutput("the provider's output does not match its schema")
            if ticket is not None:
                await ticket.succeed(hardened)
            await record.ok()
            return _answer(record.request_id, hardened)
        except asyncio.CancelledError:
            self._cut_off(record, ticket)
            raise
        except CapabilityError as error:
            await self._settle(record, ticket, error)
            raise
        # Boundary: a fault of the host is no business of the sandbox (SC-AMB-06).
        except BaseException as error:
            fault = fault_of(record, error)
            await self._settle(record, ticket, fault)
            raise fault from error

    # ---- steps 2 and 3

    def _operation(
        self,
        record: Record,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        params: JsonObject,
    ) -> RegisteredOperation:
        record.gate = "operation"
        try:
            name = parse_operation(params.get("operation"))
        except ServiceIdInvalid as error:
            raise CapabilityInvalidInput(error.message) from None
        record.note("operation", name)
        operation = capability.operations.get(name)
        if operation is None:
            raise CapabilityInvalidInput(f"{capability.text} has no such operation")
        record.note("mutating", operation.spec.mutating)
        record.repeatable = operation.spec.repeatable
        self._parts.admission.pass_operation(record, caller, capability, operation)
        return operation

    async def _choose_account(self, call: _Invocation) -> None:
        call.record.gate = "account"
        wanted = name_param(call.params, "account_ref")
        if wanted is not None and wanted.startswith(SHARE_PREFIX):
            await self._choose_shared(call, wanted)
        if call.shared is None:
            call.account = await self._parts.accounts.choose(
                call.caller.user_id,
                call.capability.text,
                wanted,
                needed=call.operation.spec.requires_auth,
            )
        if call.account is not None:
            call.record.note("account_ref", call.account.account_ref)

    async def _choose_shared(self, call: _Invocation, wanted: str) -> None:
        """Take the account that somebody shares, unless the caller's own one has this name."""
        parts, caller, capability = self._parts, call.caller, call.capability
        if await parts.accounts.get(caller.user_id, capability.text, wanted) is not None:
            return
        call.record.note("share_id", wanted)
        found = await parts.sharing.choose(caller, capability, call.operation.name, wanted)
        call.record.note("account_owner", found.share.owner)
        call.shared, call.account = found, found.account

    def _read_input(self, call: _Invocation) -> None:
        call.record.gate = "input"
        given = object_param(call.params, "input")
        call.record.note_input(given, self._parts.trail.digest(_CANONICAL.encode(given)))
        schema = call.operation.input_schema
        if schema is not None and not schema.is_valid(given):
            raise CapabilityInvalidInput(_mismatch(schema, given))
        call.input_data = given
        call.key = parse_idempotency_key(call.params.get("idempotency_key"))
        if call.key is not None:
            call.record.note_key(call.key)

    async def _pass_policies(self, call: _Invocation) -> HookedOperation:
        """Ask the pipeline's policies; an input that they change is read like any other."""
        call.record.gate = "policies"
        opened = self._parts.policies.open(
            call.caller, call.capability, call.operation, call.record.request_id, call.owner
        )
        hooked = await opened
        given = call.input_data or {}
        changed = await hooked.before(given)
        if changed != given:
            call.params = {**call.params, "input": changed}
            self._read_input(call)
        return hooked

    async def _enter(self, call: _Invocation) -> Ticket | Replay:
        """Make sure that a mutating call happens once.

        Without a key of the caller's the token stands in: the same token with the same input is
        the same call, so a captured request cannot do its work twice.
        """
        call.record.gate = "idempotency"
        token, fingerprint = call.caller.token, call.record.fingerprint
        stand_in = f"token {token.token_id or token.issued_at} {fingerprint}"
        try:
            return await self._parts.calls.enter(
                CallKey(
                    call.caller.user_id,
                    call.capability.text,
                    call.operation.name,
                    self._account_key(call),
                    f"key {call.key}" if call.key is not None else stand_in,
                ),
                fingerprint,
                call.record.request_id,
                kept_s=KEPT_S if call.key is not None else 2 * MAX_LIFETIME_S,
            )
        except KeptRefusal as kept:
            known, _ = await self._secrets(call)
            raise scrubbed_error(kept.error, known) from None

    @staticmethod
    def _account_key(call: _Invocation) -> str:
        """Return how a caller's account is told from all others: a share is none of theirs."""
        return call.shared.share.share_id if call.shared is not None else call.account_ref or ""

    async def _replay(self, call: _Invocation, kept: Replay, hooked: HookedOperation) -> JsonObject:
        """Return what the same call gave before, unless that holds what is a secret by now."""
        known, _ = await self._secrets(call)
        call.record.gate = "output"
        await hooked.label()
        output = await hooked.after(await self._harden(call, kept.output, known))
        await call.record.ok("replayed")
        return _answer(kept.request_id, output, replayed=True)

    def _pass_limits(self, call: _Invocation) -> None:
        call.record.gate = "limits"
        capability = call.capability
        self._parts.limits.require_invoke(
            call.caller.user_id,
            capability.id.namespace,
            capability.text,
            mutating=call.operation.spec.mutating,
        )

    # ---- steps 4 and 5

    async def _confirm(self, call: _Invocation) -> None:
        if Consents.needed(call.caller, call.capability, call.operation):
            call.record.gate = "confirmation"
            await self._parts.consents.require(
                call.caller,
                call.capability,
                call.operation,
                account_ref=call.account_ref or "",
                owner=call.owner,
                input_data=call.input_data or {},
                input_hash=call.record.fingerprint,
                plan_id=text_param(call.params, "mutation_plan_id", 128),
            )

    async def _announce(self, call: _Invocation) -> None:
        call.record.gate = "audit"
        await self._parts.trail.intent(call.record)

    async def _run(self, call: _Invocation) -> tuple[object, CallSecrets]:
        """Call the provider; return what it said, and what it must not have said."""
        parts, caller, capability = self._parts, call.caller, call.capability
        entry = capability.provider
        known, scope = await self._secrets(call)
        handle = None if scope is None else parts.vault.handle(scope, known)
        context, remembers, chat = caller.context, caller.user_id, caller.chat
        if call.shared is not None:
            call.record.gate = "account"
            await parts.sharing.use(
                call.shared, caller, capability, call.operation.name, call.record.request_id
            )
            context, chat = call.shared.context(caller), None
            remembers = state_scope(call.shared.share.share_id)
        call.record.gate = "provider"
        asked = InvokeCall(
            capability.text,
            call.operation.name,
            call.input_data or {},
            call.account_ref,
            call.key,
            context,
            handle,
            BoundState(parts.rows, remembers, capability.text, chat, known),
        )
        try:
            found = await ask_provider(entry, entry.provider.invoke(asked), known)
        except CapabilityError as error:
            if call.account is not None:
                await parts.health.failed(call.account, error)
            raise
        call.record.gate = "output"
        if call.account is not None:
            await parts.health.worked(call.account)
        if scope is not None:  # renewed by another call meanwhile: neither may leave
            known.add(await parts.vault.known(scope))
        return found, known

    async def _secrets(self, call: _Invocation) -> tuple[CallSecrets, CredentialScope | None]:
        """Return what must not leave with this call's answer, and where its credential is kept."""
        known = CallSecrets(call.capability.provider.rules.secrets)
        if call.account is None:
            return known, None
        call.record.gate = "vault"
        scope = CredentialScope(call.owner, call.capability.text, call.account.account_ref)
        known.add(await self._parts.vault.known(scope))
        return known, scope

    async def _harden(self, call: _Invocation, found: object, known: CallSecrets) -> JsonObject:
        operation, trail = call.operation, self._parts.trail
        try:
            hardened = harden(
                found,
                secrets=known,
                free_text=operation.free_text,
                strict=self._strict or call.capability.provider.rules.strict_output,
            )
        except OutputRefused as refused:
            await trail.rejected(call.record, refused.rule, refused.path, masked=False)
            raise
        if hardened.masked:
            await trail.rejected(call.record, "secret shape", hardened.masked[0], masked=True)
        call.record.note("output_bytes", hardened.size_bytes)
        return hardened.output

    # ---- ends that are not happy

    async def _settle(self, record: Record, ticket: Ticket | None, error: CapabilityError) -> None:
        """Write down how a call failed, and what a repeat of it will be told."""
        if ticket is not None:
            underway = record.gate in _UNDERWAY
            lost = isinstance(error, _LOST) and not record.repeatable
            if underway and lost:
                await ticket.lose()
            elif underway and isinstance(error, CapabilityInvalidInput):
                await ticket.fail(error)
            else:
                await ticket.abandon()
        error.data.setdefault("request_id", record.request_id)
        await record.failed(error)

    def _cut_off(self, record: Record, ticket: Ticket | None) -> None:
        """The caller went away. Finish the books in the background; the provider was cancelled."""
        underway = record.gate in _UNDERWAY

        async def finish() -> None:
            if ticket is not None:
                await (ticket.lose() if underway else ticket.abandon())
            await record.failed(OutcomeLost("the call was cut off"))

        if not self._closed:  # a daemon that ends settles what ran at its next start
            self._tasks.start(finish(), "settle a cut off call")

    # ---- life

    async def keep_trying(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Try providers that are down again, with growing pauses; run it in the background."""
        while True:
            due = await self._parts.registry.revive_due()
            now = self._parts.trail.now_s()
            await sleep(_IDLE_S if due is None else min(_IDLE_S, max(_SHORTEST_S, due - now)))

    async def close(self) -> None:
        """Let providers go."""
        self._closed = True
        await self._parts.registry.close()
        await self._tasks.close()


_LOST: Final = (OutcomeLost, CapabilityInvalidOutput, CapabilityInternalError)


def _answer(request_id: str, output: JsonObject, *, replayed: bool = False) -> JsonObject:
    answer: JsonObject = {"ok": True, "output": output, "request_id": request_id}
    if replayed:
        answer["replayed"] = True
    return answer


def _mismatch(schema: Any, value: JsonObject) -> str:
    """Return where an input breaks its schema, without repeating what was sent."""
    error = next(iter(schema.iter_errors(value)), None)
    if error is None:
        return "the input does not match the schema"
    path = "/".join(str(step)[:64] for step in error.instance_path)
    return f"the input does not match the schema at /{path}: {str(error.message)[:200]}"
