"""`ToolCallRows`: every call of a tool in a session, with its params, its result and its times."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Connection, bindparam, insert, update

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.store.prepared import PreparedStatement
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import tool_calls

_C = tool_calls.c


class ToolCallStatus(StrEnum):
    """How far a call is. `denied`: it was not allowed to begin."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One call of a tool. `params` have no secrets in them; one of `result` and `error` counts."""

    request_id: str
    session_id: str
    run_id: str
    project_id: str
    caller: str
    tool_name: str
    tool_version: str  # which edition of the tool answered; empty until the call has ended
    schema_hash: str
    params: JsonValue
    status: ToolCallStatus
    result: JsonValue
    error: JsonObject | None
    started_at_ms: int
    finished_at_ms: int | None


_CALLS = RecordTable(
    tool_calls,
    ToolCallRecord,
    json_columns=("params", "result", "error"),
    reads={"status": ToolCallStatus},
)
# Prepared: every call of every agent is written, most of them twice.
_VALUES = {column.name: bindparam(column.name) for column in _CALLS.columns}
_INSERT = PreparedStatement(insert(tool_calls).values(_VALUES).inline())
_CHANGE = PreparedStatement(
    update(tool_calls).where(_C.seq == bindparam("changed")).values(_VALUES)
)


class CallChange:
    """What is to be written about one call: that it began, how it ended, or both.

    `seq` is filled in once its row is there.
    """

    __slots__ = ("begun", "ended", "seq")

    def __init__(self, begun: ToolCallRecord) -> None:
        self.begun = begun
        self.ended: ToolCallRecord | None = None
        self.seq: int | None = None


class ToolCallRows(RowRepository):
    """The tool calls of all sessions, in the order in which they began."""

    async def write(self, changes: Sequence[CallChange]) -> None:
        """Write what is new about these calls, in one unit."""

        def work(conn: Connection) -> list[int]:
            return [_put(conn, one.seq, one.ended or one.begun) for one in changes]

        for one, seq in zip(changes, await self._database.write(work), strict=True):
            one.seq = seq

    async def page(
        self, session_id: str, run_id: str | None, limit: int, offset: int
    ) -> tuple[Sequence[ToolCallRecord], int]:
        """Return some calls of a session, oldest first, and how many there are in all."""
        conditions = [_C.session_id == session_id]
        if run_id is not None:
            conditions.append(_C.run_id == run_id)
        return await self._page(_CALLS, conditions, [_C.seq], limit, offset)


def _put(conn: Connection, seq: int | None, call: ToolCallRecord) -> int:
    values = _CALLS.values(call)
    if seq is not None:
        _CHANGE.run(conn, {"changed": seq, **values})
        return seq
    return int(_INSERT.run(conn, values).lastrowid)
