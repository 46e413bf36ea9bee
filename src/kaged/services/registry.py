"""`CapabilityRegistry`: which provider offers which capability, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from kaged.base import Clock, JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.jsonschemas import check_schema, compile_schema
from kaged.kernel import service_ids
from kaged.services.contract import (
    CapabilityDefinition,
    CapabilityOperation,
    CapabilityProvider,
    ClosingProvider,
)
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
)
from kaged.services.sanitize import FreeText, free_text_of
from kaged.services.secret_search import NO_SECRETS, SecretForms

DEFINITIONS_LIMIT: Final = 64
OPERATIONS_LIMIT: Final = 128
DESCRIPTION_LIMIT_CHARS: Final = 2000
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 300.0
DEFAULT_TIMEOUT_S: Final = 30.0

_log = get_logger("kaged.services")


ProviderKind: TypeAlias = Literal["first-party", "bridge", "sidecar"]


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """What the operator says about a provider beyond where it is.

    `allow` and `deny` name operations as `<name>.<operation>` patterns; `confirm` those whose
    owner must agree first. With `same_address` people link accounts of their own address only.
    `secrets` are those of its section, which nothing of it may repeat.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    confirm: tuple[str, ...] = ()
    strict_output: bool = False
    allow_stateless_code: bool = False
    same_address: bool = False
    secrets: SecretForms = NO_SECRETS


@dataclass(frozen=True, slots=True)
class RegisteredOperation:
    """One operation, ready to be called: schemas compiled, free text known."""

    spec: CapabilityOperation
    input_schema: Any
    output_schema: Any
    free_text: FreeText

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class RegisteredCapability:
    """One registered capability. `chat_types` is None when it may be used from everywhere."""

    id: service_ids.ServiceId
    text: str
    description: str
    sensitive: bool
    chat_types: frozenset[str] | None
    operations: Mapping[str, RegisteredOperation]
    requires_auth: bool
    provider: ProviderEntry = field(repr=False)


@dataclass(slots=True, eq=False)
class ProviderEntry:
    """One provider and how it is doing."""

    name: str
    namespace: service_ids.Namespace
    provider: CapabilityProvider
    rules: ProviderRules
    kind: ProviderKind
    caged: bool | None
    command: tuple[str, ...] = ()
    available: bool = False
    reason: str = ""
    retry_s: float = FIRST_RETRY_S
    next_try_s: float = 0.0
    tried_on_use: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


OnRegistry = Callable[[str, JsonObject], None]


