"""`AgentRunRows`: the runs of root agents in sessions. A session has at most one that is active."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace
from enum import StrEnum

from sqlalchemy import Connection, select, update

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import agent_runs, sessions, tool_calls
from kaged.store.session_rows import SessionKind, SessionStatus, session_by_id, set_session_status
from kaged.store.work_errors import RunNotFound

_C = agent_runs.c


class AgentRunStatus(StrEnum):
    """How far a run is. Only `running` is active; `paused` ones are gone on with by another run."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"


class RunCause(StrEnum):
    """Why a run began."""

    MESSAGE = "message"
    ANSWER = "answer"
    RESUME = "resume"
    WORKFLOW = "workflow"


@dataclass(frozen=True, slots=True)
class AgentRunRecord:
    """One run of a session's root agent. `started_with` is what a run after it goes on with."""

    id: str
    session_id: str
    project_id: str
    status: AgentRunStatus
    cause: RunCause
    model: str | None
    operator_id: str | None
    steps: int
    usage: JsonObject
    error: JsonObject | None
    started_at_ms: int
    ended_at_ms: int | None
    teams: list[str] = field(default_factory=list)
    started_with: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `session_status` is what the session does then.

    A session that waits at a checkpoint stays there whatever this says.
    """

    status: AgentRunStatus
    steps: int = 0
    usage: JsonObject = field(default_factory=dict)
    error: JsonObject | None = None
    session_status: SessionStatus = SessionStatus.IDLE


_RUNS = RecordTable(
    agent_runs,
    AgentRunRecord,
    json_columns=("usage", "error", "teams", "started_with"),
    reads={"status": AgentRunStatus, "cause": RunCause},
)


class AgentRunRows(RowRepository):
    """The runs of all sessions."""

    def new_id(self) -> str:
        """Make the id of a run."""
        return self._ids.tagged("run")

    async def begin(
        self,
        session_id: str,
        *,
        cause: RunCause,
        model: str | None = None,
        operator_id: str | None = None,
        run_id: str | None = None,
        teams: Collection[str] = (),
        started_with: JsonObject | None = None,
    ) -> AgentRunRecord:
        """Note that a run begins now, and that its session runs.

        Raises:
            SessionNotFound: there is no such session.
            KagedError: `session_busy`; a run of it is active already.
        """
        now_ms = self._clock.now_ms()
        fresh = run_id or self.new_id()

        def work(conn: Connection) -> AgentRunRecord:
            session = session_by_id(conn, session_id)
            active = _active(conn, session_id)
            if active is not None:
                raise session_busy(session_id, active)
            made = AgentRunRecord(
                fresh, session_id, session.project_id, AgentRunStatus.RUNNING, cause, model,
                operator_id, 0, {}, None, now_ms, None, sorted(teams), started_with or {},
            )  # fmt: skip
            _RUNS.insert(conn, made)
            set_session_status(conn, session_id, SessionStatus.RUNNING, None, now_ms)
            return made

        return await self._database.write(work)

    async def finish(self, run_id: str, ended: RunResult) -> AgentRunRecord:
        """Note how a run ended; one that has ended before stays as it is.

        Raises:
            RunNotFound: there is no such run.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> AgentRunRecord:
            found = _one(conn, run_id)
            if found.status is not AgentRunStatus.RUNNING:
                return found
            done = replace(
                found,
                status=ended.status,
                steps=ended.steps,
                usage=ended.usage,
                error=ended.error,
                ended_at_ms=now_ms,
            )
            _RUNS.put(conn, done)
            # A session that waits for the operator goes on waiting: the question is stored.
            session = session_by_id(conn, found.session_id)
            if session.status == SessionStatus.RUNNING.value:
                set_session_status(conn, found.session_id, ended.session_status, None, now_ms)
            return done

        return await self._database.write(work)

    async def get(self, run_id: str) -> AgentRunRecord:
        """Return a run. Raises RunNotFound."""
        return await self._database.read(lambda conn: _one(conn, run_id))

    async def active(self, session_id: str) -> str | None:
        """Return the run of a session that is active; None if none is."""
        return await self._database.read(lambda conn: _active(conn, session_id))

    async def last(self, session_id: str) -> AgentRunRecord | None:
        """Return the newest run of a session; None before the first."""
        found, _ = await self.page(session_id, 1, 0)
        return found[0] if found else None

    async def page(
        self, session_id: str, limit: int, offset: int
    ) -> tuple[Sequence[AgentRunRecord], int]:
        """Return some runs of a session, newest first, and how many there are in all."""
        own = [_C.session_id == session_id]
        newest_first = (_C.started_at_ms.desc(), _C.id.desc())
        return await self._page(_RUNS, own, newest_first, limit, offset)

    async def interrupt_all(self) -> Sequence[AgentRunRecord]:
        """Mark what an earlier daemon left active: its runs, their sessions, their tool calls.

        Gives the runs. A session of kind workflow is left to the workflows, which end it.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> Sequence[AgentRunRecord]:
            wanted = select(_C.id).where(_C.status == AgentRunStatus.RUNNING.value).order_by(_C.id)
            left = list(conn.execute(wanted).scalars())
            conn.execute(
                update(agent_runs)
                .where(_C.status == AgentRunStatus.RUNNING.value)
                .values(status=AgentRunStatus.INTERRUPTED.value, ended_at_ms=now_ms)
            )
            conn.execute(
                update(sessions)
                .where(
                    sessions.c.status == SessionStatus.RUNNING.value,
                    sessions.c.kind == SessionKind.PRIMARY.value,
                )
                .values(
                    status=SessionStatus.IDLE.value,
                    detail=AgentRunStatus.INTERRUPTED.value,
                    updated_at_ms=now_ms,
                )
            )
            conn.execute(
                update(tool_calls)
                .where(tool_calls.c.status == "running")
                .values(status=AgentRunStatus.INTERRUPTED.value, finished_at_ms=now_ms)
            )
            return [_one(conn, run_id) for run_id in left]

        return await self._database.write(work)


def session_busy(session_id: str, run_id: str) -> KagedError:
    """Return the error for a session with an active run."""
    return KagedError(
        "A run of this session is active.",
        code="session_busy",
        fix="wait for it, or cancel it",
        session_id=session_id,
        run_id=run_id,
    )


def _active(conn: Connection, session_id: str) -> str | None:
    wanted = select(_C.id).where(
        _C.session_id == session_id, _C.status == AgentRunStatus.RUNNING.value
    )
    return conn.execute(wanted).scalar()


def _one(conn: Connection, run_id: str) -> AgentRunRecord:
    found = _RUNS.first(conn, _C.id == run_id)
    if found is None:
        raise RunNotFound(
            f"There is no run {run_id}.", fix="`kaged session show` lists the runs", run_id=run_id
        )
    return found
