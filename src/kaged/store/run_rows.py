"""`RunRows`: the runs of workflows. Each is a session of its own, under the same id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from kaged.base import Clock, Ids, JsonObject, JsonValue
from kaged.store.database import Database
from kaged.store.schema import workflow_runs
from kaged.store.session_rows import (
    SessionKind,
    SessionStatus,
    ensure_session,
    set_session_status,
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


class RunRows:
    """The runs of all projects."""

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def create(self, draft: RunDraft) -> RunRecord:
        """Store a run that begins now, with its session."""
        now_ms = self._clock.now_ms()
        made = RunRecord(
            self._ids.ulid(), draft.project_id, draft.workflow_name, RunStatus.RUNNING,
            draft.inputs, draft.invoker_type, draft.invoker_id, draft.timeout_seconds, now_ms,
            None, None, None,
        )  # fmt: skip

        def work(conn: Connection) -> None:
            ensure_session(conn, made.run_id, made.project_id, SessionKind.WORKFLOW, now_ms)
            values = {column.name: getattr(made, column.name) for column in _C}
            values["inputs"] = json.dumps(made.inputs)
            values["result"] = None
            conn.execute(insert(workflow_runs).values(values))

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
            conn.execute(
                update(workflow_runs)
                .where(_C.run_id == run_id)
                .values(
                    status=status.value,
                    error=error,
                    result=None if result is None else json.dumps(result),
                    completed_at_ms=now_ms,
                )
            )
            set_session_status(conn, run_id, SessionStatus.ENDED, status.value, now_ms)
            return _one(conn, run_id)

        return await self._database.write(work)

    async def get(self, project_id: str, run_id: str) -> RunRecord:
        """Return a run of a project. Raises RunNotFound."""
        return await self._database.read(lambda conn: _one(conn, run_id, project_id))

    async def page(
        self, project_id: str, limit: int, offset: int
    ) -> tuple[Sequence[RunRecord], int]:
        """Return some runs of a project, newest first, and how many there are in all."""

        def work(conn: Connection) -> tuple[Sequence[RunRecord], int]:
            own = _C.project_id == project_id
            total = conn.execute(select(func.count()).select_from(workflow_runs).where(own))
            wanted = select(*_C).where(own).order_by(_C.run_id.desc()).limit(limit).offset(offset)
            return [_record(row) for row in conn.execute(wanted)], int(total.scalar() or 0)

        return await self._database.read(work)

    async def running(self) -> Sequence[RunRecord]:
        """Return the runs that have not ended, oldest first."""
        wanted = select(*_C).where(_C.status == RunStatus.RUNNING.value).order_by(_C.run_id)
        return await self._database.read(
            lambda conn: [_record(row) for row in conn.execute(wanted)]
        )


def _one(conn: Connection, run_id: str, project_id: str | None = None) -> RunRecord:
    wanted = select(*_C).where(_C.run_id == run_id)
    if project_id is not None:
        wanted = wanted.where(_C.project_id == project_id)
    found = conn.execute(wanted).first()
    if found is None:
        raise RunNotFound(
            f"There is no workflow run {run_id} in this project.",
            fix="use the run_id that starting the workflow returned",
            run_id=run_id,
        )
    return _record(found)


def _record(row: Sequence[Any]) -> RunRecord:
    fields = dict(zip((column.name for column in _C), row, strict=True))
    fields["status"] = RunStatus(fields["status"])
    fields["inputs"] = json.loads(fields["inputs"])
    fields["result"] = None if fields["result"] is None else json.loads(fields["result"])
    return RunRecord(**fields)