class CapabilityRegistry:
    """Every capability of this host by id, and every provider by namespace.

    Nobody sees a provider half registered: its definitions are checked as a whole and put in
    place in one step.
    """

    def __init__(self, clock: Clock, on_event: OnRegistry | None = None) -> None:
        self._clock = clock
        self._on_event: OnRegistry = on_event or (lambda _name, _data: None)
        self._capabilities: Mapping[str, RegisteredCapability] = MappingProxyType({})
        self._providers: dict[str, ProviderEntry] = {}

    # ---- looking

    def get(self, capability_id: str) -> RegisteredCapability | None:
        """Return a capability by its full id."""
        return self._capabilities.get(capability_id)

    def list(self) -> tuple[RegisteredCapability, ...]:
        """Return all capabilities, by id."""
        return tuple(self._capabilities[key] for key in sorted(self._capabilities))

    def provider(self, namespace: str) -> ProviderEntry | None:
        """Return the provider that owns a namespace, working or not."""
        return self._providers.get(namespace)

    def providers(self) -> tuple[ProviderEntry, ...]:
        """Return all providers, by namespace."""
        return tuple(self._providers[key] for key in sorted(self._providers))

    # ---- registering

    async def register(
        self,
        provider: CapabilityProvider,
        *,
        name: str | None = None,
        rules: ProviderRules | None = None,
        kind: ProviderKind = "first-party",
        caged: bool | None = None,
        command: tuple[str, ...] = (),
        keep_if_down: bool = False,
    ) -> ProviderEntry:
        """Take a provider in with everything it offers, or not at all.

        With `keep_if_down` a provider that cannot say what it offers is kept as unavailable and
        asked again later; wrong definitions are refused in any case.

        Raises:
            CapabilityInvalidInput: the namespace or a definition is wrong, or taken.
            CapabilityError: it could not say what it offers.
        """
        try:
            namespace = service_ids.parse_namespace(provider.namespace)
        except service_ids.ServiceIdInvalid as error:
            raise CapabilityInvalidInput(error.message) from None
        if namespace in self._providers:
            raise CapabilityInvalidInput(f"the namespace {namespace} already has a provider")
        entry = ProviderEntry(
            name or namespace, namespace, provider, rules or ProviderRules(), kind, caged, command
        )
        self._providers[namespace] = entry  # taken from now on; offers nothing yet
        try:
            async with entry.lock:
                await self._load(entry)
        except BaseException as error:
            wrong = isinstance(error, CapabilityInvalidInput)
            if keep_if_down and isinstance(error, CapabilityError) and not wrong:
                return entry
            del self._providers[namespace]
            raise
        return entry

    async def refresh(self, namespace: str) -> ProviderEntry:
        """Ask a provider again what it offers; a bad answer changes nothing (SC-AMB-35).

        Raises:
            CapabilityInvalidInput: there is no such provider, or its definitions are wrong.
            CapabilityError: it could not say.
        """
        entry = self._providers.get(namespace)
        if entry is None:
            raise CapabilityInvalidInput(f"there is no provider for {namespace}")
        async with entry.lock:
            await self._load(entry, stays_up=entry.available)
        return entry

    async def revive(self, entry: ProviderEntry, *, on_use: bool = False) -> bool:
        """Try a provider that is down again, if its pause is over; returns whether it works now.

        The first use after a failure is tried at once.
        """
        if entry.available:
            return True
        due = self._clock.monotonic_s() >= entry.next_try_s
        if not due and (not on_use or entry.tried_on_use):
            return False
        async with entry.lock:
            if entry.available:
                return True
            entry.tried_on_use = entry.tried_on_use or on_use
            try:
                await self._load(entry)
            except KagedError:
                return False
        return True

    async def revive_due(self) -> float | None:
        """Try every provider whose pause is over; returns when the next one is due."""
        for entry in self.providers():
            await self.revive(entry)
        waiting = [entry.next_try_s for entry in self.providers() if not entry.available]
        return min(waiting, default=None)

    async def remove(self, namespace: str) -> None:
        """Let a provider go."""
        entry = self._providers.pop(namespace, None)
        if entry is None:
            return
        kept = {key: one for key, one in self._capabilities.items() if one.provider is not entry}
        self._capabilities = MappingProxyType(kept)
        if isinstance(entry.provider, ClosingProvider):
            await entry.provider.close()

    async def close(self) -> None:
        """Let all providers go."""
        for namespace in list(self._providers):
            await self.remove(namespace)

    # ---- own

    async def _load(self, entry: ProviderEntry, *, stays_up: bool = False) -> None:
        """Ask a provider what it offers and install that; a failure takes it down, or not."""
        try:
            self._install(entry, await self._ask(entry))
        except KagedError as error:
            if not stays_up:
                self._down(entry, error)
            raise

    async def _ask(self, entry: ProviderEntry) -> list[RegisteredCapability]:
        try:
            async with asyncio.timeout(entry.rules.timeout_s):
                found = await entry.provider.definitions()
        except TimeoutError:
            raise CapabilityBackendUnavailable(
                f"{entry.name} did not say in time what it offers"
            ) from None
        except KagedError:
            raise
        except asyncio.CancelledError:
            raise
        # Boundary: whatever a provider raises means that it is down, and its text stays here.
        except BaseException as error:
            _log.warning("provider.failed", provider=entry.name, error=type(error).__name__)
            raise CapabilityBackendUnavailable(f"{entry.name} failed") from error
        return self._checked(entry, found)

    def _checked(self, entry: ProviderEntry, found: object) -> list[RegisteredCapability]:
        if not isinstance(found, list) or len(found) > DEFINITIONS_LIMIT:
            raise CapabilityInvalidInput(
                f"{entry.name} must give a list of at most {DEFINITIONS_LIMIT} definitions"
            )
        checked: dict[str, RegisteredCapability] = {}
        for definition in found:
            if not isinstance(definition, CapabilityDefinition):
                raise CapabilityInvalidInput(f"{entry.name} gave something that is no definition")
            one = _capability(entry, definition)
            known = self._capabilities.get(one.text)
            if one.text in checked or (known is not None and known.provider is not entry):
                raise CapabilityInvalidInput(f"{one.text} is already registered")
            checked[one.text] = one
        return list(checked.values())

    def _install(self, entry: ProviderEntry, found: list[RegisteredCapability]) -> None:
        kept = {key: one for key, one in self._capabilities.items() if one.provider is not entry}
        kept.update((one.text, one) for one in found)
        self._capabilities = MappingProxyType(kept)
        entry.available, entry.reason = True, ""
        entry.retry_s, entry.tried_on_use = FIRST_RETRY_S, False
        data: JsonObject = {
            "provider": entry.name,
            "capabilities": [one.text for one in found],
            "kind": entry.kind,
        }
        if entry.caged is not None:
            data["caged"] = entry.caged
        self._on_event("capability_provider_registered", data)

    def _down(self, entry: ProviderEntry, error: KagedError) -> None:
        entry.available = False
        entry.reason = error.code
        entry.next_try_s = self._clock.monotonic_s() + entry.retry_s
        entry.retry_s = min(entry.retry_s * 2, LAST_RETRY_S)
        self._on_event(
            "capability_provider_unavailable",
            {"provider": entry.name, "reason": error.code, "detail": error.message},
        )


