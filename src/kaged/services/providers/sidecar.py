"""`SidecarProvider`: a bridge whose processes live on: one per person and capability, on loopback.

A browser with a person's cookies, a client that holds a connection: what such a program knows of
one person is in a process that nobody else's calls reach. The host starts it, checks it, and asks
it with tokens that name the person and the capability; the key of one sidecar is no other's.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from kaged.base import Clock, JsonObject
from kaged.services import contract
from kaged.services.providers.bridge import BridgeProvider, offered
from kaged.services.providers.bridge_command import BridgeSpec, bridge_env
from kaged.services.providers.bridge_process import BridgePlace, BridgeRunner
from kaged.services.providers.sidecar_processes import Sidecar, SidecarProcesses
from kaged.services.secret_search import CallSecrets
from kaged.wire import bridge_methods as wire
from kaged.wire import envelope
from kaged.wire.sidecar_identity import SIDECAR_VARIABLE, SidecarIdentity
from kaged.wire.token_keys import TokenKey

_HOST: Final = "host"
_DEFINITIONS: Final = "definitions"


class SidecarProvider(BridgeProvider):
    """Offers what a sidecar program offers."""

    def __init__(
        self, spec: BridgeSpec, key: TokenKey, *, clock: Clock, idle_s: float, **place: Any
    ) -> None:
        super().__init__(spec, key, clock=clock, **place)
        self._processes = SidecarProcesses(self._sidecar, spec.max_concurrency, idle_s)

    async def definitions(self) -> list[contract.CapabilityDefinition]:
        """Ask a sidecar that serves nobody what there is; it is ended afterwards."""
        sidecar = self._sidecar(self._identity(_HOST, _DEFINITIONS))
        request_id = envelope.bridge_request_id(secrets.randbits)
        try:
            said = await sidecar.ask(self._request(request_id, envelope.BridgeMethod.DEFINITIONS))
        finally:
            await sidecar.close()
        answer = self._read(lambda: envelope.parse_answer(said, request_id))
        result = self._result(answer, "", sidecar.identity.key)
        return offered(self._read(lambda: wire.parse_definitions(result)))

    async def close(self) -> None:
        """End its processes."""
        await self._processes.close()

    # ---- own

    async def _ask(
        self, method: envelope.BridgeMethod, params: JsonObject, token: str, person: str
    ) -> JsonObject:
        identity = self._identity(f"user:{person}", str(params["capability_id"]))
        request_id = envelope.bridge_request_id(secrets.randbits)
        request = self._request(request_id, method, params)
        said = await self._processes.exchange(identity, request)
        answer = self._read(lambda: envelope.parse_answer(said, request_id))
        return self._result(answer, token, identity.key)

    def _key_for(self, user_id: str, capability_id: str) -> TokenKey:
        return self._identity(f"user:{user_id}", capability_id).key

    def _identity(self, scope: str, target: str) -> SidecarIdentity:
        return SidecarIdentity.derived(self.namespace, scope, target, self._key)

    def _request(
        self, request_id: str, method: envelope.BridgeMethod, params: JsonObject | None = None
    ) -> bytes:
        request = envelope.BridgeRequest(request_id, self.namespace, method, params or {})
        return envelope.encode_request(request)

    def _sidecar(self, identity: SidecarIdentity) -> Sidecar:
        spec = self._spec
        command = self._program()
        known = CallSecrets(self._secrets)
        known.learn(identity.key.export_text())
        env = bridge_env(spec, self._environ, identity.key.export_text())
        named = tuple((name, one) for name, one in env if name != SIDECAR_VARIABLE)
        place = BridgePlace(
            command, (*named, (SIDECAR_VARIABLE, identity.text)), self._directory / identity.id
        )
        return Sidecar(
            identity,
            BridgeRunner(spec, place, self._spawner, self._everybody),
            self._clock,
            timeout_s=spec.timeout_s,
            limit_bytes=spec.max_output_bytes,
            secrets=known,
        )
