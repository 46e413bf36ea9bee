"""`Chain`: the state of one call while the policy plugins of its hook run, and its `Denial`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol, TypeAlias, final

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline import contexts
from kaged.pipeline.discards import DiscardedChange
from kaged.pipeline.isolation import (
    isolate_flat,
    isolate_payload,
    model_dict,
    set_model_dict,
)
from kaged.pipeline.payloads.base import HttpHeaderPayload, PluginPayload
from kaged.pipeline.plan import Plan, Step
from kaged.pipeline.records import (
    ControlExecutionRecord,
    ControlExecutionStatus,
    PluginViolation,
    nanoseconds,
    shorten,
)
from kaged.pipeline.results import PluginResult
from kaged.pipeline.slots import Extensions

RESERVED_METADATA = "_decision_plugin"
MAX_METADATA_KEYS = 1024


@final
@dataclass(init=False)
class Accepted:
    """The part of a policy plugin's answer that the host accepted, in types of the host's own.

    `extensions` is None when no change was accepted, `payload` when it was not changed. An object
    holds only what differs from the defaults: most answers say one thing.
    """

    denied: bool = False
    violation: PluginViolation | None = None
    denial_metadata: Any = None
    extensions: Extensions | None = None
    discarded: tuple[DiscardedChange, ...] = ()
    payload: Any = None
    metadata: dict[str, Any] | None = None
    retry_delay_ms: int = 0


CompletedStep: TypeAlias = "tuple[Step, float, float, Accepted | None] | ControlExecutionRecord"
"""A completed step with its start and end and what was accepted of its answer (None for a plain
allow), from which a record is made when somebody asks; or the record of a failure."""

TraceEnd: TypeAlias = "Callable[[Accepted | None, BaseException | None], None]"
"""Called once when a traced step ends: with what was accepted of its answer, or with its error."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A plugin's denial, in types of the host's own."""

    step: Step
    violation: PluginViolation | None
    denial_metadata: Any
    retry_delay_ms: int = 0

    @property
    def message(self) -> str:
        """Return who denied what, and why."""
        reason = "no reason given" if self.violation is None else self.violation.reason
        return f"{self.step.hook} blocked by plugin {self.step.name}: {reason}"


class StepTracer(Protocol):
    """Who watches every single step; used for traces and for spans."""

    def step_began(self, step: Step, chain: Chain, given: Any, view: Extensions | None) -> TraceEnd:
        """Called when a plugin is about to run, with its input; returns what to call at the end."""
        ...


