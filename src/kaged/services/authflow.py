"""`AuthFlows`: linking an account, from the page a person opens to the record in the vault.

A flow is short-lived, belongs to one user and one capability, is used once, and outlives a restart
of the host. What only the host may know of it lies encrypted beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from kaged.base import Clock, JsonObject, KagedError
from kaged.services import contract, flow_checks, flow_pages
from kaged.services.accounts import Accounts
from kaged.services.asking import ask_provider
from kaged.services.callback import Completion, require_redirect, require_state
from kaged.services.caller import ServiceCaller
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityAuthFlowExpired,
    CapabilityAuthFlowInvalid,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
    CapabilityRateLimited,
    VaultLocked,
)
from kaged.services.flow import Flow, FlowEnds, flow_binding, flow_of, hidden_of, new_flow_id
from kaged.services.limits import RateLimits
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.services.secret_search import CallSecrets
from kaged.services.vault import CredentialScope, StagedCredential, Vault, scope_of
from kaged.store.service_rows import AccountRow, FlowRow, ServiceRows

DEFAULT_TTL_S: Final = 1800  # SC-AMB-08
MIN_TTL_S: Final = 30
MAX_TTL_S: Final = 3600
FLOWS_PER_USER: Final = 10  # SC-AMB-34
FLOWS_LIMIT: Final = 1000
STARTERS_LIMIT: Final = 8  # how many agents that asked for the same a flow names
FAILURES_LIMIT: Final = 5  # SC-AMB-32
DEFAULT_POLL_S: Final = 5
POLLS_REMEMBERED: Final = 1000

# The same words for a flow that never was, has ended, or is somebody else's (SC-AUTH-05).
_INVALID: Final = "the auth flow is unknown or has ended; begin a new one"
_ENDS: Final = (CapabilityAuthFlowDenied, CapabilityAuthFlowExpired, CapabilityInvalidOutput)


class AuthFlows:
    """Begins, lists, completes and polls flows; links and revokes accounts."""

    def __init__(
        self,
        rows: ServiceRows,
        accounts: Accounts,
        vault: Vault,
        limits: RateLimits,
        clock: Clock,
        *,
        ttl_s: int = DEFAULT_TTL_S,
        project_name: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._rows = rows
        self._accounts = accounts
        self._vault = vault
        self._limits = limits
        self._clock = clock
        self._project_name = project_name
        self._ttl_s = max(MIN_TTL_S, min(ttl_s, MAX_TTL_S))
        self._claimed: set[str] = set()
        self._ends = FlowEnds(clock)
        # When a flow may be asked about again, in ms, and how many seconds lie between questions.
        self._polls: dict[str, tuple[int, int]] = {}
        self._begins: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # ---- beginning

    async def begin(
        self, caller: ServiceCaller, capability: RegisteredCapability, hint: str | None
    ) -> Flow:
        """Start a flow, or return the pending one for the same user, capability and hint.

        Raises:
            CapabilityRateLimited: ten flows of this user are pending, or too many begins.
            CapabilityError: the provider refused or sent an invalid answer.
        """
        lock = self._begins.get(caller.user_id)
        if lock is None:
            lock = self._begins[caller.user_id] = asyncio.Lock()
        async with lock:  # per user: two begins at the same moment share one flow
            pending = await self._pending_rows(caller.user_id)
            for row in pending:
                if (row.capability_id, row.account_hint) == (capability.text, hint):
                    flow = self._opened_if(row)
                    if flow is not None:
                        flow = await self._also_begun_by(flow, self._starter(caller))
                    if flow is not None and await flow_pages.is_alive(capability, flow):
                        return flow
                    # Its page has ended, after wrong passwords for one, or its key is gone:
                    # nobody could complete it.
                    await self._end(row.flow_id)
                    pending = tuple(one for one in pending if one is not row)
                    break
            self._limits.require_begin(caller.user_id, capability.id.namespace)
            if len(pending) >= FLOWS_PER_USER:
                raise _too_many()
            begun_by = (self._starter(caller),)
            call = contract.AuthBeginCall(capability.text, hint, caller.context, begun_by)
            entry = capability.provider
            known = CallSecrets(entry.rules.secrets)
            found = await ask_provider(entry, entry.provider.auth_begin(call), known)
            flow = self._checked_begin(caller, call, capability, found, known)
            if not await self._rows.add_flow(flow.row, FLOWS_LIMIT):
                raise _too_many()
            self._ends.note(flow.row)
            return flow

    def _checked_begin(
        self,
        caller: ServiceCaller,
        call: contract.AuthBeginCall,
        capability: RegisteredCapability,
        found: object,
        known: CallSecrets,
    ) -> Flow:
        if not isinstance(found, contract.CapabilityAuthBeginResult):
            raise CapabilityInvalidOutput("the provider began no flow")
        now = self._clock.now_ms()
        expires = now + self._ttl_s * 1000
        if found.expires_at_ms is not None:
            if found.expires_at_ms <= now:
                raise CapabilityInvalidOutput("the provider's flow has already expired")
            expires = min(found.expires_at_ms, now + MAX_TTL_S * 1000)
        url = flow_checks.check_auth_url(found.auth_url)
        if found.user_code is not None and not flow_checks.is_short(
            found.user_code, flow_checks.NAME_CHARS
        ):
            raise CapabilityInvalidOutput("the provider's user code cannot be shown")
        known.learn(*flow_checks.hidden_texts(found.flow_state))
        if any(known.found_in_text(one or "") for one in (found.auth_url, found.user_code)):
            raise CapabilityInvalidOutput("the auth URL may hold no credentials")
        row = FlowRow(
            new_flow_id(),
            caller.user_id,
            capability.text,
            call.account_hint,
            found.flow_type,
            found.poll_interval_s,
            b"",
            0,
            now,
            expires,
        )
        flow = Flow(
            row,
            found.auth_url,
            found.user_code,
            found.flow_state,
            found.expected_callback_state,
            # A challenge in the URL says that the code alone is worth nothing.
            uses_pkce=found.uses_pkce or "code_challenge" in url,
            redirect_uri=found.redirect_uri,
            fields=flow_checks.checked_fields(found.fields),
            begun_by=call.begun_by,
        )
        return self._sealed(flow)

    def _starter(self, caller: ServiceCaller) -> contract.FlowStarter:
        """Return who begins, as the page may name them."""
        if caller.in_person:
            return contract.FlowStarter(in_person=True)
        project_id = caller.token.routing.project_id
        return contract.FlowStarter(
            None if caller.actor is None else caller.actor.agent_path,
            None if project_id is None else self._project_name(project_id),
        )

    async def _also_begun_by(self, flow: Flow, starter: contract.FlowStarter) -> Flow:
        """Return a pending flow that also names who asks for it now; the latest are kept."""
        if starter in flow.begun_by:
            return flow
        named = self._sealed(replace(flow, begun_by=(*flow.begun_by, starter)[-STARTERS_LIMIT:]))
        await self._rows.reseal_flow(named.row.flow_id, named.row.sealed)
        return named

    def _sealed(self, flow: Flow) -> Flow:
        sealed = self._vault.seal(flow_binding(flow.row), hidden_of(flow))
        return replace(flow, row=replace(flow.row, sealed=sealed))

    # ---- finding

    async def pending(
        self, caller: ServiceCaller, capability_id: str | None, hint: str | None
    ) -> tuple[Flow, ...]:
        """Return the caller's pending flows, the latest expiry first."""
        wanted = [
            self._opened_if(row)
            for row in await self._pending_rows(caller.user_id)
            if (capability_id is None or row.capability_id == capability_id)
            and (hint is None or row.account_hint == hint)
        ]
        return tuple(flow for flow in wanted if flow is not None)

    async def _pending_rows(self, user_id: str) -> tuple[FlowRow, ...]:
        found = await self._rows.pending_flows(user_id)
        over = [row for row in found if self._ends.is_over(row)]
        for row in over:
            await self._end(row.flow_id)
        return tuple(row for row in found if row not in over)

    async def find(self, caller: ServiceCaller, flow_id: str) -> Flow:
        """Return the caller's own flow.

        Raises:
            CapabilityAuthFlowInvalid: unknown, expired, used or somebody else's.
        """
        row = await self._rows.flow(flow_id)
        if row is None or row.user_id != caller.user_id or row.flow_id in self._claimed:
            raise CapabilityAuthFlowInvalid(_INVALID)
        if self._ends.is_over(row):
            await self._end(row.flow_id)
            raise CapabilityAuthFlowInvalid(_INVALID)
        flow = self._opened_if(row)
        if flow is None:
            raise CapabilityAuthFlowInvalid(_INVALID)
        return flow

    async def find_for(
        self, caller: ServiceCaller, state: str | None, capability_id: str | None, hint: str | None
    ) -> Flow:
        """Return the caller's flow that a callback belongs to.

        Raises:
            CapabilityAuthFlowInvalid: nothing is pending.
            CapabilityError: `capability_auth_state_mismatch`; no pending flow expects this state.
            CapabilityError: `capability_auth_flow_ambiguous`; several flows would do.
        """
        pending = await self.pending(caller, capability_id, hint)
        flows = [flow for flow in pending if flow.row.flow_id not in self._claimed]
        if not flows:
            raise CapabilityAuthFlowInvalid(_INVALID)
        if state is not None:
            matching = [flow for flow in flows if flow.expected_state == state]
            if not matching:
                raise CapabilityError(
                    "no pending flow expects this state", code="capability_auth_state_mismatch"
                )
            flows = matching
        if len(flows) > 1:
            raise CapabilityError(
                "several flows are pending; name the capability, the account or the flow",
                code="capability_auth_flow_ambiguous",
            )
        return flows[0]

    def _opened_if(self, row: FlowRow) -> Flow | None:
        """Return a flow; None when the key that it was encrypted with is gone."""
        try:
            return flow_of(row, self._vault.unseal(flow_binding(row), row.sealed))
        except VaultLocked:
            return None

    async def _end(self, flow_id: str) -> None:
        self._ends.forget(flow_id)
        await self._rows.end_flow(flow_id)

    # ---- completing

    async def complete(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        flow: Flow,
        completion: Completion,
    ) -> AccountRow:
        """Link the account that a flow leads to; the flow is used up.

        The flow is claimed before the provider is called, so that two completions at the same
        moment lead to one call. A provider that is down leaves it for another try.
        """
        flow_id = flow.row.flow_id
        self._claim(flow_id)
        try:
            stateless = flow.uses_pkce or capability.provider.rules.allow_stateless_code
            require_state(completion, flow.expected_state, stateless_allowed=stateless)
            require_redirect(completion, flow.redirect_uri)
            entry = capability.provider
            known = CallSecrets(entry.rules.secrets)
            known.learn(*flow.secrets, completion.code)
            staged = StagedCredential(known)
            call = contract.AuthCompleteCall(
                capability.text,
                flow.row.account_hint,
                flow.flow_state,
                completion.code,
                completion.callback_url,
                completion.state,
                caller.context,
                staged,
            )
            found = await ask_provider(entry, entry.provider.auth_complete(call), known)
            return await self._link(caller, capability, flow, found, staged, known)
        except CapabilityError as error:
            await self.failed(flow_id, error)
            raise
        finally:
            self._claimed.discard(flow_id)

    async def submit(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        flow: Flow,
        values: dict[str, str],
    ) -> AccountRow:
        """Link the account that a person's own entries lead to; the flow is used up.

        Raises:
            CapabilityInvalidInput: these are not the fields that the flow asks for.
            CapabilityError: the provider does not accept them.
        """
        entry = capability.provider
        provider = entry.provider
        if not flow.fields or not isinstance(provider, contract.SubmittingProvider):
            raise CapabilityInvalidInput("this flow has no fields to fill in")
        if set(values) != {one.name for one in flow.fields}:
            raise CapabilityInvalidInput("these are not the fields of this flow")
        flow_id = flow.row.flow_id
        self._claim(flow_id)
        try:
            known = CallSecrets(entry.rules.secrets)
            typed = [values[one.name] for one in flow.fields if one.secret]
            known.learn(*flow.secrets, *typed)
            staged = StagedCredential(known)
            call = contract.AuthSubmitCall(
                capability.text,
                flow.row.account_hint,
                flow.flow_state,
                values,
                caller.context,
                staged,
            )
            found = await ask_provider(entry, provider.auth_submit(call), known)
            return await self._link(caller, capability, flow, found, staged, known)
        except CapabilityError as error:
            await self.failed(flow_id, error)
            raise
        finally:
            self._claimed.discard(flow_id)

    async def failed(self, flow_id: str, error: CapabilityError) -> None:
        """Note that its own user failed to complete a flow; some failures end it at once."""
        if isinstance(error, _ENDS):
            await self._end(flow_id)
        else:
            await self._rows.fail_flow(flow_id, FAILURES_LIMIT)

    async def poll(
        self, caller: ServiceCaller, capability: RegisteredCapability, flow: Flow
    ) -> AccountRow | contract.CapabilityAuthPending:
        """Ask whether a person has agreed on another device, not more often than is allowed."""
        flow_id, entry = flow.row.flow_id, capability.provider
        provider = entry.provider
        if flow.row.flow_type != "device_code" or not isinstance(
            provider, contract.PollingProvider
        ):
            raise CapabilityInvalidInput("only device flows are polled")
        now = self._clock.now_ms()
        interval = flow.row.poll_interval_s or DEFAULT_POLL_S
        known = self._polls.get(flow_id)
        if known is not None:
            not_before, interval = known
            if now < not_before:
                return contract.CapabilityAuthPending(max(1, -(-(not_before - now) // 1000)))
        self._claim(flow_id)
        try:
            self._remember(flow_id, now, interval)
            known = CallSecrets(entry.rules.secrets)
            known.learn(*flow.secrets)
            staged = StagedCredential(known)
            call = contract.AuthPollCall(
                capability.text, flow.row.account_hint, flow.flow_state, caller.context, staged
            )
            found = await ask_provider(entry, provider.auth_poll(call), known)
            if isinstance(found, contract.CapabilityAuthPending):
                interval = max(interval, found.retry_after_s or 0)  # a slow-down stays in force
                self._remember(flow_id, now, interval)
                return contract.CapabilityAuthPending(interval)
            account = await self._link(caller, capability, flow, found, staged, known)
        except CapabilityError as error:
            if isinstance(error, (*_ENDS, CapabilityAuthFlowInvalid)):
                await self._end(flow_id)
            raise
        finally:
            self._claimed.discard(flow_id)
        self._polls.pop(flow_id, None)
        return account

    async def cancel(self, capability: RegisteredCapability | None, flow: Flow) -> None:
        """End a flow that its person has given up."""
        self._claim(flow.row.flow_id)
        try:
            await self._end(flow.row.flow_id)
            flow_pages.close_page(capability, flow)
        finally:
            self._claimed.discard(flow.row.flow_id)
            self._polls.pop(flow.row.flow_id, None)

    async def resume(self, registry: CapabilityRegistry) -> None:
        """After a start: open the pages of pending flows again, and end those that are dead."""
        for row in await self._rows.all_flows():
            if self._ends.is_over(row):
                await self._end(row.flow_id)
                continue
            capability, flow = registry.get(row.capability_id), self._opened_if(row)
            if capability is None or flow is None:  # both may come back
                continue
            if not await flow_pages.is_alive(capability, flow):
                await self._end(row.flow_id)

    async def revoke(
        self,
        context: contract.CapabilityCallContext,
        capability: RegisteredCapability | None,
        account: AccountRow,
    ) -> bool:
        """Forget an account and its credential; returns whether the provider was told as well."""
        scope = scope_of(account)
        told = False
        provider = None if capability is None else capability.provider.provider
        try:
            if capability is not None and isinstance(provider, contract.RevokingProvider):
                known = CallSecrets(capability.provider.rules.secrets)
                handle = self._vault.handle(scope, known)
                call = contract.AuthRevokeCall(
                    account.capability_id, account.account_ref, context, handle
                )
                told_provider = provider.auth_revoke(call)
                answer = await ask_provider(capability.provider, told_provider, known)
                told = answer is True
        except CapabilityError:
            told = False  # the host forgets it whatever the provider says
        finally:
            await self._vault.delete(scope)
            await self._accounts.unlink(*scope)
        return told

    async def check(self, capability: RegisteredCapability | None, account: AccountRow) -> bool:
        """Test an account at its service; False when that cannot be done.

        Raises:
            CapabilityError: it does not work, or its service does not.
        """
        provider = None if capability is None else capability.provider.provider
        if capability is None or not isinstance(provider, contract.CheckingProvider):
            return False
        if self.is_locked(account):
            return False
        known = CallSecrets(capability.provider.rules.secrets)
        call = contract.AuthCheckCall(
            account.capability_id,
            account.account_ref,
            contract.CapabilityCallContext(account.user_id),
            self._vault.handle(scope_of(account), known),
        )
        return await ask_provider(capability.provider, provider.auth_check(call), known)

    def is_locked(self, account: AccountRow) -> bool:
        """Return whether the key that an account was linked with is gone."""
        return self._vault.is_locked(scope_of(account))

    def vault_problem(self) -> tuple[KagedError, int] | None:
        """Return what is wrong with the vault's key and how many accounts that locks, if so."""
        problem = self._vault.problem
        return None if problem is None else (problem, self._vault.locked_count)

    async def rotate_vault(self) -> tuple[int, int]:
        """Encrypt every credential and pending flow with a fresh key; return how many of each."""
        records = await self._vault.rotate()
        flows = await self.reseal()
        await self._vault.drop_old_keys()
        return records, flows

    async def reseal(self) -> int:
        """Seal every pending flow with the vault's current key; after its keys were changed."""
        count = 0
        for row in await self._rows.all_flows():
            binding = flow_binding(row)
            sealed = self._vault.seal(binding, self._vault.unseal(binding, row.sealed))
            await self._rows.reseal_flow(row.flow_id, sealed)
            count += 1
        return count

    async def _link(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        flow: Flow,
        found: object,
        staged: StagedCredential,
        known: CallSecrets,
    ) -> AccountRow:
        result = flow_checks.checked_account(found, known)
        email = flow_checks.shown_name(result.metadata.get("account_email"))
        if capability.provider.rules.same_address:
            flow_checks.require_same_address(caller.actor, email)
        scope = CredentialScope(caller.user_id, capability.text, result.account_ref)
        payload: JsonObject | None = staged.payload
        if payload is None and result.credential_material:
            payload = {"credential_material": result.credential_material}
        await self._accounts.before_link(*scope, email)
        if payload is not None:
            await self._vault.put(scope, payload)
        return await self._accounts.link(
            caller.user_id,
            capability.text,
            result.account_ref,
            name=flow_checks.shown_name(result.metadata.get("account_name")),
            email=email,
            flow_id=flow.row.flow_id,
        )

    def _claim(self, flow_id: str) -> None:
        if flow_id in self._claimed:
            raise CapabilityAuthFlowInvalid(_INVALID)
        self._claimed.add(flow_id)

    def _remember(self, flow_id: str, now_ms: int, interval_s: int) -> None:
        if flow_id not in self._polls and len(self._polls) >= POLLS_REMEMBERED:
            self._polls.pop(next(iter(self._polls)))
        self._polls[flow_id] = (now_ms + interval_s * 1000, interval_s)


def _too_many() -> CapabilityRateLimited:
    return CapabilityRateLimited("too many auth flows are pending", retry_after_seconds=60)
