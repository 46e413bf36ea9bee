"""`check_bridge`, `check_sidecar`: try one out as a host would, and tell its author what to know.

The bridge runs with a throw-away key, for people who do not exist; it is asked what it offers,
given tokens that it must not believe, and calls that it must refuse politely. A sidecar has to
listen on loopback only, and to refuse whoever has no token of its own, before it is asked anything.
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
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.sidecar import SidecarProvider
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.wire import envelope
from kaged.wire.bridge_methods import invoke_params, parse_definitions
from kaged.wire.token_keys import KEY_BYTES, TokenKey
from kaged.wire.tokens import RoutingClaims, bridge_audience, mint_token

SLOW_S: Final = 1.0
BY_HAND: Final = (
    "give full paths (it starts in an empty directory), and run it by hand with a request on stdin"
)
_FAULTS: Final = frozenset({"capability_backend_unavailable", "capability_invalid_output"})
_NOBODY: Final = CapabilityCallContext("kaged-check-nobody", chat_type="private")
_IDLE_S: Final = 60.0
_FIRST_LINE: Final = 'print {"port": NUMBER} as the first line of standard output, and flush it'
_FIXES: Final = (
    ("before it said where it is", f"{_FIRST_LINE}; then serve until standard input ends"),
    ("first line is not", f"{_FIRST_LINE}; anything else goes to standard error"),
    ("said nothing", f"{_FIRST_LINE}, as soon as it listens"),
    (
        "not listen at the port",
        "listen in the process that was started, before the line is printed",
    ),
    ("beyond loopback", "bind to 127.0.0.1, not to 0.0.0.0 or ::"),
    (
        "without its token",
        "answer 401 on every path to a token that the sidecar's key did not sign for ASH_SIDECAR",
    ),
    ("refusals differ", "answer every refused request with the same status and the same body"),
)
"""Part of what the host says of a sidecar that it does not use, and what its author can do."""


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
        self._page = LinkPage(clock)
        self._provider = BridgeProvider(
            spec,
            self._host_key,
            spawner=spawner,
            everybody=everybody,
            clock=clock,
            environ=environ,
            directory=folder / "a",
            page=self._page,
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
            await check_links(self._report, self._provider, capability)

    async def close(self) -> None:
        await self._provider.close()
        await self._page.close()
        if self._runner is not None:
            await self._runner.close()

    # -- the checks --------------------------------------------------------------------------------

    async def _offered(self) -> list[RegisteredCapability]:
        add = self._report.add
        began_s = self._clock.monotonic_s()
        try:
            answer = await self._ask("definitions", {})
        except KagedError as error:
            add("starts", CheckStatus.FAIL, error.message, BY_HAND)
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
        note_schemas(self._report, found)
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
            answer = await try_call(
                self._report, lambda token=token: self._invoke(capability, operation, token)
            )
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
            answer = await try_call(self._report, ask)
            if isinstance(answer, envelope.BridgeFailure):
                add(row, CheckStatus.OK, answer.code, "")
            elif answer is not None:
                fix = "answer capability_invalid_input"
                add(row, CheckStatus.WARN, "answered as if it existed", fix)

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

    def _token(self, key: TokenKey | None = None) -> str:
        return mint_token(
            key or self._key,
            _NOBODY.user_id,
            clock=self._clock,
            routing=RoutingClaims(chat_type=_NOBODY.chat_type),
            audience=bridge_audience(self._spec.namespace),
        )


def note_schemas(report: BridgeReport, found: list[RegisteredCapability]) -> None:
    """Note operations whose input only the program itself can check."""
    for one in found:
        bare = [name for name, op in one.operations.items() if not op.spec.input_schema]
        if bare:
            report.add(
                f"schemas.{one.text}",
                CheckStatus.WARN,
                f"no input schema: {', '.join(sorted(bare))}",
                "with one the host refuses wrong input before the bridge is started",
            )


async def check_links(
    report: BridgeReport, provider: BridgeProvider, capability: RegisteredCapability
) -> None:
    """Begin to link an account, and call for somebody who has none."""
    needing = [name for name, one in capability.operations.items() if one.spec.requires_auth]
    if not needing:
        return
    add = report.add
    try:
        begun = await provider.auth_begin(AuthBeginCall(capability.text, None, _NOBODY))
        check_auth_url(begun.auth_url)
    except KagedError as error:
        add(f"auth_begin.{capability.text}", CheckStatus.FAIL, error.message, "see bridge-v1")
    else:
        add(f"auth_begin.{capability.text}", CheckStatus.OK, begun.flow_type)
    harmless = [name for name in needing if not capability.operations[name].spec.mutating]
    if not harmless:
        return
    # Without an input that it needs, an operation may fail in any way: that is no fault to note.
    free = [
        name
        for name in harmless
        if not capability.operations[name].spec.input_schema.get("required")
    ]
    chosen = (free or harmless)[0]
    asked = nobodys(capability, chosen)
    answer = await try_call(report, lambda: provider.invoke(asked), note_faults=bool(free))
    if answer is not None:
        add(
            f"isolation.{capability.text}",
            CheckStatus.WARN,
            f"{chosen} answered for a person who never linked an account",
            "answer capability_auth_required for people whom the bridge does not know",
        )
    else:
        add(
            f"isolation.{capability.text}",
            CheckStatus.OK,
            "a person without an account gets nothing",
        )


async def try_call(
    report: BridgeReport,
    ask: Callable[[], Awaitable[envelope.BridgeAnswer | JsonObject]],
    *,
    note_faults: bool = True,
) -> envelope.BridgeAnswer | JsonObject | None:
    """Ask; a refusal of the host's own is a None, a broken envelope a failed row as well."""
    try:
        return await ask()
    except envelope.EnvelopeViolation as error:
        report.add("envelope", CheckStatus.FAIL, error.message, "see bridge-v1")
    except CapabilityError as error:
        if note_faults and error.code in _FAULTS:
            report.add(
                "errors",
                CheckStatus.WARN,
                error.message,
                "report errors in the envelope and exit with 0",
            )
    return None


