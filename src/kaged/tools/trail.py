"""`CallTrail`: what a call leaves in the audit log, from the first word to the last."""

from __future__ import annotations

from typing import Final

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.tools.context import ToolCallContext
from kaged.tools.errors import ToolError, ToolRefused
from kaged.tools.permissions import cage_summary
from kaged.workspace.errors import PathProtected

MAX_NAME_CHARS: Final = 200
CANCELLED: Final = "cancelled"

DENYING_CODES: Final = frozenset(
    {
        "capability_denied",
        "seccomp_insufficient",
        "principal_scope_violation",
        "rename_scope_exceeds_cage",
        "dap_requires_relaxed_seccomp",
        "pipeline_not_ready",
        "path_protected",
    }
)
"""Codes that are refusals wherever they come from (AT-AUD-05)."""

_ENDS: Final = ("tool.denied", "tool.completed")

_log = get_logger(__name__)


class CallTrail:
    """The record of one call: `tool.called` first, then `tool.completed` or `tool.denied`.

    A caller whose calls are refused again and again has further ones counted instead of written.
    Whether a call is refused is not known when it comes, so its `tool.called` then waits until it
    is; a call that is let through is on record before it runs, always.
    """

    __slots__ = (
        *("_admitted", "_audit", "_context", "_held"),
        *("alias", "changed_by", "dry_run", "tool_name"),
    )

    def __init__(self, audit: AuditLog, context: ToolCallContext, name: str) -> None:
        self._audit = audit
        self._context = context
        self.tool_name = name[:MAX_NAME_CHARS]
        self.alias: str | None = None
        self.changed_by: str | None = None
        self.dry_run = False
        self._held: AuditEvent | None = None
        self._admitted = False

    async def called(self, params: JsonValue, source: str) -> None:
        """Write that the tool was asked for, also when the call is refused later."""
        context = self._context
        data: JsonObject = {
            "tool_name": self.tool_name,
            "caller": context.caller,
            "session_id": context.session_id,
            "run_id": context.run_id,
            "request_id": context.request_id,
            "params": params,
        }
        if self.alias is not None:
            data["alias"] = self.alias
        if source:
            data["source"] = source
        event = self._event("tool.called", data)
        used_up, project_id = self._audit.folding.is_used_up, context.project_id
        if any(used_up(name, project_id, context.caller) for name in _ENDS):
            self._held = event
        else:
            await self._record(event)

    async def admitted(self) -> None:
        """Called when nothing stops the call any more; it is on record from here on."""
        self._admitted = True
        held, self._held = self._held, None
        if held is not None:
            await self._record(held)

    async def require_durable(self) -> None:
        """Return when all of it is on disk; for calls that would change something (AT-AUD-29).

        Raises:
            ToolError: `audit_unavailable`; it cannot be written, so the call must not run.
        """
        try:
            await self._audit.flush()
        except AuditUnavailable as error:
            raise ToolError(
                f"{self.tool_name} would change something and the audit log cannot be written",
                code="audit_unavailable",
                fix="calls that only read still work; the operator has to check the disk",
            ) from error

    async def ended(self, error: ToolError | None, duration_ms: float) -> None:
        """Write how the call ended. A log that cannot be written takes no result away."""
        if error is not None and is_refusal(error):
            if error.code == PathProtected.code:
                said = error.detail if isinstance(error.detail, str) else ""
                await self._record(self._event("protected_path.refused", self._protected(said)))
            event = self._event("tool.denied", self._denial(error))
        else:
            code = None if error is None else error.code
            event = self._event("tool.completed", self._completion(code, duration_ms))
        if not self._admitted:
            held, self._held = self._held, None
            folding, caller = self._audit.folding, self._context.caller
            if held is None:
                # Its beginning is on record, so its end is too.
                folding.spend(event, caller)
            elif folding.fold(event, caller):
                folding.count(held, caller)
                return
            else:
                await self._record(held)
        await self._record(event)

    def cancelled(self, duration_ms: float) -> None:
        """Write that the call was cancelled; does not wait, for the caller is being torn down."""
        held, self._held = self._held, None
        if held is not None:
            self._post_event(held)
        self._post("tool.completed", self._completion(CANCELLED, duration_ms))

    def call_changed(self, data: JsonObject) -> None:
        """Write that a pipeline plugin changed the call."""
        self._post("pipeline.call_changed", data)

    def _completion(self, error_code: str | None, duration_ms: float) -> JsonObject:
        data: JsonObject = {
            "tool_name": self.tool_name,
            "request_id": self._context.request_id,
            "duration_ms": duration_ms,
            "success": error_code is None,
        }
        if error_code is not None:
            data["error_code"] = error_code
        if self.dry_run:
            data["dry_run"] = True
        if self.alias is not None:
            data["alias"] = self.alias
        return data

    def _denial(self, error: ToolError) -> JsonObject:
        context = self._context
        refusal = error if isinstance(error, ToolRefused) else None
        data: JsonObject = {
            "tool_name": self.tool_name,
            "caller": context.caller,
            "denied_capability": error.code if refusal is None else refusal.denied_capability,
            "cage_summary": cage_summary(context.cage_policy, context.project_root),
            "rule": error.code if refusal is None else refusal.rule,
            "error_code": error.code,
            "detail": error.message,
        }
        denied_by = getattr(error, "denied_by", None)
        if isinstance(denied_by, str):
            data["denied_by"] = denied_by
        for name in ("alias", "changed_by"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        return data

    def _protected(self, detail: str) -> JsonObject:
        return {
            "path": detail.removeprefix("rw:fs:").partition(" (")[0],
            "who": self.tool_name,
            "caller": self._context.caller,
        }

    def _event(self, name: str, data: JsonObject) -> AuditEvent:
        context = self._context
        return AuditEvent(name, data, project_id=context.project_id, request_id=context.request_id)

    async def _record(self, event: AuditEvent) -> None:
        """Queue an event; waits until there is room for it."""
        if self._audit.offer(event):
            return
        try:
            await self._audit.record(event, durable=False)
        except AuditUnavailable as error:
            # The gap is counted in the log's health; what only reads goes on (AT-AUD-29).
            _log.error("audit.event_lost", audit_event=event.name, error=str(error))

    def _post(self, name: str, data: JsonObject) -> None:
        """Queue an event without waiting."""
        self._post_event(self._event(name, data))

    def _post_event(self, event: AuditEvent) -> None:
        try:
            self._audit.post(event)
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=event.name, error=str(error))


def is_refusal(error: ToolError) -> bool:
    """Return whether a failure is a refusal, which is audited as `tool.denied` (AT-AMB-52)."""
    return isinstance(error, ToolRefused) or error.code in DENYING_CODES
