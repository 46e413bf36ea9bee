"""`TraceLog`: what each policy saw, changed and decided in the newest calls, kept for a look later.

Names and words, never values: neither arguments nor the content of slots get in here, and what
looks like a secret is taken out of the words as in the audit log. How much is kept has bounds, for
one request and in all; a step that finds no room is dropped and does not hold up its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kaged.base import Clock, JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.pipeline_section import KeptTraces
from kaged.store.pipeline_trace_rows import TraceRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kaged.audit import Redactor
    from kaged.kernel.identity import Actor
    from kaged.pipeline.chain import Chain, TraceEnd
    from kaged.pipeline.origin import CallOrigin
    from kaged.pipeline.plan import Step
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.traced_step import TracedStep
    from kaged.store import Store

MAX_PENDING = 2_000
"""Steps that wait to be written; what comes on top of them is dropped."""

MAX_NAMES = 40
"""Names in one list of a step."""

_log = get_logger("kaged.pipeline")


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The steps of one request; with `cut` there were more than are kept."""

    request_id: str
    steps: Sequence[TraceRow]
    cut: bool


class TraceLog:
    """Takes the steps of all calls and writes them behind the calls' backs.

    `keeps` tells at each call which steps are wanted.
    """

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        clock: Clock,
        keeps: Callable[[], KeptTraces] = lambda: KeptTraces.ALL,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._clock = clock
        self._keeps = keeps
        self._pending: list[tuple[CallOrigin, int, TracedStep]] = []
        self._tasks = Tasks("pipeline-traces")
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def of_call(self, origin: CallOrigin) -> CallTracer | None:
        """Return what watches the steps of one call; None where traces are switched off."""
        keeps = self._keeps()
        if keeps is KeptTraces.OFF:
            return None
        return CallTracer(self, self._clock, origin, keeps is KeptTraces.REFUSALS)

    def add(self, origin: CallOrigin, step: TracedStep) -> None:
        """Keep a step of a call, from the next turn of the event loop on."""
        if self._closed or len(self._pending) >= MAX_PENDING:
            return
        self._pending.append((origin, self._clock.now_ms(), step))
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._write(), "write")

    async def read(self, request_id: str, actor: Actor) -> RequestTrace:
        """Return what policies did in a request, as far as the actor may see it.

        Raises:
            KagedError: `pipeline_trace_not_found`; nothing is kept of it that they may see.
        """
        await self.written()  # what happened before the question belongs into the answer
        steps, cut = await self._store.pipeline_traces.of_request(request_id, actor)
        if not steps:
            raise KagedError(
                f"No trace of the request {request_id} is kept.",
                code="pipeline_trace_not_found",
                fix="Check the id, and 'traces' in [pipeline] of config.toml. "
                "Traces are kept of the newest requests that met a policy.",
            )
        return RequestTrace(request_id, steps, cut)

    async def written(self) -> None:
        """Wait until the steps so far are written, or cannot be."""
        await self._write()

    async def close(self) -> None:
        """Write what is left. Steps that come later are dropped."""
        self._closed = True
        await self.written()
        await self._tasks.close()

    async def _write(self) -> None:
        async with self._writing:
            while self._pending:
                pending, self._pending = self._pending, []
                rows = [self._row(*waiting) for waiting in pending]
                try:
                    await self._store.pipeline_traces.write(rows)
                except KagedError as error:
                    # The calls are made; a trace is no reason to refuse the next one.
                    _log.warning("pipeline.trace_not_written", steps=len(rows), error=error.code)

    def _row(self, origin: CallOrigin, at_ms: int, step: TracedStep) -> TraceRow:
        actor = origin.actor
        person = actor if actor is not None and actor.is_person else None
        known = origin.properties
        agent = origin.agent
        return TraceRow(
            request_id=origin.request_id,
            person_id=None if person is None else person.person_id,
            chat_id=None if person is None else person.chat,
            project_id=known.get("project_id"),
            session_id=known.get("session_id") if agent is None else agent.session_id,
            at_ms=at_ms,
            step=self._kept(step),
        )

    def _kept(self, step: TracedStep) -> JsonObject:
        # Looked at is what plugins and callers can word: names of slots are the host's own.
        allowed = step.outcome == "allowed"
        return {
            "hook": step.hook,
            "plugin": step.plugin,
            "mode": step.mode,
            "saw": list(step.saw),
            "read": self._names(step.read),
            "changed": self._names(step.changed),
            "refused": self._names(step.refused),
            "outcome": step.outcome if allowed else self._short(step.outcome),
            "duration_ns": step.duration_ns,
            "code": self._short(step.code),
            "reason": self._short(step.reason),
            "description": self._short(step.description),
        }

    def _names(self, names: Iterable[str]) -> list[JsonValue]:
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.tiers import SLOT_POLICIES  # noqa: PLC0415 - see the line above

        listed: list[JsonValue] = [
            one if type(one) is str and one in SLOT_POLICIES else self._short(one) for one in names
        ]
        if len(listed) <= MAX_NAMES:
            return listed
        return [*listed[:MAX_NAMES], f"and {len(listed) - MAX_NAMES} more"]

    def _short(self, text: str) -> str:
        if not text:
            return text
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.records import shorten  # noqa: PLC0415 - see the line above

        return shorten(self._redactor.text(text))


class CallTracer:
    """Watches the steps of one call for the log."""

    __slots__ = ("_clock", "_log", "_origin", "_refusals_only")

    def __init__(
        self, log: TraceLog, clock: Clock, origin: CallOrigin, refusals_only: bool
    ) -> None:
        self._log = log
        self._clock = clock
        self._origin = origin
        self._refusals_only = refusals_only

    def keep(self, step: TracedStep) -> None:
        """Hand a step to the log."""
        self._log.add(self._origin, step)

    def step_began(self, step: Step, chain: Chain, given: Any, view: Extensions | None) -> TraceEnd:
        """Note what a plugin is given, and what it did with it when it ends."""
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.traced_step import watch_step  # noqa: PLC0415 - see the line above

        del given
        return watch_step(
            self._clock, step, chain, view, self.keep, refusals_only=self._refusals_only
        )
