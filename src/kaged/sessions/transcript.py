"""`Transcript`: what is said and done in sessions. It only grows, and forks share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from kaged.base import Clock, Ids, JsonObject, KagedError
from kaged.kernel.ownership import OPERATORS, Ownership
from kaged.sessions.content import decode_content, encode_content, words_of
from kaged.sessions.entry import Entry, EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.store import Store
from kaged.store.entry_rows import EntryRow, NewEntry
from kaged.store.session_rows import SessionKind, SessionRecord, SessionStatus

FORMAT_VERSION: Final = 1
APPEND_LIMIT: Final = 10_000  # entries in one append
TITLE_LIMIT_CHARS: Final = 200

_WINDOW = (EntryKind.MESSAGE.value, EntryKind.COMPACTION.value)


class Transcript:
    """The entries of all sessions. What is appended is durable when the call returns."""

    def __init__(self, store: Store, lifecycle: Lifecycle, *, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._clock = clock
        self._ids = ids

    async def create(
        self,
        project_id: str,
        *,
        kind: SessionKind = SessionKind.PRIMARY,
        cwd: str,
        model: str | None,
        system_prompt: str = "",
        title: str | None = None,
        operator_id: str | None = None,
        session_id: str | None = None,
        current: bool = False,
        ownership: Ownership = OPERATORS,
    ) -> SessionRecord:
        """Begin a session with its header; `current` makes it the project's current one.

        A session that the store knows without a header, such as that of a workflow run, gets it.

        Raises:
            SessionExists: `session_id` has a header already.
        """
        fresh = SessionRecord(
            id=session_id or self._ids.tagged("ses"),
            project_id=project_id,
            kind=kind.value,
            status=SessionStatus.IDLE.value,
            detail=None,
            bound_issue=None,
            created_at_ms=0,
            updated_at_ms=0,
            title=None if title is None else title[:TITLE_LIMIT_CHARS],
            model=model,
            operator_id=operator_id,
            owner=ownership.owner,
            chat_id=ownership.chat_id,
            audience=ownership.audience.value,
        )
        header: JsonObject = {
            "version": FORMAT_VERSION,
            # Where a project lies on the machine is the operator's to know.
            "cwd": cwd if ownership.owner is None else ".",
            "model": model,
            "system_prompt": system_prompt,
        }
        made, row = await self._store.branches.create(fresh, _header(header), current=current)
        self._tell(
            made,
            "session.created",
            {"kind": made.kind, "title": made.title, "model": made.model, "current": current},
        )
        self._appended(made, [row])
        return made

    async def append(self, session_id: str, drafts: Sequence[EntryDraft]) -> list[Entry]:
        """Append entries, all or none, in one transaction.

        Raises:
            SessionNotFound: there is no such session.
            KagedError: `entry_invalid`, `entry_too_large`; an entry cannot be kept.
        """
        if not drafts:
            return []
        wanted = [_new(draft) for draft in _within_limit(drafts)]
        session, rows = await self._store.entries.append(session_id, wanted)
        self._appended(session, rows)
        if any(draft.kind is EntryKind.TITLE for draft in drafts):
            self._tell(session, "session.titled", {"title": session.title})
        return [_entry(row, None) for row in rows]

    async def entries(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return what a session shows: its header, then everything else in the order of ids.

        Entries of its ancestors and those that a compaction superseded are among them.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`; there is no such session, or no entry
                `after` in it.
        """
        return await self._store.entries.read(session_id, _entry, after=after, limit=limit)

    async def last(self, session_id: str, limit: int) -> list[Entry]:
        """Return the newest entries of a session, the oldest of them first; never the header."""
        return await self._store.entries.last(session_id, _entry, limit)

    async def window(self, session_id: str, agent: str = "primary") -> list[Entry]:
        """Return the messages and compactions of one agent that are not superseded."""
        return await self._store.entries.window(session_id, _WINDOW, agent, _entry)

    async def turns(self, session_id: str, agent: str, runs: Collection[str]) -> int:
        """Return how often one agent's model spoke in some runs, compacted messages included."""

        def spoken(row: EntryRow, _: str | None) -> bool:
            mine = row.agent == agent and row.run_id in runs
            return mine and row.role == EntryRole.ASSISTANT.value

        return sum(await self._store.entries.of_kind(session_id, EntryKind.MESSAGE.value, spoken))

    async def project_of(self, session_id: str) -> str:
        """Return the id of a session's project. Raises SessionNotFound."""
        return (await self._store.sessions.of_id(session_id)).project_id

    async def header(self, session_id: str) -> Entry | None:
        """Return the header of a session; None if it has none."""
        first = await self.entries(session_id, limit=1)
        return first[0] if first and first[0].kind is EntryKind.HEADER else None

    async def find_entry(self, session_id: str, prefix: str) -> Entry:
        """Return the one entry of a session whose id begins with `prefix`.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`, `entry_ambiguous`; there is none, or
                more than one.
        """
        return await self._store.entries.find(session_id, prefix, _entry)

    async def compact(
        self, session_id: str, superseded: Sequence[str], draft: EntryDraft, agent: str = "primary"
    ) -> Entry:
        """Append a compaction and take `superseded` out of the agent's window, as one step.

        They stay entries of the session; a fork from before still has them in its window.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`; there is no such session, or no such
                entry in it.
            KagedError: `entry_invalid`; `draft` is no compaction.
        """
        if draft.kind is not EntryKind.COMPACTION or draft.agent != agent:
            raise KagedError(
                "a compaction of the agent itself is needed here", code="entry_invalid"
            )
        session, rows = await self._store.entries.append(session_id, [_new(draft)], superseded)
        self._appended(session, rows)
        return _entry(rows[0], None)

    async def fork(self, session_id: str, at: str | None = None) -> SessionRecord:
        """Branch off at an entry (an id, or a unique beginning of one), by default the last.

        Nothing is copied. The new session has a header of its own and shows every entry up to and
        including `at`; at the header's id it has nothing else.

        Raises:
            SessionNotFound, KagedError: `entry_not_found`, `entry_ambiguous`; there is no such
                place.
            KagedError: `nothing_to_fork`; the session has nothing but a header.
        """
        made, _ = await self.fork_and_land(session_id, at, from_current=None)
        return made

    async def fork_and_land(
        self, session_id: str, at: str | None, *, from_current: str | None
    ) -> tuple[SessionRecord, bool]:
        """Fork; if the project's current session is `from_current`, the fork takes its place.

        One step: there is never a fork without the move. Gives whether the pointer moved.
        """
        made, row, moved = await self._store.branches.fork(
            session_id, at, self._ids.tagged("ses"), _reheader, from_current=from_current
        )
        self._tell(
            made,
            "session.forked",
            {"from": made.parent_session, "at": made.parent_entry, "header": row.id},
        )
        return made, moved

    def _appended(self, session: SessionRecord, rows: Sequence[EntryRow]) -> None:
        for row in rows:
            data: JsonObject = {
                "id": row.id,
                "position": row.position,
                "kind": row.kind,
                "role": row.role,
                "agent": row.agent,
                "ts_ms": row.ts_ms,
            }
            self._tell(session, "entry.appended", data, row.run_id)

    def _tell(
        self, session: SessionRecord, name: str, data: JsonObject, run_id: str | None = None
    ) -> None:
        self._lifecycle.emit(SessionEvent(name, session.id, session.project_id, run_id, data))