def _capability(entry: ProviderEntry, definition: CapabilityDefinition) -> RegisteredCapability:
    try:
        found = service_ids.parse_service_id(definition.id)
    except service_ids.ServiceIdInvalid as error:
        raise CapabilityInvalidInput(f"{entry.name}: {error.message}") from None
    decision = service_ids.decide_offer(entry.namespace, found)
    if not decision.allowed:
        raise CapabilityInvalidInput(f"{entry.name}: {decision.detail}")
    text = found.text
    description = definition.description.strip()
    if not description or len(description) > DESCRIPTION_LIMIT_CHARS:
        raise CapabilityInvalidInput(f"{text} needs a description")
    if not definition.operations or len(definition.operations) > OPERATIONS_LIMIT:
        raise CapabilityInvalidInput(f"{text} needs 1 to {OPERATIONS_LIMIT} operations")
    operations: dict[str, RegisteredOperation] = {}
    for key, spec in definition.operations.items():
        one = _operation(text, key, spec)
        operations[one.name] = one
    return RegisteredCapability(
        found,
        text,
        description,
        definition.sensitive,
        effective_chat_types(definition.allowed_chat_types, sensitive=definition.sensitive),
        MappingProxyType(operations),
        any(one.spec.requires_auth for one in operations.values()),
        entry,
    )


def effective_chat_types(listed: list[str], *, sensitive: bool) -> frozenset[str] | None:
    """Return where a capability may be used: its own list, else private if sensitive, else all."""
    own = frozenset(one.strip().lower() for one in listed if one.strip())
    return own or (frozenset({"private"}) if sensitive else None)


def _operation(capability: str, key: str, spec: CapabilityOperation) -> RegisteredOperation:
    try:
        name = service_ids.parse_operation(spec.name)
        same = service_ids.parse_operation(key) == name
    except service_ids.ServiceIdInvalid as error:
        raise CapabilityInvalidInput(f"{capability}: {error.message}") from None
    if not same:
        raise CapabilityInvalidInput(f"{capability}: the operation {name} is listed as another")
    if not spec.description.strip():
        raise CapabilityInvalidInput(f"{capability}: {name} needs a description")
    return RegisteredOperation(
        spec,
        _schema(capability, name, spec.input_schema),
        _schema(capability, name, spec.output_schema),
        free_text_of(spec.output_schema),
    )


def _schema(capability: str, operation: str, schema: JsonObject) -> Any:
    """Compile a schema; an empty one checks nothing. Nothing is ever fetched (SC-AMB-21)."""
    if not schema:
        return None
    for _path, message, _fix in check_schema(schema, objects=True):
        raise CapabilityInvalidInput(f"{capability}: a schema of {operation} {message}")
    return compile_schema(schema, mask="…")
