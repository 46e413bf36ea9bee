"""`SessionSkillRows`: which skills a session has loaded, and exactly which files that were.

A fork copies nothing here either: it has what was loaded before the place it was forked at.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from kaged.store.chain import owners_of
from kaged.store.rows import RowRepository
from kaged.store.schema import session_skills
from kaged.store.session_rows import find_session

ROWS_LIMIT = 256
"""How many loads of one session are kept; a load of what is loaded already is none."""

_C = session_skills.c


class SessionSkillRows(RowRepository):
    """The loaded skills of sessions that outlive the daemon."""

    async def note(self, session_id: str, name: str, digest: str) -> None:
        """Keep that a session has loaded a skill; one that is not in the store is passed over."""
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> None:
            session = find_session(conn, session_id)
            if session is None:
                return
            mine = select(_C.digest).where(_C.session_id == session_id, _C.name == name)
            last = conn.execute(mine.order_by(_C.position.desc()).limit(1)).scalar()
            if last == digest:
                return
            position = session.head_position
            at_once = (_C.session_id == session_id, _C.name == name, _C.position == position)
            conn.execute(delete(session_skills).where(*at_once))
            conn.execute(
                insert(session_skills).values(
                    session_id=session_id,
                    name=name,
                    position=position,
                    digest=digest,
                    loaded_at_ms=now_ms,
                )
            )
            old = select(_C.loaded_at_ms).where(_C.session_id == session_id)
            oldest = conn.execute(
                old.order_by(_C.loaded_at_ms.desc()).offset(ROWS_LIMIT - 1).limit(1)
            ).scalar()
            if oldest is not None:
                conn.execute(
                    delete(session_skills).where(
                        _C.session_id == session_id, _C.loaded_at_ms < oldest
                    )
                )

        await self._database.write(work)

    async def of(self, session_id: str) -> dict[str, str]:
        """Return the digest of each skill that a session has, those it was forked with included."""

        def work(conn: Connection) -> dict[str, str]:
            session = find_session(conn, session_id)
            if session is None:
                return {}
            found: dict[str, str] = {}
            for owner, last in reversed(owners_of(conn, session)):
                wanted = select(_C.name, _C.digest).where(_C.session_id == owner)
                if owner != session_id:
                    # The result of a load stands behind the place at which it was noted: whoever
                    # was forked at that place was forked before it.
                    wanted = wanted.where(_C.position < last)
                loads = conn.execute(wanted.order_by(_C.position))
                found |= {name: digest for name, digest in loads}  # noqa: C416 - rows, not pairs
            return found

        return await self._database.read(work)
