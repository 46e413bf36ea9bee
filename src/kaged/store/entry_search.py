"""Full-text search over the entries of sessions, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from kaged.kernel.identity import Actor
from kaged.store.chain import HEADER_POSITION, segments_of
from kaged.store.entry_rows import COLUMNS, EntryRow
from kaged.store.rows import RowRepository
from kaged.store.schema import entries, sessions
from kaged.store.session_rows import require_session, visible_sessions
from kaged.store.text_query import TextQuery

IN_SESSION_LIMIT = 1000  # the newest hits of a session and its ancestors that are looked through

_E = entries.c
_S = sessions.c


class EntrySearch(RowRepository):
    """Finds entries by their words. What a compaction superseded is found like the rest."""

    async def in_project(
        self,
        project_id: str,
        query: TextQuery,
        limit: int,
        offset: int,
        actor: Actor | None = None,
    ) -> tuple[Sequence[EntryRow], int]:
        """Return entries of the sessions that an actor may see, and how many fit in all.

        An entry that forks share comes once, under the session that has it; if that was deleted,
        under a fork that still shows it.
        """
        fits = self._database.backend.text_match(_E.seq, query)
        joined = entries.join(sessions, _S.id == _E.session_id)

        def work(conn: Connection) -> tuple[Sequence[EntryRow], int]:
            own = (_S.project_id == project_id, visible_sessions(actor), fits)
            total = conn.execute(select(func.count()).select_from(joined).where(*own)).scalar()
            wanted = (
                select(*COLUMNS, _S.deleted_at_ms)
                .select_from(joined)
                .where(*own)
                .order_by(_E.seq.desc())
                .limit(limit)
                .offset(offset)
            )
            found: list[EntryRow] = []
            for *row, deleted in conn.execute(wanted).all():
                hit = EntryRow._make(row)
                found.append(hit if deleted is None else _shown_by_fork(conn, hit))
            return found, int(total or 0)

        return await self._database.read(work)

    async def in_session(
        self, project_id: str, session_id: str, query: TextQuery, limit: int, offset: int
    ) -> tuple[Sequence[EntryRow], int]:
        """Return entries that one session shows, and how many fit in all.

        Raises:
            SessionNotFound: the project has no such session.
        """
        fits = self._database.backend.text_match(_E.seq, query)

        def work(conn: Connection) -> tuple[Sequence[EntryRow], int]:
            session = require_session(conn, project_id, session_id)
            places = {one.session_id: one for one in segments_of(conn, session)}
            wanted = (
                select(*COLUMNS)
                .where(_E.session_id.in_(places), fits)
                .order_by(_E.seq.desc())
                .limit(IN_SESSION_LIMIT)
            )
            hits: list[EntryRow] = []
            for row in conn.execute(wanted):
                hit = EntryRow._make(row)
                place = places[hit.session_id]
                if place.first <= hit.position <= place.last:
                    hits.append(hit._replace(session_id=session_id))
            return hits[offset : offset + limit], len(hits)

        return await self._database.read(work)


def _shown_by_fork(conn: Connection, hit: EntryRow) -> EntryRow:
    owner: str | None = hit.session_id
    while owner is not None:
        wanted = (
            select(_S.id, _S.deleted_at_ms)
            .where(_S.base_session == owner, _S.base_position >= max(hit.position, HEADER_POSITION))
            .order_by(_S.deleted_at_ms.is_not(None), _S.id)
            .limit(1)
        )
        found = conn.execute(wanted).first()
        if found is None:
            break
        if found[1] is None:
            return hit._replace(session_id=found[0])
        owner = found[0]
    return hit
