"""`SearchHit`: an entry that fits a search, with the words around what was looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.sessions.content import stored_words
from kaged.store import Store
from kaged.store.entry_rows import EntryRow
from kaged.store.text_query import TextQuery, parse_text_query

SNIPPET_CHARS = 160

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One entry that was found. `snippet` is one line."""

    session_id: str
    entry_id: str
    position: int
    kind: str
    role: str | None
    agent: str
    ts_ms: int
    snippet: str


async def search_entries(
    store: Store,
    project_id: str,
    text: str,
    *,
    session_id: str | None,
    limit: int,
    offset: int,
    actor: Actor | None = None,
) -> tuple[list[SearchHit], int]:
    """Find entries by words, of one session or of all that an actor may see; newest first.

    Raises:
        SearchInvalid: the text names nothing to look for.
        SessionNotFound: the project has no such session.
    """
    query = parse_text_query(text)
    rows = store.entry_search
    if session_id is None:
        found, total = await rows.in_project(project_id, query, limit, offset, actor)
    else:
        found, total = await rows.in_session(project_id, session_id, query, limit, offset)
    return [_hit(row, query) for row in found], total


def snippet_of(text: str, query: TextQuery) -> str:
    """Cut the part out of a text that shows best why it was found."""
    line = _SPACE.sub(" ", text).strip()
    at = next(_places(line.casefold(), query), 0)
    start = max(0, min(at - SNIPPET_CHARS // 3, len(line) - SNIPPET_CHARS))
    cut = line[start : start + SNIPPET_CHARS]
    return f"{'…' if start else ''}{cut}{'…' if start + len(cut) < len(line) else ''}"


def _places(folded: str, query: TextQuery) -> Iterator[int]:
    for group in query.groups:
        for term in group:
            place = -1 if term.exclude else folded.find(term.text.casefold())
            if place >= 0:
                yield place


def _hit(row: EntryRow, query: TextQuery) -> SearchHit:
    return SearchHit(
        row.session_id,
        row.id,
        row.position,
        row.kind,
        row.role,
        row.agent,
        row.ts_ms,
        snippet_of(stored_words(row.kind, row.content), query),
    )
