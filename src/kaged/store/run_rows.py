"""`RunRows`: the runs of workflows. Each is a session of its own, under the same id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, exists, select, true

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import OPERATORS, AccessAction, Ownership
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import sessions, workflow_runs
from kaged.store.session_rows import (
    SessionKind,
    SessionStatus,
    ensure_session,
    set_session_status,
    visible_sessions,
)
from kaged.store.work_errors import RunNotFound

_C = workflow_runs.c


class RunStatus(StrEnum):
    """How far a run is. All but `running` are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RunDraft:
    """A run that is about to be stored."""

    project_id: str
    workflow_name: str
    inputs: JsonObject
    invoker_type: str
    invoker_id: str
    timeout_seconds: int
    run_id: str | None = None
    """Chosen before, where something is kept under it."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a workflow. `inputs` have their defaults filled in."""

    run_id: str
    project_id: str
    workflow_name: str
    status: RunStatus
    inputs: JsonObject
    invoker_type: str
    invoker_id: str
    timeout_seconds: int
    created_at_ms: int
    completed_at_ms: int | None
    error: str | None
    result: JsonValue


_RUNS = RecordTable(
    workflow_runs, RunRecord, json_columns=("inputs", "result"), reads={"status": RunStatus}
)


class RunRows(RowRepository):
    """The runs of all projects."""

    async def create(self, draft: RunDraft, ownership: Ownership = OPERATORS) -> RunRecord:
        """Store a run that begins now, with its session, which says whose both are."""
        now_ms = self._clock.now_ms()
        made = RunRecord(
            draft.run_id or self._ids.ulid(), draft.project_id, draft.workflow_name,
            RunStatus.RUNNING, draft.inputs, draft.invoker_type, draft.invoker_id,
            draft.timeout_seconds, now_ms,
            None, None, None,
        )  # fmt: skip

        def work(conn: Connection) -> None:
            kind = SessionKind.WORKFLOW
            ensure_session(conn, made.run_id, made.project_id, kind, now_ms, ownership)
            _RUNS.insert(conn, made)

        await self._database.write(work)
        return made

    async def finish(
        self, run_id: str, status: RunStatus, *, error: str | None = None, result: JsonValue = None
    ) -> RunRecord:
        """Note how a run ended; one that has ended before stays as it is.

        Raises:
            RunNotFound: there is no such run.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> RunRecord:
            found = _one(conn, run_id)
            if found.status is not RunStatus.RUNNING:
                return found
            ended = replace(
                found, status=status, error=error, result=result, completed_at_ms=now_ms
            )
            _RUNS.put(conn, ended)
            set_session_status(conn, run_id, SessionStatus.ENDED, status.value, now_ms)
            return ended

        return await self._database.write(work)

    async def get(
        self,
        project_id: str,
        run_id: str,
        actor: Actor | None = None,
        action: AccessAction = AccessAction.SEE,
    ) -> RunRecord:
        """Return a run of a project with which an actor may do something. Raises RunNotFound."""

        def work(conn: Connection) -> RunRecord:
            if _RUNS.first(conn, _C.run_id == run_id, _visible(actor, action)) is None:
                raise _not_found(run_id)  # a foreign one and an unknown one look alike
            return _one(conn, run_id, project_id)

        return await self._database.read(work)

    async def page(
        self, project_id: str, limit: int, offset: int, actor: Actor | None = None
    ) -> tuple[Sequence[RunRecord], int]:
        """Return some runs that an actor may see, newest first, and how many there are in all."""
        own = [_C.project_id == project_id, _visible(actor)]
        return await self._page(_RUNS, own, [_C.run_id.desc()], limit, offset)

    async def running(self) -> Sequence[RunRecord]:
        """Return the runs that have not ended, oldest first."""
        wanted = _RUNS.select(_C.status == RunStatus.RUNNING.value).order_by(_C.run_id)
        return await self._all(_RUNS, wanted)


def _visible(actor: Actor | None, action: AccessAction = AccessAction.SEE) -> ColumnElement[bool]:
    """Return the condition that a run's session is one that an actor may do something with."""
    if actor is None or not actor.is_person:
        return true()
    wanted = select(sessions.c.id).where(
        sessions.c.id == _C.run_id, visible_sessions(actor, action)
    )
    return exists(wanted)


def _one(conn: Connection, run_id: str, project_id: str | None = None) -> RunRecord:
    found = _RUNS.first(conn, _C.run_id == run_id)
    if found is None or project_id not in {None, found.project_id}:
        raise _not_found(run_id)
    return found


def _not_found(run_id: str) -> RunNotFound:
    return RunNotFound(
        f"There is no workflow run {run_id} in this project.",
        fix="use the run_id that starting the workflow returned",
        run_id=run_id,
    )
