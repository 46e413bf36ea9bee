"""First-party providers without a host around them: handles in memory, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from kaged.base import JsonObject
from kaged.config.jsonschemas import compile_schema
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    AuthPollCall,
    AuthPollResult,
    AuthRevokeCall,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    CapabilityCallContext,
    CapabilityProvider,
    InvokeCall,
    PollingProvider,
    RevokingProvider,
    StateHandle,
)
from kaged.services.sanitize import harden
from kaged.services.secret_search import CallSecrets, SecretForms

ANN = CapabilityCallContext("ann", chat_type="private")


class MemoryCredential:
    """The credential of one account, and how often it was renewed."""

    def __init__(self, held: JsonObject | None = None) -> None:
        self.held = held
        self.renewals = 0
        self._lock = asyncio.Lock()

    async def get(self) -> JsonObject | None:
        return None if self.held is None else dict(self.held)

    async def put(self, payload: JsonObject) -> None:
        self.held = dict(payload)

    async def delete(self) -> bool:
        there, self.held = self.held is not None, None
        return there

    async def refresh(
        self, stale: JsonObject, renew: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        async with self._lock:
            if self.held is not None and self.held != stale:
                return dict(self.held)
            self.held = await renew(dict(stale))
            self.renewals += 1
            return dict(self.held)


class ProviderLab:
    """Calls one provider as the host would; inputs and outputs are held against their schemas."""

    def __init__(self, provider: CapabilityProvider, name: str) -> None:
        self.provider = provider
        self.capability_id = f"{provider.namespace}.{name}"
        self.credential = MemoryCredential()

    async def begin(self, hint: str | None = None) -> CapabilityAuthBeginResult:
        return await self.provider.auth_begin(AuthBeginCall(self.capability_id, hint, ANN))

    async def complete(
        self, begun: CapabilityAuthBeginResult, code: str, hint: str | None = None
    ) -> CapabilityAuthCompleteResult:
        return await self.provider.auth_complete(
            AuthCompleteCall(
                capability_id=self.capability_id,
                account_hint=hint,
                flow_state=begun.flow_state,
                authorization_code=code,
                raw_callback_url=None,
                state=None,
                context=ANN,
                credentials=self.credential,
            )
        )

    async def poll(self, begun: CapabilityAuthBeginResult) -> AuthPollResult:
        assert isinstance(self.provider, PollingProvider)
        call = AuthPollCall(self.capability_id, None, begun.flow_state, ANN, self.credential)
        return await self.provider.auth_poll(call)

    async def revoke(self) -> bool:
        assert isinstance(self.provider, RevokingProvider)
        call = AuthRevokeCall(self.capability_id, "acct", ANN, self.credential)
        return await self.provider.auth_revoke(call)

    async def invoke(self, operation: str, /, key: str | None = None, **given: Any) -> Any:
        definitions = {one.id: one for one in await self.provider.definitions()}
        spec = definitions[self.capability_id].operations[operation]
        compile_schema(spec.input_schema).validate(given)
        output = await self.provider.invoke(
            InvokeCall(
                capability_id=self.capability_id,
                operation=operation,
                input_data=given,
                account_ref="acct",
                idempotency_key=key,
                context=ANN,
                credentials=self.credential,
                state=cast("StateHandle", None),
            )
        )
        compile_schema(spec.output_schema).validate(output)
        # SC-PROV-07: nothing a provider answers holds a credential, by its name or by its value.
        held = (self.credential.held or {}).get("password", "")
        harden(output, secrets=CallSecrets(SecretForms.of([str(held)])))
        return output
