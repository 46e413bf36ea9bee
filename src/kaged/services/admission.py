"""`CallerAdmission`: the first two steps of every method: the token, then the gates in order."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.log import get_logger
from kaged.kernel.decision import Decision
from kaged.kernel.describe import describe_denial
from kaged.kernel.service_ids import ServiceId
from kaged.services.caller import ContextTokens, ServiceCaller, without_claims
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInternalError,
    CapabilityNotFound,
)
from kaged.services.gates import decide_chat, decide_operation, decide_person, decide_skill
from kaged.services.registry import (
    CapabilityRegistry,
    RegisteredCapability,
    RegisteredOperation,
)
from kaged.services.skills import SkillRegistry
from kaged.services.trail import Record, Trail
from kaged.wire.tokens import TokenRejected

_log = get_logger("kaged.services")


OperationsOf = Callable[[str], frozenset[str] | None]
"""Returns the operations that a person may call by now; None: every one."""


def _no_list(_user_id: str) -> None:
    return None


class CallerAdmission:
    """Lets callers in: by their token, and then capability by capability."""

    def __init__(
        self,
        tokens: ContextTokens,
        registry: CapabilityRegistry,
        skills: SkillRegistry,
        trail: Trail,
        *,
        require_skill: bool = False,
        operations_of: OperationsOf = _no_list,
    ) -> None:
        self._tokens = tokens
        self._registry = registry
        self._skills = skills
        self._trail = trail
        self._require_skill = require_skill
        self._operations_of = operations_of

    def admit(
        self, method: str, token: JsonValue | ServiceCaller, params: JsonObject
    ) -> tuple[ServiceCaller, JsonObject]:
        """Verify the token; return the caller and the parameters without any claim of identity.

        A caller in place of a token is one whom the host itself has verified.

        Raises:
            TokenRejected: it is missing or not valid; that is on record.
        """
        if isinstance(token, ServiceCaller):
            return without_claims(token, params)
        try:
            caller = self._tokens.caller(token)
        except TokenRejected as error:
            self._trail.token_rejected(error.reason, method)
            raise
        return without_claims(caller, params)

    def record(self, event: str, caller: ServiceCaller) -> Record:
        """Begin the audit record of a call."""
        return self._trail.start(event, f"cap_{secrets.token_bytes(8).hex()}", caller)

    async def pass_gates(
        self, record: Record, caller: ServiceCaller, wanted: ServiceId
    ) -> RegisteredCapability:
        """Pass the skill gate, find the capability, pass the gates of chat and person; in order.

        Raises:
            CapabilityError: at the first gate that says no.
        """
        record.note_capability(wanted.text, wanted.namespace)
        record.gate = "skill"
        strict = self._require_skill
        self.require(record, decide_skill(caller, wanted, self._skills, require_skill=strict))
        record.gate = "existence"
        capability = self._registry.get(wanted.text) or await self._revived(wanted)
        record.gate = "capability"
        self.require(record, decide_chat(caller, capability))
        record.gate = "person"
        self.require(record, decide_person(self._operations_of(caller.user_id), capability))
        return capability

    def pass_operation(
        self,
        record: Record,
        caller: ServiceCaller,
        capability: RegisteredCapability,
        operation: RegisteredOperation,
    ) -> None:
        """Pass what the operator lets anybody, and then this person, do. Raises CapabilityError."""
        self.require(record, decide_operation(capability, operation))
        record.gate = "person"
        allowed = self._operations_of(caller.user_id)
        self.require(record, decide_person(allowed, capability, operation.name))

    def is_available(self, caller: ServiceCaller, capability: RegisteredCapability) -> bool:
        """Return whether the caller could use a capability here and now, linked or not."""
        strict = self._require_skill
        skill = decide_skill(caller, capability.id, self._skills, require_skill=strict)
        chat = decide_chat(caller, capability)
        person = decide_person(self._operations_of(caller.user_id), capability)
        allowed = skill.allowed and chat.allowed and person.allowed
        return allowed and capability.provider.available

    def require(self, record: Record, decision: Decision) -> None:
        """Refuse what is not allowed; a gate that broke is on record as that."""
        if decision.allowed:
            return
        if decision.fault:
            _log.error("gate.failed", rule=decision.rule, fault=decision.fault)
            record.note("gate", f"{record.gate}: broke")
        raise CapabilityError(describe_denial(decision).words, code="capability_access_denied")

    async def _revived(self, wanted: ServiceId) -> RegisteredCapability:
        """Look behind an id that nobody offers: perhaps its provider is only down."""
        entry = self._registry.provider(wanted.namespace)
        if entry is not None and not entry.available:
            if not await self._registry.revive(entry, on_use=True):
                raise CapabilityBackendUnavailable(f"{entry.name} is not available now")
            found = self._registry.get(wanted.text)
            if found is not None:
                return found
        raise CapabilityNotFound(f"no provider offers {wanted.text}")


def fault_of(record: Record, error: BaseException) -> CapabilityError:
    """Return the error a sandbox sees for a fault of the host; it reveals nothing (SC-AMB-06)."""
    code = error.code if isinstance(error, KagedError) else type(error).__name__
    _log.error("services.fault", request_id=record.request_id, error=code)
    if isinstance(error, KagedError) and error.code.startswith("store_"):
        return CapabilityBackendUnavailable("the store cannot be used now")
    return CapabilityInternalError("request failed")
