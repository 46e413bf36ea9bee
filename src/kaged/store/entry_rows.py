"""`EntryRows`: what was said and done in sessions, as append-only chains that forks share.

Content is JSON text here; what is in it is for those who read it. Rows come out through a `make`
that runs in the reader's thread, so that a long transcript never holds up the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.store.chain import (
    HEADER_POSITION,
    Segment,
    find_place,
    segments_of,
    superseded_by,
)
from kaged.store.prepared import PreparedStatement
from kaged.store.rows import RowRepository
from kaged.store.schema import entries, entry_marks, sessions
from kaged.store.session_rows import SessionRecord, session_by_id

T = TypeVar("T")

FETCH_BATCH = 500

_E = entries.c
COLUMNS = (
    _E.session_id,
    _E.position,
    _E.id,
    _E.kind,
    _E.role,
    _E.agent,
    _E.run_id,
    _E.ts_ms,
    _E.content,
)

# Prepared: every step of every agent runs them.
_LAST_SEQ = PreparedStatement(select(func.max(_E.seq)))
_OF_SESSION = update(sessions).where(sessions.c.id == bindparam("advanced"))
_HEAD = ("head_entry", "head_position", "updated_at_ms")
_ADVANCE = PreparedStatement(_OF_SESSION.values({name: bindparam(name) for name in _HEAD}))


class EntryRow(NamedTuple):
    """One entry as stored. `session_id` is whose it is, which may be an ancestor's."""

    session_id: str
    position: int
    id: str
    kind: str
    role: str | None
    agent: str
    run_id: str | None
    ts_ms: int
    content: str


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry on its way into the store. `words` is what full-text search finds it by.

    `session_values` are columns of the session that this entry changes, such as its title.
    """

    kind: str
    content: str
    role: str | None = None
    agent: str = "primary"
    run_id: str | None = None
    words: str = ""
    session_values: Mapping[str, str | None] | None = None


Make = Callable[[EntryRow, str | None], T]
"""Makes the caller's value of a row and of the compaction that superseded it."""


class EntryRows(RowRepository):
    """The entries of all sessions."""

    async def append(
        self,
        session_id: str,
        drafts: Sequence[NewEntry],
        superseded: Sequence[str] = (),
    ) -> tuple[SessionRecord, list[EntryRow]]:
        """Append entries in one transaction; they are durable when this returns.

        With `superseded` the last of them is a compaction, and these entries leave the window of
        this session, and of no other.

        Raises:
            SessionNotFound: there is no such session.
            KagedError: `entry_not_found`; an entry to be superseded is not of this session.
        """
        now_ms = self._clock.now_ms()

        def work(conn: Connection) -> tuple[SessionRecord, list[EntryRow]]:
            session = session_by_id(conn, session_id)
            made, changes = self.write(conn, session, drafts, now_ms)
            if superseded:
                _mark(conn, session, superseded, made[-1])
            return replace(session, **changes), made

        return await self._database.write(work)

    async def read(
        self, session_id: str, make: Make[T], *, after: str | None = None, limit: int | None = None
    ) -> list[T]:
        """Return the entries that a session shows, in order: its header, then the oldest first.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`; there is no such session, or no such
                `after` in it.
        """

        def work(conn: Connection) -> list[T]:
            session = session_by_id(conn, session_id)
            start = HEADER_POSITION - 1
            if after is not None:
                start = find_place(conn, session, after).position
            marks = superseded_by(conn, session)
            rows = _rows(conn, _parts(conn, session, start), limit)
            return [make(row, marks.get(row.id)) for row in rows]

        return await self._database.read(work)

    async def last(self, session_id: str, make: Make[T], limit: int) -> list[T]:
        """Return the newest entries of a session, oldest of them first; never its header."""

        def work(conn: Connection) -> list[T]:
            session = session_by_id(conn, session_id)
            start = max(HEADER_POSITION, session.head_position - limit)
            marks = superseded_by(conn, session)
            rows = _rows(conn, _parts(conn, session, start), limit)
            return [make(row, marks.get(row.id)) for row in rows]

        return await self._database.read(work)

    async def window(
        self, session_id: str, kinds: Sequence[str], agent: str, make: Make[T]
    ) -> list[T]:
        """Return the entries of these kinds of one agent that no compaction took out of its window.

        Raises:
            SessionNotFound: there is no such session.
        """

        def work(conn: Connection) -> list[T]:
            session = session_by_id(conn, session_id)
            marks = superseded_by(conn, session)
            of_agent = (_E.kind.in_(kinds), _E.agent == agent)
            found: list[T] = []
            for segment in segments_of(conn, session):
                if not marks:
                    rows = _rows(conn, [segment], None, of_agent)
                else:
                    # Look at ids first: what compactions took out may be most of the session.
                    wanted = (
                        select(_E.seq, _E.id)
                        .where(_within(segment), *of_agent)
                        .order_by(_E.position)
                    )
                    kept = [seq for seq, id_ in conn.execute(wanted) if id_ not in marks]
                    rows = _by_seq(conn, kept)
                found += (make(row, None) for row in rows)
            return found

        return await self._database.read(work)

    async def of_kind(self, session_id: str, kind: str, make: Make[T]) -> list[T]:
        """Return the entries of one kind that a session shows, the compacted ones included.

        `make` is not told which those are.

        Raises:
            SessionNotFound: there is no such session.
        """

        def work(conn: Connection) -> list[T]:
            segments = segments_of(conn, session_by_id(conn, session_id))
            return [make(row, None) for row in _rows(conn, segments, None, (_E.kind == kind,))]

        return await self._database.read(work)

    async def find(self, session_id: str, prefix: str, make: Make[T]) -> T:
        """Return the one entry of a session whose id begins with `prefix`.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`, `entry_ambiguous`; there is no such
                session or entry, or
                there are several.
        """

        def work(conn: Connection) -> T:
            session = session_by_id(conn, session_id)
            place = find_place(conn, session, prefix)
            (row,) = _rows(conn, [Segment(place.session_id, place.position, place.position)], 1)
            return make(row, superseded_by(conn, session).get(row.id))

        return await self._database.read(work)

    def write(
        self, conn: Connection, session: SessionRecord, drafts: Sequence[NewEntry], now_ms: int
    ) -> tuple[list[EntryRow], dict[str, Any]]:
        """Append to a session as a part of a larger unit of work.

        Gives the entries, and what changed in the session with them.
        """
        last, position = session.head_entry, session.head_position
        made: list[EntryRow] = []
        for draft in drafts:
            last = self._ids.ulid_after(last)
            position += 1
            made.append(
                EntryRow(
                    session.id, position, last, draft.kind, draft.role, draft.agent, draft.run_id,
                    now_ms, draft.content,
                )
            )  # fmt: skip
        self.put(conn, made, [draft.words for draft in drafts])
        changes: dict[str, Any] = {}
        for draft in drafts:
            changes.update(draft.session_values or {})
        changes |= {"head_entry": last, "head_position": position, "updated_at_ms": now_ms}
        if len(changes) == len(_HEAD):
            _ADVANCE.run(conn, {"advanced": session.id, **changes})
        else:
            conn.execute(_OF_SESSION, {"advanced": session.id, **changes})
        return made, changes

    def put(self, conn: Connection, rows: Sequence[EntryRow], words: Sequence[str]) -> None:
        """Insert rows as they are, with what they are found by; the caller keeps the order."""
        backend = self._database.backend
        first = int(_LAST_SEQ.first(conn)[0] or 0) + 1
        backend.insert_rows(
            conn, entries, [(first + number, *row) for number, row in enumerate(rows)]
        )
        for number, text in enumerate(words):
            if text:
                backend.put_text(conn, entries.name, first + number, None, {"words": text})


