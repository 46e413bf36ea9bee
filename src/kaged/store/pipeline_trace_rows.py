"""`PipelineTraceRows`: what policies did in the newest calls, for those who made them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, false, func, select, true

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import pipeline_traces
from kaged.store.usable_projects import usable_projects

MAX_STEPS_PER_REQUEST = 200
"""Steps kept of one request of one person; what comes after them is not kept."""

MAX_ROWS = 20_000
"""Steps kept in all; the oldest make room."""

_C = pipeline_traces.c


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One policy's step in one call. `person_id` is None where no person but the operator acted."""

    request_id: str
    person_id: str | None
    chat_id: str | None
    project_id: str | None
    session_id: str | None
    at_ms: int
    step: JsonObject


_ROWS = RecordTable(pipeline_traces, TraceRow, json_columns=("step",))


class PipelineTraceRows(RowRepository):
    """The steps of the newest calls, in the order in which they ended."""

    async def write(self, rows: Sequence[TraceRow]) -> None:
        """Keep these steps, as far as there is room for their requests; the oldest go."""
        by_request: dict[tuple[str, str | None], list[TraceRow]] = {}
        for row in rows:
            by_request.setdefault((row.request_id, row.person_id), []).append(row)

        def work(conn: Connection) -> None:
            kept: list[TraceRow] = []
            for (request_id, person_id), steps in by_request.items():
                same = (_C.request_id == request_id, _C.person_id.is_(person_id))
                kept += steps[: max(0, MAX_STEPS_PER_REQUEST - _ROWS.count(conn, *same))]
            _ROWS.insert_all(conn, kept)
            last = conn.execute(select(func.max(_C.seq))).scalar() or 0
            conn.execute(delete(pipeline_traces).where(_C.seq <= last - MAX_ROWS))

        await self._database.write(work)

    async def of_request(self, request_id: str, actor: Actor) -> tuple[Sequence[TraceRow], bool]:
        """Return the steps of a request that an actor may see, and whether some were not kept."""
        where = (_C.request_id == request_id, own_traces(actor))

        def work(conn: Connection) -> tuple[Sequence[TraceRow], bool]:
            most = select(func.count()).where(*where).group_by(_C.person_id)
            cut = any(count >= MAX_STEPS_PER_REQUEST for (count,) in conn.execute(most))
            return _ROWS.all(conn, _ROWS.select(*where).order_by(_C.seq)), cut

        return await self._database.read(work)


def own_traces(actor: Actor) -> ColumnElement[bool]:
    """Return the condition that a step is of an actor's own call. The operator sees all.

    In a group others read along: there nothing is shown but what happened in that chat.
    """
    if not actor.is_person:
        return true()
    if not actor.person_id:
        return false()
    theirs = [_C.person_id == actor.person_id, usable_projects(actor, _C.project_id)]
    if actor.chat_type != PRIVATE_CHAT:
        theirs.append(_C.chat_id.is_(actor.chat))
    return and_(*theirs)
