"""`SessionService`: the sessions of projects as people see them, and the runs in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from kaged.sessions.content import stored_words
from kaged.sessions.entry import EntryDraft, EntryKind
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.sessions.reviewed_files import ReviewedFiles
from kaged.sessions.search import SearchHit, search_entries
from kaged.store.agent_run_rows import (
    AgentRunRecord,
    AgentRunStatus,
    RunCause,
    RunResult,
    session_busy,
)

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.kernel.identity import Actor
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store
    from kaged.store.session_rows import SessionKind, SessionRecord
    from kaged.store.tool_call_rows import ToolCallRecord

LOCATOR: Final = "kaged:session/"
FAMILY_LIMIT: Final = 2000


def locator(session_id: str) -> str:
    """Return the text that names a session wherever one is asked for. It is no path of a file."""
    return LOCATOR + session_id


class SessionService:
    """Lists, names, finds and takes away sessions; keeps their runs.

    A session is named by its id, a unique beginning of it (with or without `ses_`), or its
    locator; anything else, a path of a file for instance, is no session. `forget` takes away what
    others keep of a session on disk.
    """

    def __init__(
        self,
        store: Store,
        transcript: Transcript,
        lifecycle: Lifecycle,
        forget: Sequence[Callable[[str], None]] = (),
    ) -> None:
        self._store = store
        self._transcript = transcript
        self._lifecycle = lifecycle
        self._forget = tuple(forget)
        self._active: dict[str, str] = {}
        self._on_deleted: Callable[[str], None] = lambda _session: None
        self.reviewed = ReviewedFiles()

    def connect(self, on_deleted: Callable[[str], None]) -> None:
        """Take who is told of a session that is gone."""
        self._on_deleted = on_deleted

    # -- sessions ------------------------------------------------------------------------------

    async def list(
        self,
        project_id: str,
        *,
        kind: SessionKind | None = None,
        limit: int = 50,
        offset: int = 0,
        actor: Actor | None = None,
    ) -> tuple[Sequence[SessionRecord], int]:
        """Return sessions that an actor may see, last used first, and how many there are in all.

        Here and below nobody is asked about where no actor is given: the daemon asks for itself.
        """
        return await self._store.sessions.page(project_id, kind, limit, offset, actor)

    async def resolve(
        self, project_id: str, target: str, actor: Actor | None = None
    ) -> SessionRecord:
        """Return the session that somebody named.

        Raises:
            SessionNotFound, KagedError: `session_ambiguous`; the project has none of that name that
                the actor may see, or several.
        """
        return await self._store.sessions.beginning_with(
            project_id, target.strip().removeprefix(LOCATOR), actor
        )

    async def get(self, project_id: str, session_id: str) -> SessionRecord:
        """Return a session by its whole id. Raises SessionNotFound."""
        return await self._store.sessions.get(project_id, session_id)

    async def current(self, project_id: str) -> str | None:
        """Return the project's current session; None if it has none."""
        return await self._store.branches.current(project_id)

    async def title(self, project_id: str, session_id: str, title: str) -> SessionRecord:
        """Change a session's title. Raises SessionNotFound."""
        await self._store.sessions.get(project_id, session_id)
        draft = EntryDraft(EntryKind.TITLE, {"title": title})
        await self._transcript.append(session_id, [draft])
        return await self._store.sessions.get(project_id, session_id)

    async def family(self, project_id: str, actor: Actor | None = None) -> Sequence[SessionRecord]:
        """Return the sessions that an actor may see, every parent before its forks."""
        return await self._store.sessions.family(project_id, FAMILY_LIMIT, actor)

    async def search(
        self,
        project_id: str,
        text: str,
        *,
        session_id: str | None = None,
        limit: int = 20,
        offset: int = 0,
        actor: Actor | None = None,
    ) -> tuple[Sequence[SearchHit], int]:
        """Find entries by words; newest first, and how many fit in all.

        Raises:
            SearchInvalid: the text names nothing to look for.
            SessionNotFound: the project has no such session.
        """
        return await search_entries(
            self._store,
            project_id,
            text,
            session_id=session_id,
            limit=limit,
            offset=offset,
            actor=actor,
        )

    async def delete(self, project_id: str, session_id: str) -> SessionRecord:
        """Take a session away, with its runs, tool calls and the files that belong to it.

        Forks keep the entries that they share with it.

        Raises:
            SessionNotFound: the project has no such session.
            KagedError: `session_busy`; a run of it is active, or it waits for the operator.
        """
        gone = await self._store.branches.delete(project_id, session_id, stored_words)
        for forget in self._forget:
            await asyncio.to_thread(forget, gone.id)
        self._on_deleted(gone.id)
        self._tell("session.deleted", gone.id, gone.project_id, None, {"title": gone.title})
        return gone

    # -- runs ----------------------------------------------------------------------------------

    async def begin_run(
        self,
        session_id: str,
        *,
        cause: RunCause = RunCause.MESSAGE,
        model: str | None = None,
        operator_id: str | None = None,
        run_id: str | None = None,
        teams: Collection[str] = (),
        started_with: JsonObject | None = None,
    ) -> AgentRunRecord:
        """Note that a run begins; its session runs from now on. `teams` are its starter's.

        `started_with` is for the run that goes on after it.

        Raises:
            SessionNotFound: there is no such session.
            KagedError: `session_busy`; a run of it is active already.
        """
        if session_id in self._active:
            raise session_busy(session_id, self._active[session_id])
        rows = self._store.agent_runs
        fresh = run_id or rows.new_id()
        # Reserved before the store is asked: a run that is active there and not here is one whose
        # end could not be written, and no reason to refuse another.
        self._active[session_id] = fresh
        try:
            stale = await rows.active(session_id)
            if stale is not None:
                await rows.finish(stale, RunResult(AgentRunStatus.INTERRUPTED))
            made = await rows.begin(
                session_id,
                cause=cause,
                model=model,
                operator_id=operator_id,
                run_id=fresh,
                teams=teams,
                started_with=started_with,
            )
        except BaseException:
            self._active.pop(session_id, None)
            raise
        self._tell(
            "run.started",
            session_id,
            made.project_id,
            made.id,
            {"cause": made.cause.value, "model": model},
        )
        return made

    async def finish_run(self, run_id: str, ended: RunResult) -> AgentRunRecord:
        """Note how a run ended; one that has ended before stays as it is.

        Raises:
            RunNotFound: there is no such run.
        """
        active = next((key for key, run in self._active.items() if run == run_id), None)
        try:
            made = await self._store.agent_runs.finish(run_id, ended)
        finally:
            if active is not None:
                del self._active[active]
        if active is None:
            return made
        data: JsonObject = {
            "status": made.status.value,
            "steps": made.steps,
            "usage": made.usage,
            "error": made.error,
            **self.reviewed.take(run_id),
        }
        self._tell("run.ended", made.session_id, made.project_id, run_id, data)
        if made.status is AgentRunStatus.COMPLETED:
            self._tell("run.completed", made.session_id, made.project_id, run_id, data)
        return made

    def active_run(self, session_id: str) -> str | None:
        """Return the run of a session that is active in this daemon; None if none is."""
        return self._active.get(session_id)

    async def runs(
        self, session_id: str, *, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[AgentRunRecord], int]:
        """Return the runs of a session, newest first, and how many there are in all."""
        return await self._store.agent_runs.page(session_id, limit, offset)

    async def tool_calls(
        self, session_id: str, *, run_id: str | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[Sequence[ToolCallRecord], int]:
        """Return the tool calls of a session, oldest first, and how many there are in all."""
        return await self._store.tool_calls.page(session_id, run_id, limit, offset)

    async def recover(self) -> Sequence[AgentRunRecord]:
        """Mark the runs that an earlier daemon left active as interrupted; returns them."""
        return await self._store.agent_runs.interrupt_all()

    def _tell(
        self, name: str, session_id: str, project_id: str, run_id: str | None, data: JsonObject
    ) -> None:
        self._lifecycle.emit(SessionEvent(name, session_id, project_id, run_id, data))
