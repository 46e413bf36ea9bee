"""What a failed policy plugin means for the call: its record, its error policy, the audit event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base import KagedError
from kaged.base.error_codes import ERROR_CODES
from kaged.base.foreign import bounded, describe_error
from kaged.pipeline.chain import Chain, make_record
from kaged.pipeline.errors import PluginError, PluginErrorModel, PluginViolationError
from kaged.pipeline.hook_call import HookTimedOut
from kaged.pipeline.isolation import exact_text
from kaged.pipeline.modes import OnError, PluginMode
from kaged.pipeline.records import ControlExecutionStatus, PluginViolation, nanoseconds

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
    # By its class: what an object says of its class may be code of the plugin.
    if issubclass(type(error), PluginViolationError):
        assert isinstance(error, PluginViolationError)
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
    timed_out = issubclass(type(error), HookTimedOut)
    reason = _reason(error)
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
        observer.plugin_failed(step, code, _cause(error), reason, request_id)
    return PluginError(PluginErrorModel(reason, step.name, code)) if ends_call else None


def _cause(error: BaseException) -> str:
    """Return the code of an error of ours; everything else is the plugin's own doing."""
    try:
        code = error.code if isinstance(error, KagedError) else None
    except BaseException:  # noqa: BLE001 - boundary: a subclass of the plugin's may compute its code
        code = None
    return code if type(code) is str and code in ERROR_CODES else "plugin_raised"


def _reason(error: BaseException) -> str:
    """Return why a plugin failed: the message of our own error, else what foreign code raised."""
    if issubclass(type(error), KagedError):
        try:
            message = exact_text(getattr(error, "message", None))
        except BaseException:  # noqa: BLE001 - boundary: it may be a class of the plugin's own
            message = None
        if message is not None:
            return bounded(message)
    return describe_error(error, as_repr=True)


def _own_violation(step: Step, error: PluginViolationError) -> PluginViolationError:
    """Return a raised denial in types of the host's own; the plugin's subclass is left behind."""
    try:
        violation: object = error.violation
        own = None
        if isinstance(violation, PluginViolation):
            own = PluginViolation.for_host(violation, step.name)
        message = bounded(exact_text(error.message) or "")
    except BaseException:  # noqa: BLE001 - boundary: reading runs code of the plugin's own classes
        own, message = None, None
    if type(error) is not PluginViolationError:
        return PluginViolationError(message or describe_error(error, as_repr=True), own)
    error.violation = own
    error.message = message or describe_error(error, as_repr=True)
    return error
