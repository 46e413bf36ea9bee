"""`Runner`: takes a payload through a plan. The one place in the product that runs plugins."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, final

from kaged.base import Clock, KagedError, Tasks
from kaged.pipeline.answers import take
from kaged.pipeline.chain import Chain, hide_headers, keep_headers, nanoseconds
from kaged.pipeline.edits import check_size
from kaged.pipeline.errors import (
    PipelineRecursion,
    PluginError,
    PluginErrorModel,
    PluginViolationError,
)
from kaged.pipeline.isolation import exact_text, isolate, isolate_payload
from kaged.pipeline.modes import OnError, PluginMode
from kaged.pipeline.payloads import HttpHeaderPayload
from kaged.pipeline.records import ControlExecutionStatus, shown
from kaged.pipeline.results import PluginResult, PluginViolation
from kaged.pipeline.stepping import PluginCancelled, PluginTimedOut, absorb_cancel, finish
from kaged.pipeline.taken import Taken
from kaged.pipeline.view import ExtensionsView, set_origin

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kaged.pipeline.contexts import GlobalContext, PluginContext, PluginContextTable
    from kaged.pipeline.plan import Plan, Step
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.watchers import PipelineObserver, StepTracer

MAX_DEPTH = 8
MAX_AT_ONCE = 10

_depth: ContextVar[int] = ContextVar("kaged.pipeline.depth", default=0)


class Runner:
    """Runs plans. Holds no state about calls; `leftovers` owns what outlives one.

    With `guarded` (the daemon's own calls) every plugin works on a private copy of the payload,
    header maps in payloads need header capabilities, and user and identity in the shared context
    need `read_subject`. Without it (a program that drives the stand-in manager itself) a plugin
    gets what the program passed in.
    """

    def __init__(
        self,
        clock: Clock,
        leftovers: Tasks,
        *,
        guarded: bool = True,
        observer: PipelineObserver | None = None,
        tracer: StepTracer | None = None,
    ) -> None:
        self._now = clock.monotonic_s
        self._leftovers = leftovers
        self._guarded = guarded
        self._observer = observer
        self._tracer = tracer

    def watch(self, tracer: StepTracer | None) -> None:
        """Let `tracer` watch the steps of calls from now on; None ends it."""
        self._tracer = tracer

    async def run(
        self,
        plan: Plan,
        payload: Any,
        global_context: GlobalContext,
        local_contexts: PluginContextTable | None = None,
        violations_as_exceptions: bool = False,
        extensions: Extensions | None = None,
    ) -> tuple[PluginResult[Any], PluginContextTable | None]:
        """Take a payload through all plugins of a plan.

        Gives the result of the chain and the contexts of its plugins, to be passed into the post
        hook of the same request. `modified_extensions` is None when nothing was accepted.

        Raises:
            PluginError: a plugin failed whose `on_error` is fail.
            PluginViolationError: a plugin denied and the caller asked for exceptions, or a plugin
                raised this itself.
            PayloadSizeError: the payload is too large.
            PipelineRecursion: a plugin called the pipeline too many levels deep.
        """
        if plan.empty:
            return PluginResult(), None
        check_size(payload)
        level = _depth.get()
        if level >= MAX_DEPTH:
            raise PipelineRecursion(
                f"the pipeline was called {MAX_DEPTH} levels deep within itself"
            )
        chain = Chain(plan, payload, global_context, local_contexts, extensions)
        task = asyncio.current_task()
        denial: _Denial | None = None
        _depth.set(level + 1)
        try:
            for step in plan.serial:
                if step.switch.off or (step.matches is not None and not _applies(step, chain)):
                    continue
                outcome = self._call(step, chain, task)
                if outcome is not None:
                    denial = outcome if type(outcome) is _Denial else await outcome
                    if denial is not None:
                        break
            if plan.concurrent and denial is None:
                denial = await self._run_concurrent(chain)
        except (PluginError, PluginViolationError) as error:
            error.executions = chain.records()
            raise
        finally:
            _depth.set(level)
        if denial is not None and violations_as_exceptions:
            raise PluginViolationError.of_host(
                denial.message, denial.violation, denial.denial_metadata, chain.records()
            )
        return self._conclude(chain, denial), chain.contexts

    async def _run_concurrent(self, chain: Chain) -> _Denial | None:
        """Run the concurrent plugins together; the first that denies or fails ends the others."""
        at_once = asyncio.Semaphore(MAX_AT_ONCE)
        ended: list[_Denial | PluginError | PluginViolationError] = []

        async def one(step: Step) -> None:
            outcome: _Denial | PluginError | PluginViolationError | None
            async with at_once:
                try:
                    outcome = await self._call_and_wait(step, chain)
                except (PluginError, PluginViolationError) as error:
                    outcome = error
            if outcome is not None:
                ended.append(outcome)
                raise _Halt

        try:
            async with asyncio.TaskGroup() as group:
                for step in chain.plan.concurrent:
                    if _applies(step, chain):
                        group.create_task(one(step), name=f"pipeline/{step.hook}/{step.name}")
        except* _Halt:
            pass  # told by `ended`; raised only to end the siblings
        if not ended:
            return None
        if isinstance(ended[0], _Denial):
            return ended[0]
        raise ended[0]

    async def _call_and_wait(self, step: Step, chain: Chain) -> _Denial | None:
        outcome = self._call(step, chain, asyncio.current_task())
        return outcome if outcome is None or type(outcome) is _Denial else await outcome

    def _call(
        self, step: Step, chain: Chain, task: asyncio.Task[Any] | None
    ) -> _Denial | Coroutine[Any, Any, _Denial | None] | None:
        """Run one plugin: filter, call, check, merge.

        Gives None when the chain goes on, a denial when the plugin denies, and the rest of the
        work, to be awaited, when the hook has to wait for something.
        """
        rights = step.rights
        context = chain.context_for(step, rights.subject or not self._guarded)
        given = (
            isolate_payload(chain.payload)
            if self._guarded and not step.hides_headers
            else self._payload_for(step, chain)
        )
        own = chain.extensions
        view = None
        if own is not None:  # as `view_of`, without a call in between
            view = _new(ExtensionsView)
            set_origin(view, (own, rights))
        before = 0 if task is None else task.cancelling()
        scope = copy_context()
        if self._tracer is not None:
            end = self._tracer.step_began(step, chain, given, view)
            chain.traces = {**(chain.traces or {}), step.plugin_id: end}
        started = self._now()
        try:
            hook, waiting = scope.run(step.begin, given, context, view)
        except StopIteration as stop:
            answer = stop.value
        except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:  # noqa: BLE001 - see below
            # Boundary: the plugin call. In mid-step, a cancellation can only be the plugin's own.
            if task is not None and task.cancelling() > before:
                return self._spare_caller(step, chain, started, task, before)
            return self._fail(step, chain, error, started)
        else:
            return self._wait(step, chain, given, context, started, (hook, scope, waiting))
        if task is not None and task.cancelling() > before:
            return self._spare_caller(step, chain, started, task, before)
        return self._settle(step, chain, given, context, started, answer)

    async def _wait(
        self,
        step: Step,
        chain: Chain,
        given: Any,
        context: PluginContext,
        started: float,
        hook: tuple[Coroutine[Any, Any, Any], Context, Any],
    ) -> _Denial | None:
        """Wait for a hook that suspended, under its timeout, and settle its answer."""
        try:
            answer = await finish(*hook, step.timeout_s, self._leftovers)
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - see below
            # Boundary: still the plugin call. The caller's own cancellation passes through.
            return self._fail(step, chain, error, started)
        return self._settle(step, chain, given, context, started, answer)

    async def _spare_caller(
        self, step: Step, chain: Chain, started: float, task: asyncio.Task[Any], before: int
    ) -> None:
        """Undo the cancellation of the caller's task by a hook, and fail the hook for it."""
        while task.cancelling() > before:
            task.uncancel()
        error = PluginCancelled("the hook cancelled the task that it runs in")
        try:
            self._fail(step, chain, error, started)
        finally:
            await absorb_cancel(task, before)

    def _settle(
        self,
        step: Step,
        chain: Chain,
        given: Any,
        context: PluginContext,
        started: float,
        answer: Any,
    ) -> _Denial | None:
        """Take what is allowed of an answer and let it take effect."""
        try:
            taken = take(step, chain, given, answer)
        except Exception as error:  # noqa: BLE001 - see below
            # Boundary: still the plugin call; an answer that cannot be read is a failed plugin.
            return self._fail(step, chain, error, started)
        chain.rows.append((step, started, self._now(), taken))
        if chain.traces is not None:
            chain.end_trace(step, taken, None)
        if step.shares_state:
            chain.share(context)
        if taken is None:
            return None
        if type(taken) is Taken:
            return self._apply(step, chain, taken)
        chain.extensions = taken
        return None

    def _apply(self, step: Step, chain: Chain, taken: Taken) -> _Denial | None:
        if taken.extensions is not None:
            chain.extensions = taken.extensions
        if taken.payload is not None:
            edited = taken.payload
            if self._guarded and step.guards_headers:
                edited = keep_headers(edited, chain.payload)
            chain.accept(edited)
        if taken.metadata:
            chain.add_metadata(taken.metadata)
        chain.retry_delay_ms = max(chain.retry_delay_ms, taken.retry_delay_ms)
        if self._observer is not None:
            request_id = chain.global_context.request_id
            if taken.discarded:
                self._observer.changes_discarded(step, taken.discarded, request_id)
            if taken.denied:
                self._observer.call_denied(step, taken.violation, request_id)
        if taken.denied and step.may_deny:
            return _Denial(step, taken.violation, taken.denial_metadata)
        return None

    def _payload_for(self, step: Step, chain: Chain) -> Any:
        payload = chain.payload
        if self._guarded:
            return isolate_payload(hide_headers(payload))
        if chain.plan.policy is not None or isinstance(payload, HttpHeaderPayload):
            return isolate_payload(payload)
        return payload

    def _fail(self, step: Step, chain: Chain, error: BaseException, started: float) -> None:
        """Judge a failure by the plugin's error policy.

        Raises:
            PluginError: the policy is fail.
            PluginViolationError: the plugin raised it; no policy holds that back.
        """
        duration_ns = nanoseconds(started, self._now())
        if chain.traces is not None:
            chain.end_trace(step, None, error)
        if isinstance(error, PluginViolationError):
            own = _raised_violation(step, error)
            _record_raised_violation(step, chain, own, duration_ns)
            if self._observer is not None:
                self._observer.call_denied(step, own.violation, chain.global_context.request_id)
            raise own from (None if own is error else error)
        timed_out = isinstance(error, PluginTimedOut)
        reason = error.message if isinstance(error, KagedError) else shown(error)
        code = "plugin_timeout" if timed_out else "plugin_error"
        ends_call = step.on_error is OnError.FAIL
        chain.record(
            step,
            ControlExecutionStatus.TIMEOUT if timed_out else ControlExecutionStatus.ERROR,
            duration_ns,
            requested_allow=None,
            effective_allow=not ends_call,
            matched=None,
            applied=ends_call or (timed_out and step.mode is PluginMode.SEQUENTIAL),
            reason=reason,
            error_code=code,
        )
        if step.on_error is OnError.DISABLE:
            step.switch.off = True
        if self._observer is not None:
            self._observer.plugin_failed(step, code, reason, chain.global_context.request_id)
        if ends_call:
            raise PluginError(PluginErrorModel(reason, step.name, code)) from error

    def _conclude(self, chain: Chain, denial: _Denial | None) -> PluginResult[Any]:
        """Start the background plugins and put the chain's result together."""
        result: PluginResult[Any] = _new(PluginResult)
        result.__dict__["_records"] = chain.records
        if denial is not None:
            result.continue_processing = False
            result.violation = denial.violation
        elif chain.retry_delay_ms:
            result.retry_delay_ms = chain.retry_delay_ms
        if chain.modified is not None:
            result.modified_payload = chain.modified
        if chain.extensions is not chain.original_extensions:
            result.modified_extensions = chain.extensions
        if chain.metadata:
            result.metadata = chain.metadata
        if chain.plan.background:
            result.background_tasks = self._start_background(chain)
        return result

    def _start_background(self, chain: Chain) -> list[asyncio.Task[PluginErrorModel | None]]:
        """Schedule the fire-and-forget plugins on private copies; none of their code runs yet."""
        at_once = asyncio.Semaphore(MAX_AT_ONCE)
        tasks: list[asyncio.Task[PluginErrorModel | None]] = []
        for step in chain.plan.background:
            if not _applies(step, chain):
                continue
            # A chain of its own: what this plugin does later touches nothing of the caller's.
            own = Chain(
                chain.plan,
                isolate_payload(chain.payload),
                chain.global_context.for_plugin(True),
                None,
                None if chain.extensions is None else isolate(chain.extensions),
            )
            chain.record(
                step,
                ControlExecutionStatus.COMPLETED,
                0,
                requested_allow=None,
                effective_allow=True,
                matched=None,
                applied=False,
            )
            work = self._in_background(step, own, at_once)
            tasks.append(self._leftovers.start(work, f"{step.hook}/{step.name}"))
        return tasks

    async def _in_background(
        self, step: Step, chain: Chain, at_once: asyncio.Semaphore
    ) -> PluginErrorModel | None:
        async with at_once:
            try:
                await self._call_and_wait(step, chain)
            except PluginError as error:
                return error.error
            except PluginViolationError as error:
                return PluginErrorModel(error.message, step.name, error.code)
        # Under ignore and disable nothing is raised, but the record tells.
        record = chain.records()[-1]
        if record.status is ControlExecutionStatus.COMPLETED:
            return None
        return PluginErrorModel(record.reason or "", step.name, record.error_code)


_new = object.__new__


class _Halt(Exception):
    """Ends the siblings of a concurrent plugin that denied or failed."""


@final
class _Denial:
    """A plugin's no, as the chain carries it."""

    __slots__ = ("denial_metadata", "step", "violation")

    def __init__(self, step: Step, violation: PluginViolation | None, denial_metadata: Any) -> None:
        self.step = step
        self.violation = violation
        self.denial_metadata = denial_metadata

    @property
    def message(self) -> str:
        reason = "no reason given" if self.violation is None else self.violation.reason
        return f"{self.step.hook} blocked by plugin {self.step.name}: {reason}"


def _applies(step: Step, chain: Chain) -> bool:
    if step.switch.off:
        return False
    return step.matches is None or step.matches(chain.payload, chain.global_context)


def _raised_violation(step: Step, error: PluginViolationError) -> PluginViolationError:
    """Take a raised refusal into the host's hands; a class of the plugin's own stays behind."""
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


def _record_raised_violation(
    step: Step, chain: Chain, error: PluginViolationError, duration_ns: int
) -> None:
    violation = error.violation
    chain.record(
        step,
        ControlExecutionStatus.COMPLETED,
        duration_ns,
        requested_allow=False,
        effective_allow=False,
        matched=True,
        applied=True,
        reason=error.message if violation is None else violation.reason,
        error_code="plugin_violation" if violation is None else violation.code,
    )


__all__ = ["Runner"]
