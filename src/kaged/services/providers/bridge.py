"""`BridgeProvider`: a program of the operator that holds accounts, spoken to in bridge-v1.

Programs of both generations work unmodified. A bridge gets a key of its own, derived one-way from
the host's: it can check the tokens made for it, and make none for the host or another bridge.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kaged.audit.credentials import REDACTED
from kaged.base import Clock, JsonObject
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.services import contract
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
    is_own_code,
    provider_error,
)
from kaged.services.known_secrets import configured_secrets
from kaged.services.providers.bridge_command import (
    BridgeSpec,
    bridge_env,
    find_program,
    open_to_others,
)
from kaged.services.providers.bridge_fields import (
    PAGE,
    BridgeFieldFlows,
    page_of,
    typed_values,
)
from kaged.services.providers.bridge_persistent import PersistentBridge
from kaged.services.providers.bridge_process import BridgePlace, BridgeRunner
from kaged.services.providers.linkpage import LinkPage
from kaged.services.secret_search import CallSecrets, SecretForms
from kaged.wire import bridge_methods as wire
from kaged.wire import envelope
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, bridge_audience, bridge_ttl_s, mint_token

T = TypeVar("T")

PERSISTENT: Final = "persistent"

_log = get_logger("kaged.services")


class BridgeProvider:
    """Offers what a bridge program offers."""

    def __init__(
        self,
        spec: BridgeSpec,
        key: TokenKey,
        *,
        spawner: Spawner,
        everybody: asyncio.Semaphore,
        clock: Clock,
        environ: Mapping[str, str],
        directory: Path,
        page: LinkPage | None = None,
    ) -> None:
        self._spec = spec
        self._key = key.for_bridge(spec.namespace)
        self._clock = clock
        self._environ = environ
        self._directory = directory
        self._spawner = spawner
        self._everybody = everybody
        self._command: tuple[str, ...] | None = None
        self._runner: BridgeRunner | None = None
        self._persistent: PersistentBridge | None = None
        self._field_flows = BridgeFieldFlows(page, self._submit)
        hidden = configured_secrets(dict(spec.env))
        self._secrets = SecretForms.of((self._key.export_text(), *hidden))

    @property
    def namespace(self) -> str:
        """The namespace that the operator gave it."""
        return self._spec.namespace

    @property
    def most_running(self) -> int:
        """The most processes that ran for it at one time."""
        return 0 if self._runner is None else self._runner.most

    async def definitions(self) -> list[contract.CapabilityDefinition]:
        """Ask the bridge what it offers; it gets no caller's context for that."""
        runner = self._place()
        answer = await self._one_shot(runner, envelope.BridgeMethod.DEFINITIONS, {})
        found = self._read(lambda: wire.parse_definitions(answer))
        if self._spec.mode == PERSISTENT:
            if PERSISTENT in found.features:
                self._persistent = self._persistent or PersistentBridge(
                    runner, self._spec.max_output_bytes, self._spec.max_concurrency
                )
            else:
                _log.warning("bridge.not_persistent", provider=self._spec.name)
        return offered(found)

    async def auth_begin(self, call: contract.AuthBeginCall) -> contract.CapabilityAuthBeginResult:
        """Start linking an account."""
        token = self._token(call.context, call.capability_id)
        params = wire.auth_begin_params(call.capability_id, call.account_hint, token)
        answer = await self._ask(
            envelope.BridgeMethod.AUTH_BEGIN, params, token, call.context.user_id
        )
        begun = self._read(lambda: wire.parse_auth_begun(answer))
        if PAGE in begun.flow_state:
            raise CapabilityInvalidOutput("the bridge's flow state holds a member of the host's")
        if begun.fields:
            return await self._field_flows.begin(call, begun)
        said = asdict(begun)
        del said["fields"]
        expires_at = said.pop("expires_at")
        expires_at_ms = None if expires_at is None else parse_moment(expires_at)
        return contract.CapabilityAuthBeginResult(**said, expires_at_ms=expires_at_ms)

    async def auth_complete(
        self, call: contract.AuthCompleteCall
    ) -> contract.CapabilityAuthCompleteResult:
        """Finish linking an account; both generations find their own names in the params."""
        page = page_of(call.flow_state)
        if page is not None:
            return await self._field_flows.complete(call, page)
        token = self._token(call.context, call.capability_id)
        params = wire.auth_complete_params(
            call.capability_id,
            flow_state=call.flow_state,
            authorization_code=call.authorization_code,
            raw_callback_url=call.raw_callback_url,
            state=call.state,
            account_hint=call.account_hint,
            context_token=token,
        )
        answer = await self._ask(
            envelope.BridgeMethod.AUTH_COMPLETE, params, token, call.context.user_id
        )
        linked = self._read(lambda: wire.parse_account_linked(answer))
        return contract.CapabilityAuthCompleteResult(**asdict(linked))

    async def auth_submit(
        self, call: contract.AuthSubmitCall
    ) -> contract.CapabilityAuthCompleteResult:
        """Finish linking an account with what a person typed in."""
        return await self._field_flows.submit(call)

    async def auth_resume(self, call: contract.AuthResumeCall) -> bool:
        """Open the page of a flow again after a restart; other pages are the bridge's own."""
        page = page_of(call.flow_state)
        return page is None or await self._field_flows.resume(call, page)

    def auth_cancel(self, call: contract.AuthResumeCall) -> None:
        """Close the page of a flow, where it is ours."""
        page = page_of(call.flow_state)
        if page is not None:
            self._field_flows.cancel(page)

    async def auth_poll(self, call: contract.AuthPollCall) -> contract.AuthPollResult:
        """Ask whether the person has agreed on another device."""
        token = self._token(call.context, call.capability_id)
        params = wire.auth_poll_params(call.capability_id, call.flow_state, token)
        answer = await self._ask(
            envelope.BridgeMethod.AUTH_POLL, params, token, call.context.user_id
        )
        found = self._read(lambda: wire.parse_auth_polled(answer))
        if isinstance(found, wire.AuthPending):
            return contract.CapabilityAuthPending(found.retry_after_s)
        return contract.CapabilityAuthCompleteResult(**asdict(found))

    async def auth_revoke(self, call: contract.AuthRevokeCall) -> bool:
        """Notify the bridge of a revoked account; False when it knows no such method."""
        token = self._token(call.context, call.capability_id)
        typed = await typed_values(call.credentials)
        params = wire.auth_revoke_params(call.capability_id, call.account_ref, token, typed)
        try:
            await self._ask(envelope.BridgeMethod.AUTH_REVOKE, params, token, call.context.user_id)
        except CapabilityInvalidInput:
            return False
        return True

    async def invoke(self, call: contract.InvokeCall) -> JsonObject:
        """Run one operation."""
        token = self._token(call.context, call.capability_id)
        params = wire.invoke_params(
            call.capability_id,
            call.operation,
            input_data=call.input_data,
            account_ref=call.account_ref,
            idempotency_key=call.idempotency_key,
            context_token=token,
            credentials=await typed_values(call.credentials),
        )
        return wire.parse_invoked(
            await self._ask(envelope.BridgeMethod.INVOKE, params, token, call.context.user_id)
        )

    async def close(self) -> None:
        """End its processes."""
        if self._persistent is not None:
            await self._persistent.close()
        if self._runner is not None:
            await self._runner.close()

    # ---- own

    async def _submit(
        self,
        capability_id: str,
        flow_state: JsonObject,
        values: dict[str, str],
        hint: str | None,
        context: contract.CapabilityCallContext,
    ) -> wire.AccountLinked:
        token = self._token(context, capability_id)
        params = wire.auth_submit_params(
            capability_id,
            flow_state=flow_state,
            values=values,
            account_hint=hint,
            context_token=token,
        )
        method = envelope.BridgeMethod.AUTH_SUBMIT
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                answer = await self._ask(method, params, token, context.user_id)
        except TimeoutError:
            raise CapabilityBackendUnavailable("The service did not answer in time.") from None
        return self._read(lambda: wire.parse_account_linked(answer))

    def _place(self) -> BridgeRunner:
        """Find the program, once; a missing one is looked for again on every call."""
        if self._runner is None:
            command = self._program()
            env = bridge_env(self._spec, self._environ, self._key.export_text())
            self._runner = BridgeRunner(
                self._spec,
                BridgePlace(command, env, self._directory),
                self._spawner,
                self._everybody,
                secrets=CallSecrets(self._secrets),
            )
        return self._runner

    def _program(self) -> tuple[str, ...]:
        if self._command is None:
            command = find_program(self._spec.command, self._environ)
            weak = open_to_others(command[0])
            if weak is not None:
                _log.warning("bridge.writable_by_others", provider=self._spec.name, path=weak)
            _log.info("bridge.found", provider=self._spec.name, program=command[0])
            self._command = command
        return self._command

    async def _ask(
        self, method: envelope.BridgeMethod, params: JsonObject, token: str, person: str
    ) -> JsonObject:
        runner = self._place()
        if self._persistent is None:
            return await self._one_shot(runner, method, params, token)
        request_id = envelope.bridge_request_id(secrets.randbits)
        request = envelope.BridgeRequest(request_id, self.namespace, method, params)
        answer = await self._persistent.exchange(
            person, request_id, envelope.encode_request(request)
        )
        return self._result(answer, token)

    async def _one_shot(
        self,
        runner: BridgeRunner,
        method: envelope.BridgeMethod,
        params: JsonObject,
        token: str = "",
    ) -> JsonObject:
        request_id = envelope.bridge_request_id(secrets.randbits)
        request = envelope.BridgeRequest(request_id, self.namespace, method, params)
        said = await runner.exchange(envelope.encode_request(request))
        return self._result(self._read(lambda: envelope.parse_answer(said, request_id)), token)

    def _result(
        self, answer: envelope.BridgeAnswer, token: str, key: TokenKey | None = None
    ) -> JsonObject:
        secrets = CallSecrets(self._secrets)
        if token:
            secrets.learn(token, token.rpartition(".")[2])
        if key is not None:
            secrets.learn(key.export_text())
        if isinstance(answer, envelope.BridgeFailure):
            whole = answer.whole_code
            leaks = not is_own_code(whole) and secrets.found_in_text(whole)
            code = envelope.BACKEND_UNAVAILABLE if leaks else answer.code
            error = provider_error(code, secrets.scrub(answer.whole_message))
            if answer.original_code is not None:
                error.noted["bridge.error_code"] = REDACTED if leaks else answer.original_code
            raise error
        if secrets.found_in(msgspec.json.encode(answer.result)):
            raise CapabilityInvalidOutput("the bridge's answer holds a secret of the host")
        return answer.result

    def _read(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except envelope.EnvelopeViolation as error:
            raise CapabilityInvalidOutput(error.message) from None

    def _key_for(self, user_id: str, capability_id: str) -> TokenKey:
        """Return the key that tokens for a call are signed with; all calls share one here."""
        return self._key

    def _token(self, context: contract.CapabilityCallContext, capability_id: str) -> str:
        if not context.user_id.strip():
            raise CapabilityInvalidInput("a capability call needs a user")
        claims = asdict(context)
        user_id: str = claims.pop("user_id")
        return mint_token(
            self._key_for(user_id, capability_id),
            user_id,
            clock=self._clock,
            routing=RoutingClaims(**claims),
            audience=bridge_audience(self.namespace),
            ttl_s=bridge_ttl_s(int(self._spec.timeout_s)),
        )


def offered(found: wire.Definitions) -> list[contract.CapabilityDefinition]:
    """Return what a program says that it offers, as the host takes it."""
    return [
        contract.CapabilityDefinition(
            id=entry.id,
            description=entry.description,
            sensitive=entry.sensitive,
            allowed_chat_types=list(entry.allowed_chat_types),
            operations={
                one.name: contract.CapabilityOperation(**asdict(one)) for one in entry.operations
            },
        )
        for entry in found.entries
    ]


def parse_moment(text: str) -> int:
    """Read a time that a bridge wrote, in milliseconds; without a zone it is UTC.

    Raises:
        CapabilityInvalidOutput: it is no ISO 8601 time.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise CapabilityInvalidOutput("the bridge gave an expiry that is no time") from None
