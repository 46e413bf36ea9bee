"""`Chain`: one passage of a payload through a plan, and what has become of it so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kaged.pipeline.contexts import PluginContext, lend, lent_context, returned
from kaged.pipeline.isolation import isolate_payload, model_dict
from kaged.pipeline.payloads import HttpHeaderPayload, PluginPayload
from kaged.pipeline.records import ControlExecutionRecord, ControlExecutionStatus, shorten
from kaged.pipeline.taken import Taken, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.pipeline.contexts import GlobalContext, PluginContextTable
    from kaged.pipeline.plan import Plan, Step
    from kaged.pipeline.slots import Extensions

RESERVED_METADATA = "_decision_plugin"
MAX_METADATA_KEYS = 1024

Row: TypeAlias = "tuple[Step, float, float, Taken | Extensions | None] | ControlExecutionRecord"
"""A completed step with its start and end and what was taken of its answer (None for a plain
allow), from which a record is made when somebody asks; or the record of a failure."""


TraceEnd: TypeAlias = "Callable[[Taken | None, BaseException | None], None]"
"""Told once how a traced step ended: what was taken of its answer, or the error it ended with."""


class Chain:
    """The state of one call on its way through the plugins of a hook."""

    __slots__ = (
        "contexts",
        "extensions",
        "global_context",
        "known_contexts",
        "metadata",
        "modified",
        "original_extensions",
        "payload",
        "plan",
        "retry_delay_ms",
        "rows",
        "traces",
    )

    def __init__(
        self,
        plan: Plan,
        payload: Any,
        global_context: GlobalContext,
        known_contexts: PluginContextTable | None,
        extensions: Extensions | None,
    ) -> None:
        self.plan = plan
        self.payload = payload
        self.modified: Any = None
        self.global_context = global_context
        self.known_contexts = known_contexts
        self.contexts: PluginContextTable = {}
        self.original_extensions = extensions
        self.extensions = extensions
        self.metadata: dict[str, Any] = {}
        self.retry_delay_ms = 0
        self.rows: list[Row] = []
        self.traces: dict[str, TraceEnd] | None = None

    def context_for(self, step: Step, with_user: bool) -> PluginContext:
        """Give the plugin its context: the one of an earlier hook of this request, or a new one."""
        shared = self.global_context
        key = shared.request_id + step.plugin_id
        known = self.known_contexts
        if known and key in known:
            context = known[key]
            lend(context, shared, with_user)
        else:
            context = lent_context(shared, with_user)
        self.contexts[key] = context
        return context

    def accept(self, edited: Any) -> None:
        """Let an accepted payload take the place of the current one."""
        self.modified = edited
        if type(edited) is type(self.payload):
            self.payload = edited
        elif isinstance(edited, HttpHeaderPayload):
            # HTTP hooks give back headers only; the next plugin sees the request with them.
            self.payload = self.payload.model_copy(update={"headers": edited})

    def share(self, context: PluginContext) -> None:
        """Carry state and metadata of a plugin's copy over into the shared context."""
        copy = returned(context)
        if isinstance(copy, tuple):
            return  # never looked at
        if copy.state:
            self.global_context.state.update(copy.state)
        if copy.metadata:
            self.global_context.metadata.update(copy.metadata)

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Take a plugin's metadata over; later plugins win, one key is the host's own."""
        merged = isolate_payload(metadata)
        merged.pop(RESERVED_METADATA, None)
        if len(self.metadata) + len(merged) <= MAX_METADATA_KEYS:
            self.metadata.update(merged)

    def end_trace(
        self, step: Step, taken: Taken | Extensions | None, error: BaseException | None
    ) -> None:
        """Tell whoever watches this step how it ended; nobody may, if they came in between."""
        end = None if self.traces is None else self.traces.pop(step.plugin_id, None)
        if end is not None:
            end(None if taken is None else whole(taken), error)

    def record(
        self,
        step: Step,
        status: ControlExecutionStatus,
        duration_ns: int,
        *,
        requested_allow: bool | None,
        effective_allow: bool,
        matched: bool | None,
        applied: bool,
        reason: str | None = None,
        error_code: str | None = None,
    ) -> None:
        """Write down a step that did not simply complete."""
        self.rows.append(
            ControlExecutionRecord(
                plugin_id=step.plugin_id,
                plugin_name=step.name,
                plugin_kind=step.kind,
                hook_name=step.hook,
                mode=step.mode,
                status=status,
                requested_allow=requested_allow,
                effective_allow=effective_allow,
                matched=matched,
                applied=applied,
                duration_ns=duration_ns,
                reason=None if reason is None else shorten(reason),
                error_code=None if error_code is None else shorten(error_code),
                config_keys=step.config_keys,
            )
        )

    def records(self) -> list[ControlExecutionRecord]:
        """Give one record per step that ran, in the order in which they ended."""
        return [
            row if isinstance(row, ControlExecutionRecord) else _completed(*row)
            for row in self.rows
        ]


def hide_headers(payload: Any) -> Any:
    """Give a payload without its header map."""
    if getattr(payload, "headers", None) is None:
        return payload
    return payload.model_copy(update={"headers": None})


def keep_headers(edited: Any, current: Any) -> Any:
    """Give an edited payload with the header map of the current one."""
    own = getattr(current, "headers", None)
    if isinstance(edited, PluginPayload) and model_dict(edited).get("headers") != own:
        return edited.model_copy(update={"headers": own})
    return edited


def nanoseconds(started: float, ended: float) -> int:
    """Give a duration; a step that ran took at least one nanosecond."""
    return int((ended - started) * 1_000_000_000) or 1


def _completed(
    step: Step, started: float, ended: float, found: Taken | Extensions | None
) -> ControlExecutionRecord:
    taken = _PLAIN_ALLOW if found is None else whole(found)
    denied = taken.denied and step.may_deny
    edited = taken.payload is not None or taken.extensions is not None
    violation = taken.violation
    return ControlExecutionRecord(
        plugin_id=step.plugin_id,
        plugin_name=step.name,
        plugin_kind=step.kind,
        hook_name=step.hook,
        mode=step.mode,
        status=ControlExecutionStatus.COMPLETED,
        requested_allow=not taken.denied,
        effective_allow=not denied,
        matched=denied or edited,
        applied=denied or edited,
        payload_modified=taken.payload is not None,
        extensions_modified=taken.extensions is not None,
        duration_ns=nanoseconds(started, ended),
        reason=None if violation is None else shorten(violation.reason),
        error_code=None if violation is None else shorten(violation.code),
        config_keys=step.config_keys,
        suppressed=taken.denied and not denied,
        discarded=taken.discarded,
    )


_PLAIN_ALLOW = Taken()

__all__ = ["Chain", "TraceEnd", "hide_headers", "keep_headers", "nanoseconds"]
