"""`SessionCache`: what is fixed about a session once it has started, found again when needed.

The snapshot of agents and tools lives as long as the daemon. What plugins injected at the start
is an entry of the session, so that no later run and no restart asks them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.agent_run import AgentRun
from kaged.sessions.content import decode_content
from kaged.sessions.entry import EntryDraft, EntryKind
from kaged.sessions.hooks import SessionHooks
from kaged.sessions.messages import WindowMessage, message_of_entry
from kaged.sessions.snapshot import SessionSnapshot
from kaged.sessions.transcript import Transcript
from kaged.store import Store
from kaged.store.entry_rows import EntryRow
from kaged.store.session_rows import SessionRecord
from kaged.tools.context import ROOT_CALLER

START_KIND: Final = "kaged.session_start"
MAX_KNOWN: Final = 10_000

TakeSnapshot = Callable[[str], Awaitable["SessionSnapshot"]]
"""Fixes the agents of a project as they are now. Raises `project_not_found`."""


@dataclass(slots=True)
class CachedSession:
    """One started session. `injections` is None until the start hook has fired or was found.

    `cleared` is what policies made of its messages, so that each passes them once.
    """

    snapshot: SessionSnapshot
    prompt: str
    injections: tuple[str, ...] | None = None
    cleared: dict[str, WindowMessage | None] = field(
        default_factory=dict[str, "WindowMessage | None"]
    )


@dataclass(eq=False)
class SessionCache:
    """The sessions that ran since the daemon started; the oldest are forgotten first."""

    store: Store
    transcript: Transcript
    hooks: SessionHooks
    take: TakeSnapshot

    def __post_init__(self) -> None:
        self._known: OrderedDict[str, CachedSession] = OrderedDict()

    async def of(self, session: SessionRecord) -> CachedSession:
        """Return what is fixed about a session; the first time fixes it.

        Raises:
            KagedError: `project_not_found`; its project is not loaded.
        """
        found = self._known.get(session.id)
        if found is None:
            header = await self.transcript.header(session.id)
            prompt = "" if header is None else header.content.get("system_prompt")
            snapshot = await self.take(session.project_id)
            # Another call may have been faster; what came first counts.
            found = self._known.setdefault(
                session.id, CachedSession(snapshot, prompt if isinstance(prompt, str) else "")
            )
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(session.id)
        return found

    def forget(self, project_id: str) -> None:
        """Let go of the sessions of a project that is gone."""
        gone = [id_ for id_, one in self._known.items() if one.snapshot.project_id == project_id]
        for id_ in gone:
            del self._known[id_]

    async def injections(
        self, known: CachedSession, agent_run: AgentRun, request_id: str
    ) -> tuple[str, ...]:
        """Return what plugins put before the system prompt; asks them once in a session's life."""
        if known.injections is not None:
            return known.injections
        session_id = agent_run.run.session_id
        found = await self._stored(session_id)
        if found is None:
            found = await self.hooks.session_start(agent_run.hook_context(request_id))
            inject: list[JsonValue] = [*found]
            draft = EntryDraft(
                kind=EntryKind.CUSTOM,
                content={"kind": START_KIND, "data": {"inject": inject}},
                run_id=agent_run.run.run_id,
            )
            await self.transcript.append(session_id, [draft])
        known.injections = found
        return found

    async def history(self, session_id: str) -> list[JsonObject]:
        """Return all messages of the root agent since the session started, in order (PH-AMB-47)."""
        return [
            message_of_entry(entry).as_json()
            for entry in await self.transcript.entries(session_id)
            if entry.kind is EntryKind.MESSAGE and entry.agent == ROOT_CALLER
        ]

    async def _stored(self, session_id: str) -> tuple[str, ...] | None:
        def read(row: EntryRow, _: str | None) -> tuple[str, ...] | None:
            content = decode_content(row.content)
            data = content.get("data")
            # A fork shows its parent's entry; its own start is a start of its own.
            if row.session_id != session_id or content.get("kind") != START_KIND:
                return None
            inject = data.get("inject") if isinstance(data, dict) else None
            return tuple(map(str, inject)) if isinstance(inject, list) else ()

        rows = await self.store.entries.window(
            session_id, (EntryKind.CUSTOM.value,), "primary", read
        )
        return next((one for one in rows if one is not None), None)
