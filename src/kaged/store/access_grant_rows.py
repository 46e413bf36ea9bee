"""`AccessGrantRows`: what people let agents do for the rest of a session, after a refused call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, delete, select

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import access_grants, sessions

MAX_OF_SESSION: Final = 200
"""How many grants a session keeps; the oldest goes."""

MAX_LISTED: Final = 1000

_C = access_grants.c


@dataclass(frozen=True, slots=True)
class AccessGrantRecord:
    """One grant: which agent of which session has what, for whose calls, and who gave it."""

    id: str
    session_id: str
    project_id: str
    agent: str
    owner: str | None
    what: JsonObject
    granted_by: str
    created_at_ms: int


_GRANTS = RecordTable(access_grants, AccessGrantRecord, json_columns=("what",))


class AccessGrantRows(RowRepository):
    """The grants of sessions. They outlive the daemon's process, and end with their session."""

    async def add(self, records: Sequence[AccessGrantRecord]) -> None:
        """Store grants of one session."""

        def work(conn: Connection) -> None:
            _GRANTS.insert_all(conn, records)
            session = records[0].session_id
            newest = _GRANTS.select(_C.session_id == session).order_by(_C.id.desc())
            for old in _GRANTS.all(conn, newest.offset(MAX_OF_SESSION)):
                conn.execute(delete(access_grants).where(_C.id == old.id))

        if records:
            await self._database.write(work)

    async def of_session(self, session_id: str) -> list[AccessGrantRecord]:
        """Return the grants of a session, in the order in which they were given."""
        return await self._all(_GRANTS, _GRANTS.select(_C.session_id == session_id).order_by(_C.id))

    async def of_project(self, project_id: str) -> list[AccessGrantRecord]:
        """Return the newest grants of the sessions that a project has."""
        there = select(sessions.c.id).where(sessions.c.deleted_at_ms.is_(None))
        wanted = _GRANTS.select(_C.project_id == project_id, _C.session_id.in_(there))
        return await self._all(_GRANTS, wanted.order_by(_C.id.desc()).limit(MAX_LISTED))

    async def remove(self, grant_id: str) -> bool:
        """Take a grant away; False when it was gone."""
        return await self._execute(delete(access_grants).where(_C.id == grant_id)) > 0
