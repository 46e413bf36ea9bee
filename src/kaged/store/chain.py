"""`Segment`: whose entries a session shows, from which place to which.

A fork copies nothing: it says up to which entry of which session it goes on. What a session shows
is therefore its own header, a piece of each ancestor, oldest first, and what it has itself.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, Select, select

from kaged.base import KagedError
from kaged.store.schema import entries, entry_marks, sessions
from kaged.store.session_rows import SessionRecord

HEADER_POSITION = 0
AMBIGUOUS_SHOWN = 5

_E = entries.c
_S = sessions.c
_PAST_ALL = "~"  # sorts behind every letter of an id


class Segment(NamedTuple):
    """The entries of `session_id` from `first` to `last`, both included."""

    session_id: str
    first: int
    last: int


class EntryPosition(NamedTuple):
    """One entry: who owns it, and where it stands."""

    session_id: str
    position: int
    id: str


def segments_of(conn: Connection, session: SessionRecord) -> list[Segment]:
    """Return what a session shows behind its header, oldest first."""
    found: list[Segment] = []
    last = session.head_position
    owner = session.id
    for base, position in _bases(conn, session):
        found.append(Segment(owner, position + 1, last))
        owner, last = base, position
    found.append(Segment(owner, HEADER_POSITION + 1, last))
    return [one for one in reversed(found) if one.first <= one.last]


def superseded_by(conn: Connection, session: SessionRecord) -> dict[str, str]:
    """Return the entries that are out of a session's window, with the compaction that took each.

    A compaction counts from its place on: a fork from before sees what was there before.
    """
    marks = entry_marks.c
    found: dict[str, str] = {}
    for owner, last in owners_of(conn, session):
        wanted = select(marks.entry_id, marks.superseded_by).where(
            marks.session_id == owner, marks.position <= last
        )
        found.update((entry, by) for entry, by in conn.execute(wanted))
    return found


def owners_of(conn: Connection, session: SessionRecord) -> list[tuple[str, int]]:
    """Return whose entries a session shows, its own first, each with the last place it shows."""
    return [(session.id, session.head_position), *_bases(conn, session)]


def find_place(conn: Connection, session: SessionRecord, prefix: str) -> EntryPosition:
    """Return the one entry of a session whose id begins with `prefix`, in either case.

    Raises:
        KagedError: `entry_not_found`, `entry_ambiguous`; there is none, or more than one.
    """
    text = prefix.strip().upper()
    places = [Segment(session.id, HEADER_POSITION, HEADER_POSITION), *segments_of(conn, session)]
    found: list[EntryPosition] = []
    if text.isalnum() and text.isascii():
        for segment in places:
            found += (EntryPosition(*row) for row in conn.execute(_beginning(segment, text)))
            if len(found) > AMBIGUOUS_SHOWN:
                break
    if not found:
        raise KagedError(
            f"No entry id starts with {prefix[:40]!r}.",
            code="entry_not_found",
            fix="`kaged session show SESSION` lists the entries",
        )
    if len(found) > 1:
        many = f"more than {AMBIGUOUS_SHOWN}" if len(found) > AMBIGUOUS_SHOWN else str(len(found))
        raise KagedError(
            f"Prefix {prefix[:40]!r} is ambiguous ({many} matches).",
            code="entry_ambiguous",
            fix="give more of the id",
            matches=[one.id for one in found[:AMBIGUOUS_SHOWN]],
        )
    return found[0]


def _beginning(segment: Segment, text: str) -> Select[str, int, str]:
    return (
        select(_E.session_id, _E.position, _E.id)
        .where(
            _E.session_id == segment.session_id,
            _E.id >= text,
            _E.id < text + _PAST_ALL,
            _E.position.between(segment.first, segment.last),
        )
        .order_by(_E.id)
        .limit(AMBIGUOUS_SHOWN + 1)
    )


def _bases(conn: Connection, session: SessionRecord) -> list[tuple[str, int]]:
    """Return the sessions whose entries this one shares, nearest first, with their last place."""
    if session.base_session is None:
        return []
    near = (
        select(_S.base_session, _S.base_position, _S.depth)
        .where(_S.id == session.id)
        .cte("chain", recursive=True)
    )
    far = select(_S.base_session, _S.base_position, _S.depth).where(
        _S.id == near.c.base_session, _S.base_session.is_not(None)
    )
    chain = near.union_all(far)
    wanted = select(chain.c.base_session, chain.c.base_position).order_by(chain.c.depth.desc())
    return [(str(base), int(position)) for base, position in conn.execute(wanted)]