class Chain:
    """The state of one call: the payload and extensions so far, and what each plugin did.

    Every hook runs in a copy of `scope`, the caller's context. `tracer` watches this call alone.
    """

    __slots__ = (
        "_copied",
        "_flat_fields",
        "completed",
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
        "scope",
        "tracer",
    )

    def __init__(
        self,
        plan: Plan,
        payload: Any,
        global_context: contexts.GlobalContext,
        known_contexts: contexts.PluginContextTable | None,
        extensions: Extensions | None,
        scope: Context,
        tracer: StepTracer | None = None,
    ) -> None:
        self.plan = plan
        self.tracer = tracer
        self.scope = scope
        self.payload = payload
        self._copied: Any = None
        self._flat_fields: tuple[str, ...] | None = None
        self.modified: Any = None
        self.global_context = global_context
        self.known_contexts = known_contexts
        self.contexts: contexts.PluginContextTable = {}
        self.original_extensions = extensions
        self.extensions = extensions
        self.metadata: dict[str, Any] = {}
        self.retry_delay_ms = 0
        self.completed: list[CompletedStep] = []

    def copy_payload(self) -> Any:
        """Return a copy of the payload for one plugin.

        What it is made of is looked at once per payload, not once per plugin: nobody but the
        caller holds the original. With 1,000 arguments that spares about 45 µs per plugin.
        """
        payload = self.payload
        if payload is not self._copied:
            self._copied = payload
            twin, self._flat_fields = isolate_flat(payload)
            return twin
        flat_fields = self._flat_fields
        if flat_fields is None:
            return isolate_payload(payload)
        values = model_dict(payload).copy()
        for name in flat_fields:
            values[name] = values[name].copy()
        twin = _new(type(payload))
        set_model_dict(twin, values)
        return twin

    def context_for(self, step: Step, with_user: bool) -> contexts.PluginContext:
        """Return the plugin's context: that of an earlier hook of this request, or a new one."""
        shared = self.global_context
        key = shared.request_id + step.plugin_id
        known = self.known_contexts
        context = known.get(key) if known else None
        if context is None:
            context = _new(contexts.PluginContext)
        self.contexts[key] = context
        lend(context, (shared, with_user))
        return context

    def share_state(self, context: contexts.PluginContext) -> None:
        """Carry state and metadata of a plugin's copy over into the shared context."""
        copy = returned(context)
        if type(copy) is tuple:
            return  # the plugin never looked at it
        assert isinstance(copy, contexts.GlobalContext)
        if copy.state:
            self.global_context.state.update(copy.state)
        if copy.metadata:
            self.global_context.metadata.update(copy.metadata)

    def apply(self, accepted: Accepted, keep_headers: bool) -> None:
        """Take over the accepted part of an answer; with `keep_headers`, not the header map."""
        if accepted.extensions is not None:
            self.extensions = accepted.extensions
        if accepted.payload is not None:
            self._replace_payload(accepted.payload, keep_headers)
        if accepted.metadata:
            self._add_metadata(accepted.metadata)
        if accepted.retry_delay_ms:
            self.retry_delay_ms = max(self.retry_delay_ms, accepted.retry_delay_ms)

    def _replace_payload(self, edited: Any, keep_headers: bool) -> None:
        current = self.payload
        if keep_headers and isinstance(edited, PluginPayload):
            headers = getattr(current, "headers", None)
            if model_dict(edited).get("headers") != headers:
                edited = edited.model_copy(update={"headers": headers})
        self.modified = edited
        if type(edited) is type(current) or self.plan.kind is None:
            self.payload = edited  # of a hook that only plugins know, they know what it may become
        elif isinstance(edited, HttpHeaderPayload):
            # HTTP hooks return headers only; the next plugin sees the request with them.
            self.payload = current.model_copy(update={"headers": edited})

    def _add_metadata(self, metadata: dict[str, Any]) -> None:
        """Take a plugin's metadata over; later plugins win, one key is the host's own."""
        merged = isolate_payload(metadata)
        merged.pop(RESERVED_METADATA, None)
        if len(self.metadata) + len(merged) <= MAX_METADATA_KEYS:
            self.metadata.update(merged)

    def records(self) -> list[ControlExecutionRecord]:
        """Return one record per step that ran, in the order in which they ended."""
        return [
            step if isinstance(step, ControlExecutionRecord) else _completed(*step)
            for step in self.completed
        ]

    def result(self, denial: Denial | None) -> PluginResult[Any]:
        """Return the result of the whole chain. Records are made when somebody reads them."""
        result: PluginResult[Any] = _new(PluginResult)
        result.keep_records(self.records)
        if denial is not None:
            result.continue_processing = False
            result.violation = denial.violation
        # Who denies says when to come back; what others asked for is about a call that was made.
        delay_ms = self.retry_delay_ms if denial is None else denial.retry_delay_ms
        if delay_ms:
            result.retry_delay_ms = delay_ms
        if self.modified is not None:
            result.modified_payload = self.modified
        if self.extensions is not self.original_extensions:
            result.modified_extensions = self.extensions
        if self.metadata:
            result.metadata = self.metadata
        return result


def _completed(
    step: Step, started: float, ended: float, accepted: Accepted | None
) -> ControlExecutionRecord:
    accepted = accepted or _PLAIN_ALLOW
    denied = accepted.denied and step.may_deny
    edited = accepted.payload is not None or accepted.extensions is not None
    violation = accepted.violation
    return make_record(
        step,
        ControlExecutionStatus.COMPLETED,
        nanoseconds(ended - started),
        None if violation is None else violation.reason,
        None if violation is None else violation.code,
        requested_allow=not accepted.denied,
        effective_allow=not denied,
        matched=denied or edited,
        applied=denied or edited,
        payload_modified=accepted.payload is not None,
        extensions_modified=accepted.extensions is not None,
        suppressed=accepted.denied and not denied,
        discarded=accepted.discarded,
    )


def make_record(
    step: Step,
    status: ControlExecutionStatus,
    duration_ns: int,
    reason: str | None = None,
    error_code: str | None = None,
    **outcome: Any,
) -> ControlExecutionRecord:
    """Return the record of a step; `outcome` are the record's fields about what came of it."""
    return ControlExecutionRecord(
        plugin_id=step.plugin_id,
        plugin_name=step.name,
        plugin_kind=step.kind,
        hook_name=step.hook,
        mode=step.mode,
        status=status,
        duration_ns=duration_ns,
        reason=None if reason is None else shorten(reason),
        error_code=None if error_code is None else shorten(error_code),
        config_keys=step.config_keys,
        **outcome,
    )


_PLAIN_ALLOW = Accepted()
lend, returned = contexts.lend, contexts.returned
_new = object.__new__
