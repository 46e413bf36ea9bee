"""What a failed policy plugin means for the call: its record, its error policy, the audit event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base import KagedError
from kaged.pipeline.chain import Chain, make_record
from kaged.pipeline.errors import PluginError, PluginErrorModel, PluginViolationError
from kaged.pipeline.hook_call import HookTimedOut
from kaged.pipeline.isolation import exact_text
from kaged.pipeline.modes import OnError, PluginMode
from kaged.pipeline.records import ControlExecutionStatus, PluginViolation, nanoseconds, shown

if TYPE_CHECKING:
    from kaged.pipeline.auditing import PipelineObserver
    from kaged.pipeline.plan import Step


def record_failure(
    step: Step,
    chain: Chain,
    error: BaseException,
    duration_s: float,
    observer: PipelineObserver | None,
) -> PluginError | PluginViolationError | None:
    """Record a step that ended with `error`. Return what to raise; None when the call goes on.

    A `PluginViolationError` is a denial and ends the call under every error policy.
    """
    duration_ns = nanoseconds(duration_s)
    request_id = chain.global_context.request_id
    if isinstance(error, PluginViolationError):
        denial = _own_violation(step, error)
        violation = denial.violation
        record = make_record(
            step,
            ControlExecutionStatus.COMPLETED,
            duration_ns,
            denial.message if violation is None else violation.reason,
            "plugin_violation" if violation is None else violation.code,
            requested_allow=False,
            effective_allow=False,
            matched=True,
            applied=True,
        )
        chain.completed.append(record)
        if observer is not None:
            observer.call_denied(step, violation, request_id)
        return denial
    timed_out = isinstance(error, HookTimedOut)
    reason = error.message if isinstance(error, KagedError) else shown(error)
    code = "plugin_timeout" if timed_out else "plugin_error"
    ends_call = step.on_error is OnError.FAIL
    record = make_record(
        step,
        ControlExecutionStatus.TIMEOUT if timed_out else ControlExecutionStatus.ERROR,
        duration_ns,
        reason,
        code,
        effective_allow=not ends_call,
        applied=ends_call or (timed_out and step.mode is PluginMode.SEQUENTIAL),
    )
    chain.completed.append(record)
    if step.on_error is OnError.DISABLE:
        step.switch.off = True
    if observer is not None:
        observer.plugin_failed(step, code, reason, request_id)
    return PluginError(PluginErrorModel(reason, step.name, code)) if ends_call else None


def _own_violation(step: Step, error: PluginViolationError) -> PluginViolationError:
    """Return a raised denial in types of the host's own; the plugin's subclass is left behind."""
    try:
        violation: object = error.violation
        own = None
        if isinstance(violation, PluginViolation):
            own = PluginViolation.for_host(violation, step.name)
        message = exact_text(error.message)
    except Exception:  # noqa: BLE001 - boundary: reading runs code of the plugin's own classes
        own, message = None, None
    if type(error) is not PluginViolationError:
        return PluginViolationError(message or shown(error), own)
    error.violation = own
    error.message = message or shown(error)
    return error