def _some_operation(found: list[RegisteredCapability]) -> tuple[RegisteredCapability, str]:
    """Choose an operation to try tokens on; one that changes nothing, if there is one."""
    for capability in found:
        for name, one in capability.operations.items():
            if not one.spec.mutating:
                return capability, name
    return found[0], "kaged_no_such_operation"


def nobodys(capability: RegisteredCapability, operation: str) -> InvokeCall:
    """Return a call for a person who does not exist."""
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


async def check_sidecar(
    command: Sequence[str],
    namespace: str,
    *,
    spawner: Spawner,
    environ: Mapping[str, str],
    env: Mapping[str, str],
    timeout_s: float = 30.0,
) -> BridgeReport:
    """Try a sidecar out. `env` is what its provider section would give it on top."""
    report, clock = BridgeReport(), SystemClock()
    spec = BridgeSpec("check", namespace, tuple(command), timeout_s, env=tuple(env.items()))
    page = LinkPage(clock)
    with tempfile.TemporaryDirectory(prefix="kaged-sidecar-") as folder:
        provider = SidecarProvider(
            spec,
            TokenKey(secrets.token_bytes(KEY_BYTES)),
            spawner=spawner,
            everybody=asyncio.Semaphore(4),
            clock=clock,
            environ=environ,
            directory=Path(folder),
            page=page,
            idle_s=_IDLE_S,
        )
        try:
            for capability in await _offered(report, provider, timeout_s):
                await _refuses_politely(report, provider, capability)
                await check_links(report, provider, capability)
        finally:
            await provider.close()
            await page.close()
    return report


async def _offered(
    report: BridgeReport, provider: SidecarProvider, timeout_s: float
) -> list[RegisteredCapability]:
    """Start one that serves nobody, and ask it what there is once it has shown its guard."""
    registry = CapabilityRegistry(SystemClock())
    try:
        async with asyncio.timeout(timeout_s):
            await provider.definitions()
    except TimeoutError:
        said = f"it said nothing within {timeout_s:.0f} s"
        report.add("guarded", CheckStatus.FAIL, said, _fix_of(said))
        return []
    except KagedError as error:
        report.add("guarded", CheckStatus.FAIL, error.message, _fix_of(error.message))
        return []
    report.add(
        "guarded", CheckStatus.OK, "on loopback, and refuses whoever has no token of its own"
    )
    try:
        await registry.register(provider)
    except KagedError as error:
        report.add("definitions", CheckStatus.FAIL, error.message, "see the reference of bridge-v1")
        return []
    found = list(registry.list())
    report.capabilities = [one.text for one in found]
    report.add("definitions", CheckStatus.OK, ", ".join(report.capabilities))
    note_schemas(report, found)
    return found


async def _refuses_politely(
    report: BridgeReport, provider: SidecarProvider, capability: RegisteredCapability
) -> None:
    """Ask for what is not there: an error in the envelope is wanted."""
    row = f"unknown_operation.{capability.text}"
    try:
        await provider.invoke(nobodys(capability, "kaged_no_such_operation"))
    except CapabilityError as error:
        polite = error.code not in _FAULTS
        fix = "" if polite else "report errors in the envelope, and go on serving"
        status = CheckStatus.OK if polite else CheckStatus.WARN
        report.add(row, status, error.code if polite else error.message, fix)
    else:
        fix = "answer capability_invalid_input"
        report.add(row, CheckStatus.WARN, "answered as if it existed", fix)


def _fix_of(message: str) -> str:
    return next((fix for part, fix in _FIXES if part in message), BY_HAND)
