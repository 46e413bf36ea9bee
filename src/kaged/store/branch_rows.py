"""`BranchRows`: new sessions, forks of them, the project's current one, and taking one away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, func, insert, select, update

from kaged.base import KagedError
from kaged.store.chain import HEADER_POSITION, EntryPosition, find_place
from kaged.store.database import Database
from kaged.store.entry_rows import EntryRow, EntryRows, NewEntry, add_marks, read_header
from kaged.store.interaction_rows import questions_of
from kaged.store.rows import RowRepository
from kaged.store.schema import (
    agent_runs,
    current_sessions,
    entries,
    entry_marks,
    inbox_requests,
    pipeline_traces,
    session_skills,
    sessions,
    tool_calls,
)
from kaged.store.session_rows import (
    SessionKind,
    SessionRecord,
    SessionStatus,
    ensure_session,
    insert_session,
    require_session,
    session_by_id,
)
from kaged.store.work_errors import SessionExists

DEPTH_LIMIT = 10_000

_S = sessions.c
_E = entries.c
_P = current_sessions.c

Reheader = Callable[[str, SessionRecord, str], NewEntry]
"""Makes a fork's header of its parent's content, the parent, and the entry it is forked at."""
Words = Callable[[str, str], str]
"""Gives what an entry was put into the index with, of its kind and content."""


class BranchRows(RowRepository):
    """Sessions as wholes: how they begin, branch and end."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._entries = EntryRows(database)

    async def create(
        self, fresh: SessionRecord, header: NewEntry, *, current: bool = False
    ) -> tuple[SessionRecord, EntryRow]:
        """Begin a session with its header. One that is known without a header gets it.

        Raises:
            SessionExists: it has a header.
            SessionNotFound: the id belongs to a session of another project.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> tuple[SessionRecord, EntryRow]:
            kind = SessionKind(fresh.kind)
            known = ensure_session(conn, fresh.id, fresh.project_id, kind, now_ms)
            if known.head_entry is not None:
                raise SessionExists(
                    f"There is a session {fresh.id}.", fix="go on in it, or give another id"
                )
            # Whose a known session is stays as it is: a workflow's run has its owner before this.
            conn.execute(
                update(sessions)
                .where(_S.id == fresh.id)
                .values(
                    title=fresh.title,
                    model=fresh.model,
                    operator_id=fresh.operator_id,
                    parent_session=fresh.parent_session,
                    parent_entry=fresh.parent_entry,
                    **({} if known.owner is not None else _ownership_values(fresh)),
                )
            )
            (made,), _ = self._entries.write(conn, known, [header], now_ms)
            if current:
                point_to(conn, fresh.project_id, fresh.id, now_ms)
            return session_by_id(conn, fresh.id), made

        return await self._database.write(work)

    async def fork(
        self,
        session_id: str,
        at: str | None,
        new_id: str,
        reheader: Reheader,
        *,
        from_current: str | None = None,
    ) -> tuple[SessionRecord, EntryRow, bool]:
        """Branch off at an entry, sharing everything up to it; what it costs does not grow.

        With `from_current` the project's current session becomes the fork if it is that one now;
        gives whether that was so.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`, `entry_ambiguous`; there is no such
                session or entry.
            KagedError: `nothing_to_fork`; the session has nothing but a header.
            KagedError: `fork_too_deep`; it is too many forks away from the first session.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> tuple[SessionRecord, EntryRow, bool]:
            source = session_by_id(conn, session_id)
            place = _fork_place(conn, source, at)
            parent = read_header(conn, source.id)
            assert parent is not None  # it has an entry, and the header is the first
            fresh = self._branch(conn, source, place, new_id, now_ms)
            header = reheader(parent.content, source, place.id)
            row = EntryRow(
                new_id, HEADER_POSITION, self._ids.ulid(), header.kind, header.role, header.agent,
                None, now_ms, header.content,
            )  # fmt: skip
            insert_session(conn, fresh if fresh.base_session else replace(fresh, head_entry=row.id))
            self._entries.put(conn, [row], [""])
            moved = from_current is not None and current_of(conn, source.project_id) in {
                None,
                from_current,
            }
            if moved:
                point_to(conn, source.project_id, new_id, now_ms)
            return session_by_id(conn, new_id), row, moved

        return await self._database.write(work)

    async def adopt(
        self,
        fresh: SessionRecord,
        rows: Sequence[EntryRow],
        words: Sequence[str],
        marks: Sequence[tuple[str, str, int]],
    ) -> SessionRecord:
        """Take in a whole session from elsewhere, with its entries and marks, or nothing of it."""

        def work(conn: Connection) -> SessionRecord:
            insert_session(conn, fresh)
            self._entries.put(conn, rows, words)
            for entry_id, by, position in marks:
                add_marks(conn, fresh.id, [entry_id], by, position)
            return session_by_id(conn, fresh.id)

        return await self._database.write(work)

    async def current(self, project_id: str) -> str | None:
        """Return the project's current session; None if it has none."""
        return await self._database.read(lambda conn: current_of(conn, project_id))

    async def set_current(
        self, project_id: str, session_id: str, *, only_from: str | None = None
    ) -> bool:
        """Make a session the project's current one; returns whether that was done.

        With `only_from` it is done only if that one, or none, is the current one now.

        Raises:
            SessionNotFound: the project has no such session.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> bool:
            require_session(conn, project_id, session_id)
            if only_from is not None and current_of(conn, project_id) not in {None, only_from}:
                return False
            point_to(conn, project_id, session_id, now_ms)
            return True

        return await self._database.write(work)

    async def delete(self, project_id: str, session_id: str, words: Words) -> SessionRecord:
        """Take a session away. Forks keep what they share with it.

        Raises:
            SessionNotFound: the project has no such session.
            KagedError: `session_busy`; a run of it is active, or it waits for the operator.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> SessionRecord:
            session = require_session(conn, project_id, session_id)
            if session.status == SessionStatus.RUNNING.value or _has_active_run(conn, session_id):
                raise KagedError(
                    "A run of this session is active.",
                    code="session_busy",
                    fix="cancel it first",
                    session_id=session_id,
                )
            if session.status == SessionStatus.CHECKPOINT.value:
                raise KagedError(
                    "This session waits for the operator.",
                    code="session_busy",
                    fix="answer what it asks, or withdraw the question",
                    session_id=session_id,
                )
            conn.execute(update(sessions).where(_S.id == session_id).values(deleted_at_ms=now_ms))
            conn.execute(delete(current_sessions).where(_P.session_id == session_id))
            for table in (agent_runs, tool_calls, pipeline_traces):
                conn.execute(delete(table).where(table.c.session_id == session_id))
            conn.execute(delete(inbox_requests).where(*questions_of(session_id)))
            self._shrink(conn, session_id, words)
            return session

        return await self._database.write(work)

    def _branch(
        self,
        conn: Connection,
        source: SessionRecord,
        place: EntryPosition,
        new_id: str,
        now_ms: int,
    ) -> SessionRecord:
        shared = place.position > HEADER_POSITION
        depth = 0
        if shared:
            owner = select(_S.depth).where(_S.id == place.session_id)
            depth = int(conn.execute(owner).scalar_one()) + 1
        if depth > DEPTH_LIMIT:
            raise KagedError(
                f"This session is {DEPTH_LIMIT} forks deep.",
                code="fork_too_deep",
                fix="export it and import the export, which is a session of its own",
            )
        return replace(
            source,
            id=new_id,
            kind=SessionKind.PRIMARY.value,
            status=SessionStatus.IDLE.value,
            detail=None,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
            parent_session=source.id,
            parent_entry=place.id,
            base_session=place.session_id if shared else None,
            base_position=place.position if shared else None,
            depth=depth,
            head_entry=place.id if shared else None,
            head_position=place.position if shared else HEADER_POSITION,
        )

    def _shrink(self, conn: Connection, session_id: str, words: Words) -> None:
        """Drop what no fork shares of a deleted session, and of deleted ones before it."""
        next_up: str | None = session_id
        while next_up is not None:
            one, next_up = next_up, None
            last = conn.execute(
                select(func.max(_S.base_position)).where(_S.base_session == one)
            ).scalar()
            self._drop_behind(conn, one, HEADER_POSITION - 1 if last is None else last, words)
            if last is None:
                base = conn.execute(select(_S.base_session).where(_S.id == one)).scalar()
                conn.execute(delete(sessions).where(_S.id == one))
                if base is not None and _is_deleted(conn, base):
                    next_up = base

    def _drop_behind(self, conn: Connection, session_id: str, keep: int, words: Words) -> None:
        gone = select(_E.seq, _E.kind, _E.content).where(
            _E.session_id == session_id, _E.position > keep
        )
        for seq, kind, content in conn.execute(gone).all():
            said = words(kind, content)
            if said:
                self._database.backend.drop_text(conn, entries.name, seq, {"words": said})
        conn.execute(delete(entries).where(_E.session_id == session_id, _E.position > keep))
        marks = entry_marks.c
        conn.execute(
            delete(entry_marks).where(marks.session_id == session_id, marks.position > keep)
        )
        # One that was loaded where the last fork begins is in no fork.
        loads = session_skills.c
        conn.execute(
            delete(session_skills).where(loads.session_id == session_id, loads.position >= keep)
        )


def current_of(conn: Connection, project_id: str) -> str | None:
    """Read which session is the project's current one."""
    return conn.execute(select(_P.session_id).where(_P.project_id == project_id)).scalar()


def point_to(conn: Connection, project_id: str, session_id: str, now_ms: int) -> None:
    """Make a session the project's current one, as a part of a larger unit of work."""
    values = {"session_id": session_id, "updated_at_ms": now_ms}
    if current_of(conn, project_id) is None:
        conn.execute(insert(current_sessions).values(project_id=project_id, **values))
    else:
        conn.execute(update(current_sessions).where(_P.project_id == project_id).values(**values))


def _fork_place(conn: Connection, source: SessionRecord, at: str | None) -> EntryPosition:
    if at:
        return find_place(conn, source, at)
    if source.head_entry is None or source.head_position <= HEADER_POSITION:
        raise KagedError(
            "This session has no entries to fork at.",
            code="nothing_to_fork",
            fix="send a message in it first",
        )
    return find_place(conn, source, source.head_entry)


def _has_active_run(conn: Connection, session_id: str) -> bool:
    runs = agent_runs.c
    wanted = select(runs.id).where(runs.session_id == session_id, runs.status == "running")
    return conn.execute(wanted).first() is not None


def _is_deleted(conn: Connection, session_id: str) -> bool:
    wanted = select(_S.deleted_at_ms).where(_S.id == session_id)
    return conn.execute(wanted).scalar() is not None


def _ownership_values(record: SessionRecord) -> dict[str, str | None]:
    return {"owner": record.owner, "chat_id": record.chat_id, "audience": record.audience}
