"""`AccountLinking`: the methods with which a person links, lists and takes back accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.kernel.service_ids import parse_service_id
from kaged.services.account_sharing import AccountSharing, shared_json
from kaged.services.accounts import Accounts, account_json
from kaged.services.admission import CallerAdmission, fault_of
from kaged.services.authflow import AuthFlows
from kaged.services.callback import read_completion
from kaged.services.caller import ServiceCaller
from kaged.services.connection_health import ConnectionHealth
from kaged.services.contract import CapabilityAuthPending, CapabilityCallContext
from kaged.services.errors import (
    CapabilityAuthFlowInvalid,
    CapabilityError,
    CapabilityNotFound,
)
from kaged.services.flow import Flow, asked_json, flow_json
from kaged.services.params import (
    capability_param,
    flag_param,
    name_param,
    optional_capability,
    required_param,
    text_param,
)
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.services.trail import Record
from kaged.store.service_rows import AccountRow

# Both ways to complete a flow are one event.
_EVENTS: Final = {
    "auth.begin": "capability_auth_begin",
    "auth.complete": "capability_auth_complete",
    "auth.complete_callback": "capability_auth_complete",
    "auth.poll": "capability_auth_poll",
    "auth.cancel": "capability_auth_cancel",
    "auth.revoke": "capability_auth_revoke",
}


CallerProof: TypeAlias = "JsonValue | ServiceCaller"
"""What a caller shows: a token, or, inside the host, that it was verified already."""


class AccountLinking:
    """Answers `capability.list` and `capability.auth.*`."""

    def __init__(
        self,
        admission: CallerAdmission,
        registry: CapabilityRegistry,
        accounts: Accounts,
        flows: AuthFlows,
        health: ConnectionHealth,
        sharing: AccountSharing,
    ) -> None:
        self._admission = admission
        self._registry = registry
        self._accounts = accounts
        self._flows = flows
        self._health = health
        self._sharing = sharing

    async def list(self, token: JsonValue, params: JsonObject) -> JsonObject:
        """Return what the caller may use here and now."""
        caller, params = self._admission.admit("capability.list", token, params)
        everything = flag_param(params, "include_unavailable")
        detailed = flag_param(params, "include_operations")
        rows: list[JsonValue] = []
        for capability in self._registry.list():
            available = self._admission.is_available(caller, capability)
            if available or everything:
                rows.append(await self._row(caller, capability, available, detailed=detailed))
        return {"capabilities": rows}

    async def auth_begin(
        self, token: CallerProof, params: JsonObject, *, with_fields: bool = False
    ) -> JsonObject:
        """Start linking an account; `with_fields` only for a person who may fill them in."""
        async with self._recorded("auth.begin", token, params) as (record, caller, given):
            wanted = capability_param(given)
            capability = await self._admission.pass_gates(record, caller, wanted)
            hint = name_param(given, "account_hint")
            record.gate = "provider"
            flow = await self._flows.begin(caller, capability, hint)
            record.note_flow(flow.row.flow_id)
            return asked_json(flow) if with_fields else flow_json(flow)

    async def auth_list(self, token: JsonValue, params: JsonObject) -> JsonObject:
        """Return the caller's pending flows, where the caller may still use what they lead to."""
        caller, params = self._admission.admit("capability.auth.list", token, params)
        wanted = optional_capability(params)
        hint = name_param(params, "account_hint")
        found = await self._flows.pending(caller, wanted.text if wanted else None, hint)
        shown: list[JsonValue] = []
        for flow in found:
            capability = self._registry.get(flow.row.capability_id)
            if capability is not None and self._admission.is_available(caller, capability):
                shown.append(flow_json(flow))
        return {"flows": shown}

    async def auth_complete(self, token: CallerProof, params: JsonObject) -> JsonObject:
        """Finish linking an account with what the person brought back."""
        async with self._recorded("auth.complete", token, params) as (record, caller, given):
            flow = await self._named_flow(record, caller, given)
            account = await self._complete(record, caller, flow, given)
            return {"ok": True, "account_ref": account.account_ref}

    async def auth_submit(
        self, caller: ServiceCaller, params: JsonObject, values: dict[str, str]
    ) -> JsonObject:
        """Finish linking an account with what a person typed in; no method of sandboxes."""
        async with self._recorded("auth.complete", caller, params) as (record, known, given):
            flow = await self._named_flow(record, known, given)
            capability = await self._gates_of(record, known, flow)
            record.gate = "provider"
            account = await self._flows.submit(known, capability, flow, values)
            record.note("account_ref", account.account_ref)
            await self._health.ended(account)
            return {"ok": True, "account_ref": account.account_ref}

    async def auth_complete_callback(self, token: JsonValue, params: JsonObject) -> JsonObject:
        """Finish the flow that a callback belongs to."""
        async with self._recorded("auth.complete_callback", token, params) as call:
            record, caller, given = call
            record.gate = "flow"
            wanted = optional_capability(given)
            completion = read_completion(
                text_param(given, "callback_url"), text_param(given, "code")
            )
            flow = await self._flows.find_for(
                caller,
                completion.state,
                wanted.text if wanted else None,
                name_param(given, "account_hint"),
            )
            record.note_flow(flow.row.flow_id)
            account = await self._complete(record, caller, flow, given)
            return {
                "ok": True,
                "account_ref": account.account_ref,
                "flow_id": flow.row.flow_id,
                "capability": flow.row.capability_id,
                "account_hint": flow.row.account_hint,
            }

    async def auth_poll(self, token: CallerProof, params: JsonObject) -> JsonObject:
        """Ask whether a device flow has been agreed to."""
        async with self._recorded("auth.poll", token, params) as (record, caller, given):
            flow = await self._named_flow(record, caller, given)
            capability = await self._gates_of(record, caller, flow)
            record.gate = "provider"
            found = await self._flows.poll(caller, capability, flow)
            if isinstance(found, CapabilityAuthPending):
                return {"status": "pending", "retry_after_seconds": found.retry_after_s}
            record.note("account_ref", found.account_ref)
            await self._health.ended(found)
            return {"ok": True, "account_ref": found.account_ref}

    async def auth_cancel(self, token: CallerProof, params: JsonObject) -> JsonObject:
        """End one of the caller's flows; it can be begun anew. Also where its provider is gone."""
        async with self._recorded("auth.cancel", token, params) as (record, caller, given):
            flow = await self._named_flow(record, caller, given)
            record.note("capability.id", flow.row.capability_id)
            await self._flows.cancel(self._registry.get(flow.row.capability_id), flow)
            return {"ok": True, "flow_id": flow.row.flow_id}

    async def auth_revoke(self, token: JsonValue, params: JsonObject) -> JsonObject:
        """Take one of the caller's accounts back."""
        async with self._recorded("auth.revoke", token, params) as (record, caller, given):
            wanted = capability_param(given)
            capability = await self._admission.pass_gates(record, caller, wanted)
            record.gate = "account"
            ref = required_param(given, "account_ref")
            account = await self._accounts.choose(caller.user_id, capability.text, ref, needed=True)
            assert account is not None
            record.note("account_ref", account.account_ref)
            record.gate = "provider"
            told = await self._flows.revoke(caller.context, capability, account)
            await self._health.ended(account)
            return {"ok": True, "account_ref": account.account_ref, "provider_revoked": told}

    async def revoke_any(self, user_id: str, capability_id: str, account_ref: str) -> bool | None:
        """Take any account back for the operator; None when there is no such account."""
        for account in await self._accounts.of(user_id, capability_id):
            if account.account_ref == account_ref:
                capability = self._registry.get(capability_id)
                context = CapabilityCallContext(user_id)
                told = await self._flows.revoke(context, capability, account)
                await self._health.ended(account)
                return told
        return None

    # ---- own

    async def _named_flow(self, record: Record, caller: ServiceCaller, params: JsonObject) -> Flow:
        record.gate = "flow"
        flow_id = required_param(params, "flow_id")
        record.note_flow(flow_id)
        return await self._flows.find(caller, flow_id)

    async def _complete(
        self, record: Record, caller: ServiceCaller, flow: Flow, params: JsonObject
    ) -> AccountRow:
        capability = await self._gates_of(record, caller, flow)
        record.gate = "callback"
        try:
            completion = read_completion(
                text_param(params, "callback_url"), text_param(params, "code")
            )
        except CapabilityError as error:
            await self._flows.failed(flow.row.flow_id, error)
            raise
        record.gate = "provider"
        account = await self._flows.complete(caller, capability, flow, completion)
        record.note("account_ref", account.account_ref)
        await self._health.ended(account)
        return account

    async def _gates_of(
        self, record: Record, caller: ServiceCaller, flow: Flow
    ) -> RegisteredCapability:
        record.note("capability.id", flow.row.capability_id)
        gate = record.gate
        try:
            return await self._admission.pass_gates(
                record, caller, parse_service_id(flow.row.capability_id)
            )
        except CapabilityNotFound:
            record.gate = gate
            raise CapabilityAuthFlowInvalid(
                "the provider of this flow is no longer available"
            ) from None

    @asynccontextmanager
    async def _recorded(
        self, method: str, token: CallerProof, params: JsonObject
    ) -> AsyncGenerator[tuple[Record, ServiceCaller, JsonObject]]:
        """Let a caller in and write the record of what happens within the context."""
        caller, params = self._admission.admit(f"capability.{method}", token, params)
        record = self._admission.record(_EVENTS[method], caller)
        try:
            yield record, caller, params
        except CapabilityError as error:
            error.data.setdefault("request_id", record.request_id)
            await record.failed(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # boundary, as in invoke
            fault = fault_of(record, error)
            fault.data.setdefault("request_id", record.request_id)
            await record.failed(fault)
            raise fault from error
        await record.ok()

    async def _row(
        self,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        available: bool,
        *,
        detailed: bool,
    ) -> JsonObject:
        # Where it cannot be used nobody learns what is linked (SC-RPC-14).
        accounts = await self._accounts.of(caller.user_id, capability.text) if available else ()
        shared = await self._sharing.offered_to(caller, capability) if available else ()
        types = capability.chat_types
        row: JsonObject = {
            "id": capability.text,
            "description": capability.description,
            "sensitive": capability.sensitive,
            "allowed_chat_types": [] if types is None else [*sorted(types)],
            "available": available,
            "requires_auth": capability.requires_auth,
            "authenticated": bool(accounts),
            "linked_accounts": [
                account_json(one, locked=self._flows.is_locked(one)) for one in accounts
            ],
            "operations": [*sorted(capability.operations)],
        }
        if shared:
            row["shared_accounts"] = [shared_json(one) for one in shared]
        if detailed:
            row["operation_details"] = [
                {
                    "name": name,
                    "description": one.spec.description,
                    "requires_auth": one.spec.requires_auth,
                    "mutating": one.spec.mutating,
                    "input_schema": one.spec.input_schema,
                    "output_schema": one.spec.output_schema,
                }
                for name, one in sorted(capability.operations.items())
            ]
        return row
