"""`check_bridge`: try a bridge out as a host would, and say what its author should know.

The bridge runs with a throw-away key, for people who do not exist; it is asked what it offers,
given tokens that it must not believe, and calls that it must refuse politely.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock
from kaged.base.checks import CheckStatus
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import Spawner
from kaged.services.contract import AuthBeginCall, CapabilityCallContext, InvokeCall
from kaged.services.errors import CapabilityError
from kaged.services.flow_checks import check_auth_url
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import BridgeSpec, bridge_env, find_program
from kaged.services.providers.bridge_process import BridgePlace, BridgeRunner
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.wire import envelope
from kaged.wire.bridge_methods import invoke_params, parse_definitions
from kaged.wire.token_keys import KEY_BYTES, TokenKey
from kaged.wire.tokens import RoutingClaims, bridge_audience, mint_token

SLOW_S: Final = 1.0
_BY_HAND: Final = (
    "give full paths (it starts in an empty directory), and run it by hand with a request on stdin"
)
_NOBODY: Final = CapabilityCallContext("kaged-check-nobody", chat_type="private")


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One thing that was tried, what came of it and what to do."""

    id: str
    verdict: CheckStatus
    detail: str
    fix: str = ""


@dataclass(slots=True)
class BridgeReport:
    """What a check found; `capabilities` are the ids that a host would offer."""

    rows: list[CheckedRow] = field(default_factory=list[CheckedRow])
    capabilities: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether a host can use the bridge."""
        return all(row.verdict is not CheckStatus.FAIL for row in self.rows)

    def add(self, id_: str, verdict: CheckStatus, detail: str, fix: str = "") -> None:
        """Note one outcome."""
        self.rows.append(CheckedRow(id_, verdict, detail, fix))

    def as_json(self) -> JsonObject:
        """Return the report for machines."""
        rows: list[JsonValue] = [
            {"id": one.id, "verdict": one.verdict.value, "detail": one.detail, "fix": one.fix}
            for one in self.rows
        ]
        return {"ok": self.ok, "capabilities": [*self.capabilities], "checks": rows}


async def check_bridge(
    command: Sequence[str],
    namespace: str,
    *,
    spawner: Spawner,
    environ: Mapping[str, str],
    env: Mapping[str, str],
    timeout_s: float = 30.0,
    clock: Clock | None = None,
) -> BridgeReport:
    """Try a bridge out. `env` is what its provider section would give it on top."""
    report = BridgeReport()
    spec = BridgeSpec(
        "check",
        namespace,
        tuple(command),
        timeout_s,
        env=tuple(env.items()),
        mode="cold",
    )
    with tempfile.TemporaryDirectory(prefix="kaged-bridge-") as folder:
        check = _Check(report, spec, spawner, environ, Path(folder), clock or SystemClock())
        try:
            await check.run()
        finally:
            await check.close()
    return report


class _Check:
    """One bridge under examination."""

    def __init__(
        self,
        report: BridgeReport,
        spec: BridgeSpec,
        spawner: Spawner,
        environ: Mapping[str, str],
        folder: Path,
        clock: Clock,
    ) -> None:
        self._report = report
        self._spec = spec
        self._clock = clock
        self._host_key = TokenKey(secrets.token_bytes(KEY_BYTES))
        self._key = self._host_key.for_bridge(spec.namespace)
        everybody = asyncio.Semaphore(4)
        self._provider = BridgeProvider(
            spec,
            self._host_key,
            spawner=spawner,
            everybody=everybody,
            clock=clock,
            environ=environ,
            directory=folder / "a",
        )
        self._environ = environ
        self._make_runner: Callable[[], BridgeRunner] = lambda: BridgeRunner(
            spec,
            BridgePlace(
                find_program(spec.command, environ),
                bridge_env(spec, environ, self._key.export_text()),
                folder / "b",
            ),
            spawner,
            everybody,
        )
        self._runner: BridgeRunner | None = None

    async def run(self) -> None:
        found = await self._offered()
        if not found:
            return
        await self._believes_nobody(found)
        await self._refuses_politely(found)
        for capability in found:
            await self._links(capability)

    async def close(self) -> None:
        await self._provider.close()
        if self._runner is not None:
            await self._runner.close()

    # -- the checks --------------------------------------------------------------------------------

    async def _offered(self) -> list[RegisteredCapability]:
        add = self._report.add
        began_s = self._clock.monotonic_s()
        try:
            answer = await self._ask("definitions", {})
        except KagedError as error:
            add("starts", CheckStatus.FAIL, error.message, _BY_HAND)
            return []
        took_s = self._clock.monotonic_s() - began_s
        slow = took_s > SLOW_S
        add(
            "starts",
            CheckStatus.WARN if slow else CheckStatus.OK,
            f"answered in {took_s * 1000:.0f} ms",
            "import less at the start, or support the persistent mode" if slow else "",
        )
        if isinstance(answer, envelope.BridgeFailure):
            add("definitions", CheckStatus.FAIL, f"{answer.code}: {answer.message}")
            return []
        try:
            parse_definitions(answer.result)
            registry = CapabilityRegistry(self._clock)
            await registry.register(self._provider)
        except KagedError as error:
            add("definitions", CheckStatus.FAIL, error.message, "see the reference of bridge-v1")
            return []
        found = list(registry.list())
        self._report.capabilities = [one.text for one in found]
        add("definitions", CheckStatus.OK, ", ".join(self._report.capabilities))
        for one in found:
            bare = [name for name, op in one.operations.items() if not op.spec.input_schema]
            if bare:
                add(
                    f"schemas.{one.text}",
                    CheckStatus.WARN,
                    f"no input schema: {', '.join(sorted(bare))}",
                    "with one the host refuses wrong input before the bridge is started",
                )
        return found

    async def _believes_nobody(self, found: list[RegisteredCapability]) -> None:
        """Offer tokens that say something and prove nothing."""
        capability, operation = _some_operation(found)
        good = self._token()
        foreign = TokenKey(secrets.token_bytes(KEY_BYTES))
        head, body, signature = good.split(".")
        bad = {
            "signed with another key": self._token(foreign),
            "altered": f"{head}.{body[:-2]}{'AA' if body[-2:] != 'AA' else 'BB'}.{signature}",
            "without a signature": f"{head}.{body}.",
            "missing": "",
        }
        believed: list[str] = []
        for name, token in bad.items():
            answer = await self._try(lambda token=token: self._invoke(capability, operation, token))
            if answer is None:
                return
            if not isinstance(answer, envelope.BridgeFailure):
                believed.append(name)
        self._report.add(
            "tokens",
            CheckStatus.FAIL if believed else CheckStatus.OK,
            f"believes a token that is {', '.join(believed)}" if believed else "checked",
            "check the signature with ASH_CONTEXT_TOKEN_SECRET before anything else"
            if believed
            else "",
        )

    async def _refuses_politely(self, found: list[RegisteredCapability]) -> None:
        """Ask for what is not there: an error in the envelope and exit 0 are wanted."""
        capability, _ = _some_operation(found)
        questions = {
            "unknown_operation": lambda: self._invoke(
                capability, "kaged_no_such_operation", self._token()
            ),
            "unknown_method": lambda: self._ask("kaged_no_such_method", {}),
        }
        add = self._report.add
        for row, ask in questions.items():
            answer = await self._try(ask)
            if isinstance(answer, envelope.BridgeFailure):
                add(row, CheckStatus.OK, answer.code, "")
            elif answer is not None:
                fix = "answer capability_invalid_input"
                add(row, CheckStatus.WARN, "answered as if it existed", fix)

    async def _links(self, capability: RegisteredCapability) -> None:
        needing = [name for name, one in capability.operations.items() if one.spec.requires_auth]
        if not needing:
            return
        add = self._report.add
        try:
            begun = await self._provider.auth_begin(AuthBeginCall(capability.text, None, _NOBODY))
            check_auth_url(begun.auth_url)
        except KagedError as error:
            add(f"auth_begin.{capability.text}", CheckStatus.FAIL, error.message, "see bridge-v1")
        else:
            add(f"auth_begin.{capability.text}", CheckStatus.OK, begun.flow_type)
        harmless = [name for name in needing if not capability.operations[name].spec.mutating]
        if not harmless:
            return
        answer = await self._try(lambda: self._provider.invoke(_nobodys(capability, harmless[0])))
        if answer is not None:
            add(
                f"isolation.{capability.text}",
                CheckStatus.WARN,
                f"{harmless[0]} answered for a person who never linked an account",
                "answer capability_auth_required for people whom the bridge does not know",
            )
        else:
            add(
                f"isolation.{capability.text}",
                CheckStatus.OK,
                "a person without an account gets nothing",
            )

    # -- own -------------------------------------------------------------------------------------

    async def _invoke(
        self, capability: RegisteredCapability, operation: str, token: str
    ) -> envelope.BridgeAnswer:
        params = invoke_params(
            capability.text,
            operation,
            input_data={},
            account_ref=None,
            idempotency_key=None,
            context_token=token,
        )
        return await self._ask("invoke", params)

    async def _ask(self, method: str, params: JsonObject) -> envelope.BridgeAnswer:
        if self._runner is None:
            self._runner = self._make_runner()
        request_id = envelope.bridge_request_id(secrets.randbits)
        request = envelope.BridgeRequest(request_id, self._spec.namespace, method, params)
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                said = await self._runner.exchange(envelope.encode_request(request))
        except TimeoutError:
            raise CapabilityError(f"no answer within {self._spec.timeout_s:.0f} s") from None
        return envelope.parse_answer(said, request_id)

    async def _try(
        self, ask: Callable[[], Awaitable[envelope.BridgeAnswer | JsonObject]]
    ) -> envelope.BridgeAnswer | JsonObject | None:
        """Ask; a refusal of the host's own is a None, a broken envelope a failed row as well."""
        try:
            return await ask()
        except envelope.EnvelopeViolation as error:
            self._report.add("envelope", CheckStatus.FAIL, error.message, "see bridge-v1")
        except CapabilityError as error:
            if error.code in {"capability_backend_unavailable", "capability_invalid_output"}:
                self._report.add(
                    "errors",
                    CheckStatus.WARN,
                    error.message,
                    "report errors in the envelope and exit with 0",
                )
        return None

    def _token(self, key: TokenKey | None = None) -> str:
        return mint_token(
            key or self._key,
            _NOBODY.user_id,
            clock=self._clock,
            routing=RoutingClaims(chat_type=_NOBODY.chat_type),
            audience=bridge_audience(self._spec.namespace),
        )


def _some_operation(found: list[RegisteredCapability]) -> tuple[RegisteredCapability, str]:
    """Choose an operation to try tokens on; one that changes nothing, if there is one."""
    for capability in found:
        for name, one in capability.operations.items():
            if not one.spec.mutating:
                return capability, name
    return found[0], "kaged_no_such_operation"


def _nobodys(capability: RegisteredCapability, operation: str) -> InvokeCall:
    return InvokeCall(
        capability_id=capability.text,
        operation=operation,
        input_data={},
        account_ref="acct_nobody",
        idempotency_key=None,
        context=_NOBODY,
        credentials=None,
        state=_NoState(),
    )


class _NoState:
    """Nothing is remembered about people who do not exist."""

    async def get(self, name: str, *, chat: bool = False) -> JsonObject | None:
        return None

    async def put(self, name: str, value: JsonObject, *, chat: bool = False) -> None:
        return

    async def delete(self, name: str, *, chat: bool = False) -> bool:
        return False