def read_header(conn: Connection, session_id: str) -> EntryRow | None:
    """Return a session's own header; None if it has none yet."""
    rows = list(_rows(conn, [Segment(session_id, HEADER_POSITION, HEADER_POSITION)], 1))
    return rows[0] if rows else None


def add_marks(
    conn: Connection, session_id: str, entry_ids: Sequence[str], by: str, position: int
) -> None:
    """Mark entries as superseded by a compaction, as a part of a larger unit of work."""
    if entry_ids:
        conn.execute(
            insert(entry_marks),
            [
                {
                    "session_id": session_id,
                    "entry_id": entry_id,
                    "superseded_by": by,
                    "position": position,
                }
                for entry_id in entry_ids
            ],
        )


def _mark(
    conn: Connection, session: SessionRecord, superseded: Sequence[str], compaction: EntryRow
) -> None:
    wanted = list(dict.fromkeys(superseded))
    own: set[str] = set()
    for segment in segments_of(conn, session):
        for start in range(0, len(wanted), FETCH_BATCH):
            batch = _E.id.in_(wanted[start : start + FETCH_BATCH])
            own.update(conn.execute(select(_E.id).where(_within(segment), batch)).scalars())
    for entry_id in wanted:
        if entry_id not in own:
            raise KagedError(
                f"{entry_id[:40]!r} is no entry that can be superseded.",
                code="entry_not_found",
                fix="name entries of this session behind its header",
            )
    known = superseded_by(conn, session)
    fresh = [entry_id for entry_id in wanted if entry_id not in known]
    add_marks(conn, session.id, fresh, compaction.id, compaction.position)


def _parts(conn: Connection, session: SessionRecord, start: int) -> Iterator[Segment]:
    """Yield what a session shows behind a position."""
    if start < HEADER_POSITION:
        yield Segment(session.id, HEADER_POSITION, HEADER_POSITION)
    for segment in segments_of(conn, session):
        if segment.last > start:
            yield Segment(segment.session_id, max(segment.first, start + 1), segment.last)


def _rows(
    conn: Connection,
    segments: Sequence[Segment] | Iterator[Segment],
    limit: int | None,
    conditions: tuple[ColumnElement[bool], ...] = (),
) -> Iterator[EntryRow]:
    left = limit
    for segment in segments:
        wanted = select(*COLUMNS).where(_within(segment), *conditions).order_by(_E.position)
        if left is not None:
            wanted = wanted.limit(left)
        count = 0
        for row in conn.execute(wanted):
            count += 1
            yield EntryRow._make(row)
        if left is not None:
            left -= count
            if left <= 0:
                return


def _by_seq(conn: Connection, kept: Sequence[int]) -> Iterator[EntryRow]:
    for start in range(0, len(kept), FETCH_BATCH):
        wanted = (
            select(*COLUMNS)
            .where(_E.seq.in_(kept[start : start + FETCH_BATCH]))
            .order_by(_E.position)
        )
        for row in conn.execute(wanted):
            yield EntryRow._make(row)


def _within(segment: Segment) -> ColumnElement[bool]:
    return (_E.session_id == segment.session_id) & _E.position.between(segment.first, segment.last)
