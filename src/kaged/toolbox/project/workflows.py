"""`WorkflowService`: lists a project's workflows, starts runs of them and reports their status.

What carries a run out is the `WorkflowRunner` that dispatch is built with. Without one a workflow
cannot be started, and nothing is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from typing import Protocol

from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.workflows import Invoker, Workflow
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import OPERATORS, AccessAction, Ownership, ownership_of
from kaged.projects.readiness import Ready
from kaged.store import Store
from kaged.store.run_rows import RunDraft, RunRecord, RunStatus
from kaged.store.work_errors import RunNotFound
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.person_uploads import PersonUploads
from kaged.toolbox.project.uploads import Stored, Upload, UploadPlace, store_uploads
from kaged.toolbox.project.workflow_inputs import checked_inputs, describe_inputs, refuse_files

RESULT_LIMIT_CHARS = 256 * 1024
ERROR_LIMIT_CHARS = 2000
RUN_ID_LIMIT_CHARS = 120
INTERRUPTED = "interrupted"
"""Why a run failed that its daemon did not outlive."""

_log = get_logger(__name__)


class WorkflowRunner(Protocol):
    """Carries runs out: the agent loop."""

    async def run(
        self, run: RunRecord, workflow: Workflow, identity: Actor | None = None
    ) -> JsonValue:
        """Do what the workflow says, with `run.inputs`, in the session `run.run_id`.

        It acts for `identity`; without one no account of anybody is used.

        The value is kept as the result of the run. Raising ends the run as failed, with the
        error's message as the reason. It is cancelled when the run's time is up or the operator
        ends it. A run that `waits` may be given again, and goes on where it stands.
        """
        ...

    async def waits(self, run: RunRecord) -> bool:
        """Return whether nothing of a run is under way but a question to the operator."""
        ...


class WorkflowSource(Protocol):
    """The loaded projects, as far as workflows need them."""

    def workflows(self, project_id: str) -> Mapping[str, Workflow]:
        """Return the workflows that a project declares now."""
        ...

    def root(self, project_id: str) -> str:
        """Return the folder of a project."""
        ...


@dataclass(eq=False)
class WorkflowService:
    """Starts workflows and keeps an eye on their runs."""

    store: Store
    source: WorkflowSource
    _: KW_ONLY
    clock: Clock
    ids: Ids
    tasks: Tasks
    ready: Ready
    uploads: PersonUploads
    _runner: WorkflowRunner | None = field(default=None, init=False)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def connect(self, runner: WorkflowRunner) -> None:
        """Take what carries runs out; without it none is started."""
        self._runner = runner

    def list(
        self, project_id: str, invokable_by: Invoker | None = None, who: Actor | None = None
    ) -> JsonObject:
        """List the workflows that a project declares, from memory; people see those of guests."""
        for_guests = who is not None and who.is_person
        found: list[JsonValue] = [
            {
                "name": name,
                "description": workflow.description,
                "inputs": describe_inputs(workflow),
                "invokable_by": [one.value for one in workflow.invokable_by],
                "timeout_seconds": workflow.timeout_seconds,
            }
            for name, workflow in self.source.workflows(project_id).items()
            if (invokable_by is None or invokable_by in workflow.invokable_by)
            and (not for_guests or Invoker.GUEST in workflow.invokable_by)
        ]
        return {"workflows": found, "count": len(found)}

    async def trigger(
        self,
        project_id: str,
        name: str,
        inputs: JsonObject,
        invoker_id: str,
        *,
        files: Mapping[str, Upload] | None = None,
        who: Actor | None = None,
    ) -> Done:
        """Start a run; it goes on by itself. `files` None means that files cannot be given.

        It belongs to `who` and acts for them. People start what guests may start; nothing else
        exists for them.

        Raises `workflow_not_found`, `file_input_not_supported`, InvalidParams,
        `workflow_runner_missing` and ProjectOpening.
        """
        workflow = self.source.workflows(project_id).get(name)
        invoker = Invoker.GUEST if who is not None and who.is_person else Invoker.OPERATOR
        if workflow is None or (
            invoker is Invoker.GUEST and Invoker.GUEST not in workflow.invokable_by
        ):
            raise WorkError(
                f"The project declares no workflow {name[:80]!r}.",
                code="workflow_not_found",
                fix="list the workflows to see which there are",
                name=name[:200],
            )
        if files is None:
            refuse_files(name, workflow, inputs)
        checked = checked_inputs(workflow, inputs, frozenset(files or ()))
        runner = self._runner
        if runner is None:
            raise WorkError(
                "This daemon has no agent loop that could carry a workflow out.",
                code="workflow_runner_missing",
                fix="nothing was started; the workflow can be started once the daemon runs agents",
                workflow=name,
            )
        await self.ready(project_id)
        ownership = OPERATORS if who is None else ownership_of(who)
        stored: Stored | None = None
        run_id = self.ids.ulid()
        if files:
            place = self._place(project_id, run_id, ownership)
            stored = await asyncio.to_thread(store_uploads, place, files)
            checked = {**checked, **stored.paths}
        draft = RunDraft(
            project_id, name, checked, invoker.value, invoker_id, workflow.timeout_seconds, run_id
        )
        try:
            run = await self.store.runs.create(draft, ownership)
        except Exception:
            if stored is not None:
                await asyncio.to_thread(stored.discard)
            raise
        self._start(runner, run, workflow, None if who is None else who.if_known)
        return Done(
            {
                "run_id": run.run_id,
                "workflow_name": name,
                "status": run.status.value,
                "created_at": run.created_at_ms // 1000,
            },
            "kaged.workflow.triggered",
            {"run_id": run.run_id, "workflow_name": name, "inputs": checked},
        )

    async def status(self, project_id: str, run_id: str, who: Actor | None = None) -> Done:
        """Return the status of a run that somebody may see. Raises RunNotFound."""
        run = await self._get(project_id, run_id, who)
        return Done(
            run_json(run),
            "kaged.workflow.status_checked",
            {
                "run_id": run.run_id,
                "workflow_name": run.workflow_name,
                "status": run.status.value,
            },
        )

    async def runs(
        self, project_id: str, limit: int, offset: int, who: Actor | None = None
    ) -> JsonObject:
        """List the runs of a project that somebody may see, newest first."""
        found, total = await self.store.runs.page(project_id, limit, offset, who)
        listed: list[JsonValue] = [run_json(await self._timed(run)) for run in found]
        return {"runs": listed, "total": total, "limit": limit, "offset": offset}

    async def cancel(self, project_id: str, run_id: str, who: Actor | None = None) -> RunRecord:
        """End a run that somebody may steer; one that has ended stays as it is.

        Raises RunNotFound.
        """
        run = await self._get(project_id, run_id, who, AccessAction.STEER)
        if run.status is not RunStatus.RUNNING:
            return run
        by = who.label if who is not None and who.is_person else "the operator"
        return await self._end(run, RunStatus.CANCELLED, f"{by} ended it")

    async def recover(self) -> int:
        """Recover the runs that an earlier daemon left behind; returns how many there were.

        Those that wait for an answer of the operator go on waiting; the others are ended.
        """
        left = [run for run in await self.store.runs.running() if run.run_id not in self._running]
        for run in left:
            if not await self._take_up(run):
                await self.store.runs.finish(run.run_id, RunStatus.FAILED, error=INTERRUPTED)
        return len(left)

    def _place(self, project_id: str, run_id: str, ownership: Ownership) -> UploadPlace:
        """Return where files go: in the project, or a person's where only their run sees them."""
        folder = self.ids.tagged("upload")
        if ownership.owner is None:
            return UploadPlace.in_project(self.source.root(project_id), folder)
        return self.uploads.place(ownership.owner, ownership.chat_id, run_id, folder)

    def _start(
        self,
        runner: WorkflowRunner,
        run: RunRecord,
        workflow: Workflow,
        identity: Actor | None = None,
    ) -> None:
        carried = self._carry_out(runner, run, workflow, identity)
        task = self.tasks.start(carried, f"workflow {run.run_id}")
        self._running[run.run_id] = task
        task.add_done_callback(lambda _: self._running.pop(run.run_id, None))

    async def _take_up(self, run: RunRecord) -> bool:
        """Go on with a run that was left behind, if it can be and still is wanted."""
        runner = self._runner
        workflow = self.source.workflows(run.project_id).get(run.workflow_name)
        if runner is None or workflow is None or not await runner.waits(run):
            return False
        run = await self._timed(run)
        if run.status is RunStatus.RUNNING:
            self._start(runner, run, workflow)
        return True

    async def _get(
        self,
        project_id: str,
        run_id: str,
        who: Actor | None,
        action: AccessAction = AccessAction.SEE,
    ) -> RunRecord:
        if len(run_id) > RUN_ID_LIMIT_CHARS or not run_id.isascii():
            raise RunNotFound(
                "There is no such workflow run in this project.", run_id=run_id[:RUN_ID_LIMIT_CHARS]
            )
        return await self._timed(await self.store.runs.get(project_id, run_id, who, action))

    async def _timed(self, run: RunRecord) -> RunRecord:
        """End a run whose time is up by the clock on the wall, whatever its own timer thinks.

        A machine that slept, for one, stops the timer and not the clock.
        """
        if run.status is not RunStatus.RUNNING or self._left_s(run) >= 0:
            return run
        return await self._end(run, RunStatus.FAILED, _timeout(run))

    def _left_s(self, run: RunRecord) -> float:
        return run.timeout_seconds - (self.clock.now_ms() - run.created_at_ms) / 1000

    async def _end(self, run: RunRecord, status: RunStatus, reason: str) -> RunRecord:
        """Store how a run ended, then stop what carries it out: the first to store wins."""
        ended = await self.store.runs.finish(run.run_id, status, error=reason)
        task = self._running.get(run.run_id)
        if task is not None:
            task.cancel()
        return ended

    async def _carry_out(
        self,
        runner: WorkflowRunner,
        run: RunRecord,
        workflow: Workflow,
        identity: Actor | None,
    ) -> None:
        status, error, result = RunStatus.FAILED, INTERRUPTED, None
        goes_on = False
        timer = asyncio.timeout(self._left_s(run))
        try:
            async with timer:
                result = await runner.run(run, workflow, identity)
            status, error = RunStatus.SUCCEEDED, None
        except TimeoutError:
            error = "something it waited for took too long"
        except asyncio.CancelledError:
            # Whoever ends a run has stored why. Otherwise the daemon ends, and the next goes on.
            goes_on = await runner.waits(run)
            raise
        except KagedError as failure:
            error = failure.message
        except Exception as failure:  # noqa: BLE001 - boundary: a run ends, the daemon goes on
            _log.exception("workflow.failed", run_id=run.run_id, error=type(failure).__name__)
            error = f"it broke inside ({type(failure).__name__}); the daemon's log has the details"
        finally:
            if timer.expired():  # whatever the run made of being cancelled for it
                status, error, result = RunStatus.FAILED, _timeout(run), None
            # Also when cancelled: whoever cancels has stored the reason before, and the first wins.
            if not goes_on:
                with contextlib.suppress(RunNotFound):
                    await self.store.runs.finish(
                        run.run_id,
                        status,
                        error=None if error is None else error[:ERROR_LIMIT_CHARS],
                        result=_kept(result),
                    )


def run_json(run: RunRecord) -> JsonObject:
    """Write a run as agents and operators see it."""
    ended = run.completed_at_ms
    shown: JsonObject = {
        "run_id": run.run_id,
        "workflow_name": run.workflow_name,
        "status": run.status.value,
        "inputs": run.inputs,
        "created_at": run.created_at_ms // 1000,
        "completed_at": None if ended is None else ended // 1000,
        "duration_ms": None if ended is None else max(0, ended - run.created_at_ms),
    }
    if run.error is not None:
        shown["error"] = run.error
    if run.result is not None:
        shown["result"] = run.result
    return shown


def _timeout(run: RunRecord) -> str:
    return f"timeout: the run took longer than its {run.timeout_seconds} s"


def _kept(result: JsonValue) -> JsonValue:
    try:
        size = len(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError):
        return {"left_out": "the result is no JSON"}
    return result if size <= RESULT_LIMIT_CHARS else {"left_out": f"the result has {size} bytes"}
