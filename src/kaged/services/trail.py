"""`Trail`: one audit record per call, whatever becomes of it; never a secret in it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Iterable
from typing import Final

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.services.caller import ServiceCaller
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityError
from kaged.wire.tokens import TokenReason

INPUT_KEYS_LIMIT: Final = 50
KEY_CHARS: Final = 64
FLOW_CHARS: Final = 12  # enough to find a flow again, not enough to use it

# Failing before these means that somebody said no; after them that something went wrong.
_WORK: Final = frozenset({"provider", "output"})
_FAULTS: Final = frozenset({"capability_backend_unavailable", "capability_internal_error"})

_log = get_logger("kaged.services")


class Trail:
    """Writes what happens with accounts into the audit log."""

    def __init__(self, audit: AuditLog, clock: Clock, key: bytes) -> None:
        self._audit = audit
        self._clock = clock
        self._key = hashlib.sha256(key).digest()

    def start(self, event: str, request_id: str, caller: ServiceCaller) -> Record:
        """Begin the record of one call; it is written when the call ends."""
        return Record(self, event, request_id, caller)

    async def intent(self, record: Record) -> None:
        """Write durably that a mutating operation is about to run.

        Raises:
            CapabilityBackendUnavailable: it cannot be written, so the operation must not run.
        """
        try:
            await self._audit.record(
                AuditEvent(
                    "capability_invoke_intent", record.so_far(), project_id=record.project_id
                )
            )
        except AuditUnavailable:
            raise CapabilityBackendUnavailable("the audit log cannot be written now") from None

    def require_writable(self) -> None:
        """Raise CapabilityBackendUnavailable while the audit log cannot be written."""
        try:
            self._audit.require_writable()
        except AuditUnavailable:
            raise CapabilityBackendUnavailable("the audit log cannot be written now") from None

    async def write(self, name: str, data: JsonObject, project_id: str | None = None) -> None:
        """Write an event of any kind."""
        event = AuditEvent(name, data, project_id=project_id)
        if not event.type.gates and self._audit.offer(event):
            return
        try:
            await self._audit.record(event)
        except AuditUnavailable:
            # Only a closed log says so here; the daemon is ending.
            _log.warning("audit.event_lost", event_name=name)

    async def rejected(self, record: Record, rule: str, path: str, *, masked: bool) -> None:
        """Write that an output was refused or masked: where, never what."""
        data = record.place()
        await self.write(
            "capability_output_rejected",
            {**data, "path": path, "rule": rule, "masked": masked},
            record.project_id,
        )

    def token_rejected(self, reason: TokenReason, method: str) -> None:
        """Write that a token was refused: why and for which method, nothing of the token."""
        self._audit.post(
            AuditEvent(
                "capability_token_rejected",
                {"reason": reason.value, "method": method[:KEY_CHARS]},
            )
        )

    def digest(self, data: bytes) -> str:
        """Return a keyed fingerprint of an input: equal inputs compare, and none can be guessed."""
        return hashlib.blake2b(data, key=self._key, digest_size=32).hexdigest()

    def now_s(self) -> float:
        """Return the time that durations are measured with."""
        return self._clock.monotonic_s()


class Record:
    """What is known of one call so far. `gate` is the step that it stands at.

    `fingerprint` is that of the input; `repeatable` says that doing it twice does no harm;
    `project_id` is where the agent works that calls.
    """

    __slots__ = (
        "_data",
        "_event",
        "_started_s",
        "_trail",
        "fingerprint",
        "gate",
        "project_id",
        "repeatable",
        "request_id",
    )

    def __init__(self, trail: Trail, event: str, request_id: str, caller: ServiceCaller) -> None:
        self._trail = trail
        self._event = event
        self._started_s = trail.now_s()
        self.request_id = request_id
        self.gate = "id"
        self.fingerprint = ""
        self.repeatable = False
        token, context = caller.token, caller.context
        self.project_id = token.routing.project_id
        data: JsonObject = {
            "request_id": request_id,
            "user_id": token.effective_user_id,
            "chat_id": context.chat_id,
            "chat_type": context.chat_type,
            "skill": token.skill,
            "token_id": token.token_id,
            "capability.id": None,
            "account_ref": None,
        }
        for name in ("provider", "thread_id", "session_key"):
            value = getattr(context, name)
            if value is not None:
                data[name] = value
        if caller.identity_fields:
            data["identity_fields"] = list(caller.identity_fields)
        if event == "capability_invoke":
            data["operation"] = data["mutating"] = None
            data["input_keys"] = []
        else:
            data["flow_id"] = None
        self._data = data

    def note(self, name: str, value: JsonValue) -> None:
        """Add a field."""
        self._data[name] = value

    def note_capability(self, capability_id: str, namespace: str) -> None:
        """Add which capability it is about."""
        self._data["capability.id"] = capability_id
        if self._event == "capability_invoke":
            self._data["capability.namespace"] = namespace

    def note_flow(self, flow_id: str) -> None:
        """Add the flow, in a form that nobody can complete it with."""
        self._data["flow_id"] = flow_id[:FLOW_CHARS]

    def note_input(self, names: Iterable[str], fingerprint: str) -> None:
        """Add the names of the input's fields and a fingerprint, never a value."""
        keys = [name[:KEY_CHARS] for name in names][:INPUT_KEYS_LIMIT]
        self.fingerprint = fingerprint
        self._data["input_keys"] = [*keys]
        self._data["input_hmac"] = fingerprint

    def note_key(self, key: str) -> None:
        """Add a hash of the idempotency key."""
        self._data["idempotency_key_hash"] = hashlib.sha256(key.encode()).hexdigest()[:32]

    def so_far(self) -> JsonObject:
        """Return what is known by now."""
        return dict(self._data)

    def place(self) -> JsonObject:
        """Return which call of which operation it is."""
        names = ("request_id", "capability.id", "operation", "user_id", "skill", "token_id")
        return {name: self._data[name] for name in names}

    def ok(self, outcome: str = "ok") -> Awaitable[None]:
        """Write that the call went well; await it."""
        return self._write(outcome, None)

    def failed(self, error: CapabilityError) -> Awaitable[None]:
        """Write that it did not: denied by a gate, or an error behind them; await it."""
        self._data.setdefault("gate", self.gate)
        if self._event == "capability_invoke":
            self._data.update(error.noted)
        broke = self.gate in _WORK or error.code in _FAULTS
        return self._write("error" if broke else "denied", error.code)

    def _write(self, outcome: str, code: str | None) -> Awaitable[None]:
        data = self._data
        data["outcome"] = outcome
        data["error.code"] = code
        # To the microsecond; `round` to digits takes longer than a gate.
        data["duration_ms"] = round((self._trail.now_s() - self._started_s) * 1e6) / 1000
        return self._trail.write(self._event, data, self.project_id)
