"""`Runner`: runs the policy plugins of a hook. No other module calls a hook."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

from kaged.base import KagedError
from kaged.pipeline.answers import accept_answer
from kaged.pipeline.chain import Chain, Denial, make_record
from kaged.pipeline.edits import check_size
from kaged.pipeline.errors import PluginError, PluginErrorModel, PluginViolationError
from kaged.pipeline.failures import record_failure
from kaged.pipeline.hook_call import finish_hook, running_task, start_hook
from kaged.pipeline.isolation import isolate, isolate_payload
from kaged.pipeline.payloads.base import HttpHeaderPayload
from kaged.pipeline.records import ControlExecutionStatus
from kaged.pipeline.results import PluginResult
from kaged.pipeline.view import view_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kaged.base import Clock, Tasks
    from kaged.pipeline.auditing import PipelineObserver
    from kaged.pipeline.chain import Accepted, StepTracer, TraceEnd
    from kaged.pipeline.contexts import GlobalContext, PluginContext, PluginContextTable
    from kaged.pipeline.plan import Plan, Step
    from kaged.pipeline.slots import Extensions

MAX_DEPTH = 8
MAX_AT_ONCE = 10

_Unfinished: TypeAlias = (
    "tuple[Coroutine[Any, Any, Any], Any, Any, PluginContext, float, TraceEnd | None]"
)
"""A step whose plugin has suspended: the hook, what it waits for, its payload and context, when it
began, and whom to tell of its end."""

_depth: ContextVar[int] = ContextVar("kaged.pipeline.depth", default=0)


class Runner:
    """Runs plans. Holds no state about calls; `background` owns what outlives a call.

    With `guarded` (the daemon's own calls) every plugin works on a private copy of the payload,
    header maps in payloads need header capabilities, and user and identity in the shared context
    need `read_subject`. Without it (a program that drives the stand-in manager itself) a plugin
    gets what the program passed in. Of concurrent and of background plugins of one call, `at_once`
    run at the same time.
    """

    def __init__(
        self,
        clock: Clock,
        background: Tasks,
        *,
        guarded: bool = True,
        observer: PipelineObserver | None = None,
        tracer: StepTracer | None = None,
        at_once: int = MAX_AT_ONCE,
    ) -> None:
        self._at_once = at_once
        self._now = clock.monotonic_s
        self._background = background
        self._guarded = guarded
        self._observer = observer
        self._tracer = tracer

    def watch(self, tracer: StepTracer | None) -> None:
        """Report the steps of calls to `tracer` from now on; None ends it."""
        self._tracer = tracer

    async def run(
        self,
        plan: Plan,
        payload: Any,
        global_context: GlobalContext,
        local_contexts: PluginContextTable | None = None,
        violations_as_exceptions: bool = False,
        extensions: Extensions | None = None,
        tracer: StepTracer | None = None,
    ) -> tuple[PluginResult[Any], PluginContextTable | None]:
        """Run all plugins of a plan on a payload; `tracer` watches the steps of this call.

        Return the result of the chain and the contexts of its plugins, to be passed into the post
        hook of the same request. `modified_extensions` is None when no change was accepted.

        Raises:
            PluginError: a plugin failed whose `on_error` is fail.
            PluginViolationError: a plugin denied and the caller asked for exceptions, or a plugin
                raised this itself.
            PayloadSizeError: the payload is too large.
            KagedError: `pipeline_recursion`; a plugin called the pipeline too many levels deep.
        """
        if plan.empty:
            return PluginResult(), None
        check_size(payload)
        scope = copy_context()
        level = _depth.get() + 1
        if level > MAX_DEPTH:
            raise KagedError(
                f"the pipeline was called {MAX_DEPTH} levels deep within itself",
                code="pipeline_recursion",
            )
        scope.run(_depth.set, level)
        chain = Chain(plan, payload, global_context, local_contexts, extensions, scope, tracer)
        denial: Denial | None = None
        task = asyncio.current_task()
        assert task is not None
        try:
            for step in plan.serial:
                if step.applies(chain.payload, global_context):
                    # Most plugins never suspend, and need no coroutine of ours.
                    outcome = self._start_step(step, chain, task)
                    if outcome is None:
                        continue
                    if isinstance(outcome, tuple):
                        outcome = await self._finish_step(step, chain, task, outcome)
                    if outcome is not None:
                        denial = outcome
                        break
            if plan.concurrent and denial is None:
                denial = await self._run_concurrent(chain)
        except (PluginError, PluginViolationError) as error:
            error.executions = chain.records()
            raise
        if denial is not None and violations_as_exceptions:
            raise PluginViolationError.of_host(
                denial.message, denial.violation, denial.denial_metadata, chain.records()
            )
        result = chain.result(denial)
        if plan.background:
            result.background_tasks = self._start_background(chain)
        return result, chain.contexts

    def _start_step(
        self, step: Step, chain: Chain, task: asyncio.Task[Any]
    ) -> Denial | _Unfinished | None:
        """Run one plugin up to its first suspension, which most never reach: filter, call, take.

        Return its denial, if it denies, or what `_finish_step` goes on with.
        """
        view = view_of(chain.extensions, step.rights)
        if self._guarded and not step.hides_headers:
            given = chain.copy_payload()
        else:
            given = self._payload_for(step, chain)
        context = chain.context_for(step, step.rights.subject or not self._guarded)
        tracer = chain.tracer or self._tracer
        trace_end = None if tracer is None else tracer.step_began(step, chain, given, view)
        started = self._now()
        try:
            hook = step.call(given, context, view)
            finished, answer = start_hook(hook, task, chain.scope.copy())
            if not finished:
                return (hook, answer, given, context, started, trace_end)
            accepted = accept_answer(step, chain, given, answer)
        except BaseException as error:  # noqa: BLE001 - judged there; nothing waits here, so nobody else can have cancelled
            self._fail_step(step, chain, _of_the_plugin(error), started, trace_end)
            return None
        return self._take(step, chain, context, accepted, started, trace_end)

    async def _finish_step(
        self, step: Step, chain: Chain, task: asyncio.Task[Any], rest: _Unfinished
    ) -> Denial | None:
        """Wait for a plugin that has suspended; return its denial, if it denies."""
        hook, waiting, given, context, started, trace_end = rest
        try:
            answer = await finish_hook(hook, task, waiting, step.timeout_s, self._background)
            try:
                accepted = accept_answer(step, chain, given, answer)
            except asyncio.CancelledError as error:
                raise _of_the_plugin(error) from error
        except asyncio.CancelledError as error:
            if trace_end is not None:
                trace_end(None, error)
            raise  # the caller's own: `finish_hook` keeps a hook's to itself
        except BaseException as error:  # noqa: BLE001 - judged there
            self._fail_step(step, chain, error, started, trace_end)
            return None
        return self._take(step, chain, context, accepted, started, trace_end)

    async def _run_step(self, step: Step, chain: Chain, task: asyncio.Task[Any]) -> Denial | None:
        """Run one plugin to its end. Return its denial, if it denies."""
        outcome = self._start_step(step, chain, task)
        if isinstance(outcome, tuple):
            return await self._finish_step(step, chain, task, outcome)
        return outcome

    def _fail_step(
        self,
        step: Step,
        chain: Chain,
        error: BaseException,
        started: float,
        trace_end: TraceEnd | None,
    ) -> None:
        """Record what a plugin raised, and raise what ends the call, if it does.

        Boundary: the plugin call. An answer that cannot be read is a failed plugin, too. The
        daemon's own signals never arrive as exceptions: the event loop handles them.
        """
        ends_call = record_failure(step, chain, error, self._now() - started, self._observer)
        if trace_end is not None:
            # Of a denial the host's own copy: the plugin's may run code when it is read.
            trace_end(None, ends_call if isinstance(ends_call, PluginViolationError) else error)
        if ends_call is not None:
            raise ends_call from (None if ends_call is error else error)

    def _take(
        self,
        step: Step,
        chain: Chain,
        context: PluginContext,
        accepted: Accepted | None,
        started: float,
        trace_end: TraceEnd | None,
    ) -> Denial | None:
        """Record a completed step and apply what was accepted. Return the denial, if it is one."""
        chain.completed.append((step, started, self._now(), accepted))
        if trace_end is not None:
            trace_end(accepted, None)
        if step.shares_state:
            chain.share_state(context)
        if accepted is None:
            return None
        chain.apply(accepted, self._guarded and step.guards_headers)
        if accepted.discarded or accepted.denied:
            self._report(step, chain, accepted)
            if accepted.denied and step.may_deny:
                return Denial(
                    step, accepted.violation, accepted.denial_metadata, accepted.retry_delay_ms
                )
        return None

    def _payload_for(self, step: Step, chain: Chain) -> Any:
        """Return the payload as this plugin may see it: a copy of its own in guarded calls."""
        payload = chain.payload
        if self._guarded:
            if step.hides_headers and getattr(payload, "headers", None) is not None:
                return isolate_payload(payload.model_copy(update={"headers": None}))
        elif chain.plan.policy is None and not isinstance(payload, HttpHeaderPayload):
            return payload
        return chain.copy_payload()

    def _report(self, step: Step, chain: Chain, accepted: Accepted) -> None:
        """Report discarded changes and denials to the observer."""
        if self._observer is None:
            return
        request_id = chain.global_context.request_id
        if accepted.discarded:
            self._observer.changes_discarded(step, accepted.discarded, request_id)
        if accepted.denied:
            self._observer.call_denied(step, accepted.violation, request_id)

    async def _run_concurrent(self, chain: Chain) -> Denial | None:
        """Run the concurrent plugins together; the first that denies or fails ends the others."""
        steps = [s for s in chain.plan.concurrent if s.applies(chain.payload, chain.global_context)]
        waiting = iter(steps)
        ended_by: list[Denial | PluginError | PluginViolationError] = []

        async def work() -> None:
            task = running_task()
            for step in waiting:  # which all workers share
                try:
                    outcome = await self._run_step(step, chain, task)
                except (PluginError, PluginViolationError) as error:
                    outcome = error
                if outcome is not None:
                    ended_by.append(outcome)
                    raise _EndSiblings

        try:
            async with asyncio.TaskGroup() as group:
                for _ in steps[: self._at_once]:
                    group.create_task(work())
        except* _EndSiblings:
            pass  # `ended_by` holds the reason
        reason = ended_by[0] if ended_by else None
        if reason is None or isinstance(reason, Denial):
            return reason
        raise reason

    def _start_background(self, chain: Chain) -> list[asyncio.Task[PluginErrorModel | None]]:
        """Schedule the fire-and-forget plugins on private copies; none of their code runs yet."""
        at_once = asyncio.Semaphore(self._at_once)
        tasks: list[asyncio.Task[PluginErrorModel | None]] = []
        for step in chain.plan.background:
            if not step.applies(chain.payload, chain.global_context):
                continue
            # A chain of its own: nothing that this plugin does later changes the caller's objects.
            private = Chain(
                chain.plan,
                isolate_payload(chain.payload),
                chain.global_context.for_plugin(True),
                None,
                None if chain.extensions is None else isolate(chain.extensions),
                chain.scope,
                chain.tracer,
            )
            chain.completed.append(make_record(step, ControlExecutionStatus.COMPLETED, 0))
            work = self._run_in_background(step, private, at_once)
            tasks.append(self._background.start(work, f"{step.hook}/{step.name}"))
        return tasks

    async def _run_in_background(
        self, step: Step, chain: Chain, at_once: asyncio.Semaphore
    ) -> PluginErrorModel | None:
        """Run one fire-and-forget plugin and return its error."""
        async with at_once:
            try:
                await self._run_step(step, chain, running_task())
            except PluginError as error:
                return error.error
            except PluginViolationError as error:
                return PluginErrorModel(error.message, step.name, error.code)
        record = chain.records()[-1]  # under `ignore` and `disable` only the record says
        if record.status is ControlExecutionStatus.COMPLETED:
            return None
        return PluginErrorModel(record.reason or "", step.name, record.error_code)


def _of_the_plugin(error: BaseException) -> BaseException:
    """Return an error as the plugin's: a cancellation while its answer was read is its own."""
    if not issubclass(type(error), asyncio.CancelledError):
        return error
    own = KagedError("the answer cancelled the call while it was read", code="plugin_cancelled")
    own.__cause__ = error
    return own


class _EndSiblings(Exception):
    """Ends the siblings of a concurrent plugin that denied or failed."""