def _new(draft: EntryDraft) -> NewEntry:
    kind, content = draft.kind, draft.content
    if kind is EntryKind.HEADER:
        raise KagedError("a session has one header, its first entry", code="entry_invalid")
    if (draft.role is None) == (kind is EntryKind.MESSAGE):
        raise KagedError("messages have a role, and nothing else has one", code="entry_invalid")
    values: dict[str, str | None] | None = None
    if kind is EntryKind.TITLE:
        title = content.get("title")
        values = {"title": title[:TITLE_LIMIT_CHARS] if isinstance(title, str) else None}
    elif kind is EntryKind.MODEL_CHANGE:
        model = content.get("model")
        values = {"model": model if isinstance(model, str) else None}
    return NewEntry(
        kind=kind.value,
        content=encode_content(content),
        role=None if draft.role is None else draft.role.value,
        agent=draft.agent,
        run_id=draft.run_id,
        words=words_of(kind.value, content),
        session_values=values,
    )


def _within_limit(drafts: Sequence[EntryDraft]) -> Sequence[EntryDraft]:
    if len(drafts) > APPEND_LIMIT:
        raise KagedError(
            f"at most {APPEND_LIMIT} entries are appended at once", code="entry_invalid"
        )
    return drafts


def _header(content: JsonObject) -> NewEntry:
    return NewEntry(kind=EntryKind.HEADER.value, content=encode_content(content))


def _reheader(content: str, parent: SessionRecord, at: str) -> NewEntry:
    return _header({**decode_content(content), "parent_session": parent.id, "parent_entry": at})


_KINDS = {kind.value: kind for kind in EntryKind}
_ROLES: dict[str | None, EntryRole | None] = {role.value: role for role in EntryRole}
_ROLES[None] = None


def _entry(row: EntryRow, superseded_by: str | None) -> Entry:
    # Spelled out and positional: ten thousand of these are made when a session is replayed.
    return Entry(
        row.id,
        row.session_id,
        _KINDS[row.kind],
        _ROLES[row.role],
        row.agent,
        row.run_id,
        row.ts_ms,
        superseded_by,
        decode_content(row.content),
    )
