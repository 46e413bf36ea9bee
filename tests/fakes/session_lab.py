"""The session service on a real store, with everything that listeners were told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from fakes.readiness import always_ready
from fakes.store_home import StoreHome
from kaged.base import Ids, ManualClock
from kaged.sessions.entry import Entry, EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.sessions.navigation import Navigation
from kaged.sessions.session_service import SessionService
from kaged.sessions.transcript import Transcript
from kaged.store import Store
from kaged.store.agent_run_rows import RunCause

PROJECT = "prj_1"


def message(
    text: str,
    role: EntryRole = EntryRole.USER,
    *,
    agent: str = "primary",
    run_id: str | None = None,
) -> EntryDraft:
    """Make a message of one text."""
    return EntryDraft(
        EntryKind.MESSAGE,
        {"content": [{"type": "text", "text": text}]},
        role=role,
        agent=agent,
        run_id=run_id,
    )


def texts(entries: Sequence[Entry]) -> list[str]:
    """Return the texts of the messages among entries."""
    found: list[str] = []
    for entry in entries:
        blocks = entry.content.get("content")
        if entry.kind is EntryKind.MESSAGE and isinstance(blocks, list):
            for block in blocks:
                assert isinstance(block, dict)
                found.append(str(block.get("text")))
    return found


class SessionLab:
    """A store, the transcript on it, and all events so far."""

    MESSAGE: ClassVar = RunCause.MESSAGE

    def __init__(self, home: StoreHome, clock: ManualClock, ids: Ids) -> None:
        self.home = home
        self.clock = clock
        self.ids = ids
        self.events: list[SessionEvent] = []
        self.store: Store
        self.lifecycle: Lifecycle
        self.transcript: Transcript
        self.service: SessionService
        self.navigation: Navigation

    async def open(self) -> None:
        """Open the store, and everything on it anew."""
        self.store = await self.home.store()
        self.lifecycle = Lifecycle()
        self.lifecycle.subscribe(self.events.append)
        self.transcript = Transcript(self.store, self.lifecycle, clock=self.clock, ids=self.ids)
        self.service = SessionService(self.store, self.transcript, self.lifecycle)
        self.navigation = Navigation(
            self.store, self.transcript, self.service, self.lifecycle, ready=always_ready
        )

    async def reopen(self, clock: ManualClock | None = None) -> None:
        """Do what a restart does: close everything and begin with what is on disk."""
        await self.home.close()
        self.clock = clock or self.clock
        self.ids = Ids(self.clock)
        self.home.clock, self.home.ids = self.clock, self.ids
        await self.open()

    async def session(self, *said: str, project_id: str = PROJECT) -> str:
        """Begin a session in which the user said this; returns its id."""
        made = await self.transcript.create(project_id, cwd="/src", model="scripted")
        await self.say(made.id, *said)
        return made.id

    async def say(self, session_id: str, *said: str) -> list[Entry]:
        """Let the user say something."""
        return await self.transcript.append(session_id, [message(text) for text in said])

    def names(self) -> list[str]:
        """Return the names of the events so far."""
        return [event.name for event in self.events]


@asynccontextmanager
async def session_lab(root: Path, clock: ManualClock, ids: Ids) -> AsyncGenerator[SessionLab]:
    """Open a store below `root` and the book on it."""
    home = StoreHome(root, clock, ids)
    lab = SessionLab(home, clock, ids)
    await lab.open()
    try:
        yield lab
    finally:
        await home.close()


__all__ = ["PROJECT", "SessionLab", "message", "session_lab", "texts"]
