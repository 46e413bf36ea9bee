"""`SessionDriver`: starts, stops and resumes runs, for everybody who uses the agent loop.

message → durable → run → the loop → how it ended, durable → clean-up. One run per session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kaged.base import KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.identity import Actor
from kaged.kernel.kept_actor import KeptActor
from kaged.kernel.ownership import may_use_project
from kaged.kernel.shares import Shares
from kaged.projects.readiness import Ready
from kaged.sessions.agent_run import AgentEnd, RunState
from kaged.sessions.idle import IdleWatch
from kaged.sessions.lifecycle import SessionEvent
from kaged.sessions.loop import LoopParts, run_agent
from kaged.sessions.messages import INTERRUPTED, message_of, text_block
from kaged.sessions.prompt import system_prompt
from kaged.sessions.queued_requests import QueuedMessage
from kaged.sessions.run_ends import RunEnds
from kaged.sessions.run_options import OPERATOR, RunOptions
from kaged.sessions.run_plan import (
    GOING_ON,
    gone_on_with,
    last_options,
    model_alias,
    require_agent,
    run_state,
)
from kaged.sessions.run_values import RunEnd, asks_tools, end_of, error_of
from kaged.sessions.toolcalls import CANCELLED
from kaged.sessions.window_requests import WindowRequests
from kaged.store.agent_run_rows import AgentRunStatus, RunCause, RunResult
from kaged.store.interaction_rows import InteractionRecord
from kaged.store.session_rows import SessionRecord, SessionStatus
from kaged.tools.context import ROOT_CALLER
from kaged.wire.context import WireContext

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject
    from kaged.sessions.agent_run import AgentRun
    from kaged.sessions.agent_run_factory import AgentRunFactory
    from kaged.sessions.hooks import SessionHooks
    from kaged.sessions.needs import Models
    from kaged.sessions.queued_requests import QueuedRequests
    from kaged.sessions.resume import Resumption
    from kaged.sessions.session_cache import CachedSession, SessionCache
    from kaged.sessions.session_service import SessionService
    from kaged.store import Store
    from kaged.tools import ToolCallContext
    from kaged.tools.resolution import AgentTools

MAX_RUNS: Final = 1000
CANCEL_PATIENCE_S: Final = 10.0

RunEnded = Callable[[str, str], None]
"""(project id, run id): cleans up what a run has left behind, in the background."""

RenewActor = Callable[[KeptActor], Awaitable[Actor | None]]
"""Says who somebody is by now; None for who may not come in any more."""

_log = get_logger("kaged.sessions")


class TooManyRuns(KagedError):
    """As many runs are active as there may be, of all or of one person."""

    code = "too_many_runs"


@dataclass(slots=True, eq=False)
class _Live:
    """A run under way."""

    run: RunState
    agent_run: AgentRun
    known: CachedSession
    cause: RunCause
    ended: asyncio.Future[RunEnd]
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class SessionDriver:
    """Drives sessions. Everything that it starts ends with `close`."""

    def __init__(
        self,
        store: Store,
        service: SessionService,
        known: SessionCache,
        run_factory: AgentRunFactory,
        parts: LoopParts,
        resumption: Resumption,
        hooks: SessionHooks,
        models: Models,
        *,
        runs: dict[str, RunState],
        idle_s: Callable[[], float],
        run_ended: Sequence[RunEnded] = (),
        ready: Ready,
        renew_actor: RenewActor,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._service = service
        self._known = known
        self._run_factory = run_factory
        self._parts = parts
        self._resumption = resumption
        self._hooks = hooks
        self._models = models
        self._runs = runs
        self._run_ended = tuple(run_ended)
        self._ready = ready
        self._renew_actor = renew_actor
        self._clock = clock
        self._ids = ids
        self._tasks = Tasks("sessions")
        self._live: dict[str, _Live] = {}
        self._shares = Shares(MAX_RUNS, what="runs", error=TooManyRuns)
        self._by_session: dict[str, _Live] = {}
        self._ends = RunEnds()
        self._closing = False
        self.windows = WindowRequests(
            store,
            known,
            run_factory,
            parts,
            models,
            ready=ready,
            is_busy=self._by_session.__contains__,
        )
        self.idle = IdleWatch(self._idle, clock=clock, tasks=self._tasks, idle_s=idle_s)

    # -- what operators ask --------------------------------------------------------------------

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        model: str | None = None,
        max_steps: int | None = None,
        operator: str = OPERATOR,
        agent: str = ROOT_CALLER,
        cause: RunCause = RunCause.MESSAGE,
        pinned: bool = False,
        identity: Actor | None = None,
    ) -> str:
        """Send a message in a session and start a run; returns its id once the message is on disk.

        Raises:
            SessionNotFound, KagedError: `session_ended`, `session_busy`; nothing can be said there
                now.
            KagedError: `agent_not_found`; the project has no such agent.
            KagedError: `interaction_pending`; it waits for an answer, not for a message.
            KagedError: `too_many_runs`; all are taken, or all that this person may have.
            ModelError: `model_unknown`; nobody knows the agent's model.
        """
        session = await self._free(session_id)
        self.queued.person_spoke(session_id)
        options = RunOptions(model, max_steps, operator, agent, identity)
        live = await self._start(session, cause, options, text, pinned=pinned)
        return live.run.run_id

    async def queue(self, session_id: str, text: str, operator: str) -> str | None:
        """Hand a message to the run under way, for the end of the agent's turn; return its id.

        None when no run is under way. A run acts for the person who started it, so nobody else can
        speak into it.

        Raises:
            KagedError: `session_busy`; the run acts for somebody else.
            KagedError: `quota_exceeded`; too many messages wait already.
        """
        live = self._by_session.get(session_id)
        if live is None:
            return None
        if live.run.operator_id != operator:
            raise KagedError(
                "The run of this session that is active was started by somebody else.",
                code="session_busy",
                fix="wait for it, or cancel it",
                session_id=session_id,
            )
        self.queued.person_spoke(session_id)
        self.queued.say(session_id, QueuedMessage(text, operator))
        return live.run.run_id

    async def resume(
        self,
        session_id: str,
        *,
        operator: str = OPERATOR,
        identity: Actor | None = None,
    ) -> str:
        """Go on where a run was cut off, or with an answer that came meanwhile.

        From here on it acts for whoever resumes it.

        Raises:
            KagedError: `nothing_to_resume`; the last run came to its end.
            SessionNotFound, KagedError: `session_ended`, `session_busy`, `interaction_pending`; as
                `send`.
        """
        session = await self._free(session_id)
        options = await last_options(self._store, session)
        answers = await self._store.interactions.undelivered(session_id)
        if not answers:
            window = await self._parts.transcript.window(session_id, options.agent)
            last = window[-1] if window else None
            if last is None or (last.role == "assistant" and not asks_tools(last.content)):
                raise KagedError(
                    "The last run of this session is done.",
                    code="nothing_to_resume",
                    fix="send a message to go on",
                )
        cause = RunCause.ANSWER if answers else RunCause.RESUME
        options = replace(options, operator=operator, identity=identity, kept=None)
        return (await self._start(session, cause, options, None)).run.run_id

    async def answered(self, record: InteractionRecord) -> None:
        """Start the run that goes on with an answer. Sessions that no loop ran are left alone.

        It acts for whom the run acted that asked, whoever answered, with what they may do by now.
        Never raises: the answer is stored, and `resume` can be asked for again.
        """
        live = self._by_session.get(record.session_id)
        if live is not None:
            # The run that asked is about to end; one at a time.
            await asyncio.wait({live.ended}, timeout=CANCEL_PATIENCE_S)
        try:
            if await self._store.agent_runs.last(record.session_id) is not None:
                session = await self._free(record.session_id)
                await self._go_on(session, await last_options(self._store, session))
        except KagedError as error:
            _log.warning("sessions.not_resumed", session_id=record.session_id, error=str(error))

    async def wait(self, run_id: str) -> RunEnd:
        """Wait for the end of a run. Raises RunNotFound."""
        live = self._live.get(run_id)
        if live is not None:
            return await asyncio.shield(live.ended)
        found = self._ends.get(run_id)
        return found or end_of(await self._store.agent_runs.get(run_id))

    async def follow(self, end: RunEnd) -> RunEnd:
        """Wait for the end of the run that goes on where a paused one stopped."""
        return await self.wait(await self._ends.next_after(end))

    async def cancel(self, which: str) -> bool:
        """End the active run of a session, or a run; returns whether there was one.

        Returns when it has ended, or after a while when something in it will not let go.
        """
        live = self._by_session.get(which) or self._live.get(which)
        if live is None or live.task is None:
            return False
        live.cancelled = True
        live.task.cancel()
        await asyncio.wait({live.ended}, timeout=CANCEL_PATIENCE_S)
        return True

    async def admit(self, kept: KeptActor | None, project_id: str) -> Actor | None:
        """Return for whom work goes on in a project, with what they may do there by now.

        Raises:
            KagedError: `actor_not_allowed`; they may not use it any more.
        """
        if kept is None:
            return None
        actor = await self._renew_actor(kept)
        if actor is None or not may_use_project(actor, project_id):
            raise KagedError(
                f"{kept.facts.person_id}, for whom this was done, may not use this project any "
                "more.",
                code="actor_not_allowed",
                fix="resume it for yourself, or let the operator allow them to use the project",
            )
        return actor

    # -- what scripts ask ----------------------------------------------------------------------

    @property
    def queued(self) -> QueuedRequests:
        """What waits for the end of a session's turn."""
        return self._parts.queued

    async def take_up(self, session_id: str) -> None:
        """Do what is queued for a session now, unless a run is under way: that one does it.

        A run that is started so acts for whom the session's last run acted, in the same chat and
        with what they may do by now; for nobody in a session that had no run.

        Raises:
            KagedError: `actor_not_allowed`; they may not use the project any more.
            SessionNotFound, KagedError: as `send` and `WindowRequests.compact`.
        """
        if session_id in self._by_session:
            return
        asked = self.queued.take_compaction(session_id)
        if asked is not None:
            await self.windows.compact(session_id, wish=asked[0])
        if self.queued.starts_run(session_id):
            session = await self._free(session_id)
            last = self.queued.take_last(session_id)
            before = await last_options(self._store, session)
            identity = await self.admit(before.kept, session.project_id)
            operator = last.asked_by if identity is None else before.operator
            options = RunOptions(operator=operator, identity=identity, kept=before.kept)
            await self._start(session, RunCause.MESSAGE, options, last.text)

    # -- what the host asks --------------------------------------------------------------------

    def takes_over(self, context: ToolCallContext) -> bool:
        """Return whether a call comes out of a run; it then pauses, since it asked the operator."""
        run = self._runs.get(context.run_id)
        if run is None:
            return False
        run.pause(context.request_id)
        return True

    def active_in(self, projects: Collection[str]) -> int:
        """Count the sessions of these projects that have a run under way."""
        return sum(live.run.project_id in projects for live in self._by_session.values())

    def fixed_tools(self, context: ToolCallContext) -> AgentTools | None:
        """Return the tools of a caller as its session has them; None for callers without a run."""
        run = self._runs.get(context.run_id)
        found = None if run is None else run.snapshot.agents.get(context.caller)
        return None if found is None else found.tools

    def project_unloaded(self, project_id: str) -> None:
        """End what runs in a project that is gone, in the background."""
        self._known.forget(project_id)
        for live in list(self._live.values()):
            if live.run.project_id == project_id and live.task is not None:
                live.cancelled = True
                live.task.cancel()

    async def recover(self) -> int:
        """Go on with answers that a daemon before this one took but did not deliver."""
        waiting = await self._store.interactions.all_undelivered()
        for record in waiting:
            await self.answered(record)
        return len(waiting)

    async def close(self) -> None:
        """End every run; they are interrupted and can be resumed. Safe to call twice."""
        self._closing = True
        await self._tasks.close()

    # -- one run -------------------------------------------------------------------------------

    async def _go_on(self, session: SessionRecord, options: RunOptions) -> None:
        """Go on with an answer. A run that may not is put on record as one that failed, once.

        The answer stays: who is allowed again later goes on with it.
        """
        try:
            identity = await self.admit(options.kept, session.project_id)
        except KagedError as error:
            last = await self._store.agent_runs.last(session.id)
            if last is not None and (last.error or {}).get("code") == error.code:
                raise
            run_id = self._ids.tagged("run")
            await self._begin(session, RunCause.ANSWER, options, run_id, options.model)
            ended = RunResult(AgentRunStatus.FAILED, error=error_of(error))
            await self._service.finish_run(run_id, ended)
            self._ends.started(session.id, run_id)
            raise
        await self._start(session, RunCause.ANSWER, replace(options, identity=identity), None)

    async def _begin(
        self,
        session: SessionRecord,
        cause: RunCause,
        options: RunOptions,
        run_id: str,
        model: str | None,
    ) -> None:
        await self._service.begin_run(
            session.id,
            cause=cause,
            model=model,
            operator_id=options.operator,
            run_id=run_id,
            teams=frozenset() if options.identity is None else options.identity.teams,
            started_with=options.as_json(),
        )

    async def _free(self, session_id: str) -> SessionRecord:
        """Return a session in which a run may start, once its project is guarded."""
        session = await self._store.sessions.of_id(session_id)
        await self._ready(session.project_id)
        if session.status == SessionStatus.ENDED.value or self._closing:
            raise KagedError(
                "This session has ended.", code="session_ended", fix="fork it, or start another"
            )
        if session_id in self._by_session:
            raise KagedError(
                "A run of this session is active.",
                code="session_busy",
                fix="wait for it, or cancel it",
                session_id=session_id,
            )
        pending = await self._store.interactions.pending_of(session_id)
        if pending is not None:
            raise KagedError(
                "This session waits for the operator.",
                code="interaction_pending",
                fix="answer what it asks, or withdraw the question",
                request_id=pending,
            )
        return session

    async def _start(
        self,
        session: SessionRecord,
        cause: RunCause,
        options: RunOptions,
        text: str | None,
        *,
        pinned: bool = False,
    ) -> _Live:
        """Begin a run on disk and start it; nothing of it is left behind when that fails."""
        run_id = self._ids.tagged("run")
        self._shares.take(run_id, options.identity)
        try:
            return await self._start_as(run_id, session, cause, options, text, pinned=pinned)
        except BaseException:
            self._shares.release(run_id)
            raise

    async def _start_as(
        self,
        run_id: str,
        session: SessionRecord,
        cause: RunCause,
        options: RunOptions,
        text: str | None,
        *,
        pinned: bool,
    ) -> _Live:
        known = await self._known.of(session)
        require_agent(known, options.agent)
        alias = model_alias(session, options, options.agent, known)
        self._models.get(alias, session.project_id)  # who cannot be asked is not asked half-way
        earlier, _ = await self._service.runs(session.id, limit=1)
        if options.kept is None and options.identity is not None:
            now_ms = self._clock.now_ms()
            options = replace(options, kept=KeptActor.of(options.identity, now_ms))
        await self._begin(session, cause, options, run_id, alias)
        if earlier and earlier[0].model not in {None, alias}:
            selected: JsonObject = {
                "prev": earlier[0].model,
                "next": alias,
                "source": "run" if options.model else "project",
            }
            self._parts.announce(
                SessionEvent("model.selected", session.id, session.project_id, run_id, selected)
            )
        run = run_state(session, run_id, known, options)
        run.resumes_pause = cause is RunCause.ANSWER
        if cause in GOING_ON:
            run.goes_on = await gone_on_with(self._store, session.id)
        self._runs[run_id] = run
        self.idle.busy(session.id)
        try:
            agent_run = await self._run_factory.create(
                run,
                options.agent,
                options.agent,
                model=alias,
                max_steps=options.max_steps,
                prompt=known.prompt if options.agent == ROOT_CALLER else "",
            )
            agent_run.cleared = known.cleared
            if text is not None:
                await self._parts.tools.close(agent_run, INTERRUPTED)
                for one in self.queued.take_messages(session.id):
                    await self._run_factory.tell(agent_run, one.text)
                await self._run_factory.tell(agent_run, text, pinned=pinned)
        except BaseException as error:
            self._runs.pop(run_id, None)
            failed = error_of(error) if isinstance(error, KagedError) else None
            await self._service.finish_run(run_id, RunResult(AgentRunStatus.FAILED, error=failed))
            raise
        ended = asyncio.get_running_loop().create_future()
        live = _Live(run, agent_run, known, cause, ended)
        self._live[run_id] = self._by_session[session.id] = live
        live.task = self._tasks.start(self._drive(live), run_id)
        self._ends.started(session.id, run_id)
        return live

    async def _drive(self, live: _Live) -> None:
        """Carry a run out and put on record how it ended. Whatever happens, it ends."""
        run, agent_run = live.run, live.agent_run
        status, end = AgentRunStatus.FAILED, AgentEnd(paused=False)
        error: JsonObject | None = None
        try:
            end = await self._work(live)
            status = AgentRunStatus.PAUSED if end.paused else AgentRunStatus.COMPLETED
        except asyncio.CancelledError:
            # Not raised again: this task is the run, and how it ended must be put on record.
            stopped = live.cancelled or not self._closing
            status = AgentRunStatus.CANCELLED if stopped else AgentRunStatus.INTERRUPTED
            if stopped:
                await self._parts.tools.close(agent_run, CANCELLED)
        except KagedError as failure:
            error = error_of(failure)
        # Boundary: a run ends, the daemon goes on.
        except Exception as failure:  # noqa: BLE001 - see above
            _log.exception("run.failed", run_id=run.run_id, error=type(failure).__name__)
            error = {
                "code": "internal_error",
                "message": f"it broke inside ({type(failure).__name__}); the daemon's log has more",
            }
        finally:
            await self._end(live, status, error, end)

    async def _work(self, live: _Live) -> AgentEnd:
        """Do what the run is for: settle what is open, then let the agent work."""
        run, agent_run = live.run, live.agent_run
        if live.cause in GOING_ON:
            await self._resumption.settle(agent_run)
        if run.top == ROOT_CALLER:
            injected = await self._known.injections(live.known, agent_run, self._ids.tagged("req"))
            agent_run.system_prompt = system_prompt(agent_run.system_prompt, injected)
        hooked = await self._parts.policies.agent_call(
            run, agent_run.path, agent_run.model.alias, agent_run.asked
        )
        asked = agent_run.window.messages[-1] if agent_run.window.messages else None
        if hooked is not None and asked is not None and asked.role == "user":
            text, agent_run.system_prompt = await hooked.before(
                asked.text,
                tools=agent_run.snapshot.tools.names,
                model=agent_run.model.alias,
                system_prompt=agent_run.system_prompt,
            )
            if text != asked.text:
                agent_run.window.messages[-1] = message_of(asked.id, asked.role, [text_block(text)])
        end = await run_agent(agent_run, self._parts)
        if hooked is not None and not end.paused:
            end = AgentEnd(False, await hooked.after(end.text), end.finish_reason)
        return end

    async def _end(
        self, live: _Live, status: AgentRunStatus, error: JsonObject | None, end: AgentEnd
    ) -> None:
        run = live.run
        usage = run.spending.usage
        used: JsonObject = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
        }
        paused = status is AgentRunStatus.PAUSED
        ended = RunEnd(
            run.run_id, run.session_id, status, end.text, run.spending.steps, used, error,
            next(iter(run.pauses.values()), None) if paused else None, end.finish_reason,
        )  # fmt: skip
        try:
            await self._service.finish_run(
                run.run_id,
                # A session that paused stays at its checkpoint, whatever its run's end says.
                RunResult(status, run.spending.steps, used, error),
            )
        except KagedError as failure:
            _log.error("run.end_not_stored", run_id=run.run_id, error=str(failure))
        finally:
            self._runs.pop(run.run_id, None)
            self._live.pop(run.run_id, None)
            self._shares.release(run.run_id)
            self._by_session.pop(run.session_id, None)
            self._ends.keep(ended)
            if not live.ended.done():
                live.ended.set_result(ended)
        self._clean_up(run)
        if not self._closing:
            self.idle.touched(run.session_id)
            await self._parts.between_turns(run.session_id)
            if live.cancelled:
                self.queued.forget(run.session_id)
            elif self.queued.waits(run.session_id):
                # It came after the last turn, when nobody looked any more.
                self._tasks.start(self._take_up_late(run.session_id), run.session_id)

    async def _take_up_late(self, session_id: str) -> None:
        try:
            await self.take_up(session_id)
        except KagedError as error:
            _log.warning("sessions.queued_not_done", session_id=session_id, error=str(error))

    def _clean_up(self, run: RunState) -> None:
        """End everything that belongs to a run (AT-SESS-13)."""
        for one in self._run_ended:
            try:
                one(run.project_id, run.run_id)
            # Boundary: one that fails keeps no other from cleaning up.
            except Exception as error:  # noqa: BLE001 - see above
                _log.error("run.clean_up_failed", run_id=run.run_id, error=repr(error))

    async def _idle(self, session_id: str) -> None:
        """Notify plugins and listeners that a session is idle."""
        try:
            session = await self._store.sessions.of_id(session_id)
            self._parts.announce(SessionEvent("session.idle", session_id, session.project_id))
            options = await last_options(self._store, session)
            # Only the root has this hook; a workflow that another agent carries out has none.
            if options.agent != ROOT_CALLER or not self._hooks.wants_idle(
                session.project_id, ROOT_CALLER
            ):
                return
            context = WireContext(
                request_id=self._ids.tagged("req"),
                operator_id=options.operator,
                project_id=session.project_id,
                agent_path=ROOT_CALLER,
                session_id=session_id,
            )
            await self._hooks.session_idle(context, await self._known.history(session_id))
        except KagedError as error:
            _log.info("sessions.idle_not_delivered", session_id=session_id, error=str(error))
