"""What the agent loop needs of the rest, as protocols; the transcript and others provide it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kaged.audit import AuditEvent
    from kaged.base import JsonValue
    from kaged.models.turn import Model
    from kaged.sessions.entry import Entry, EntryDraft
    from kaged.sessions.lifecycle import SessionEvent
    from kaged.tools import ToolCallContext


class Ledger(Protocol):
    """The transcript, as far as a run writes and reads it."""

    async def append(self, session_id: str, drafts: Sequence[EntryDraft]) -> list[Entry]:
        """Append entries in one step; they are on disk when this returns."""
        ...

    async def window(self, session_id: str, agent: str = "primary") -> list[Entry]:
        """Return the messages and compactions of one agent that are not superseded."""
        ...

    async def compact(
        self, session_id: str, superseded: Sequence[str], draft: EntryDraft, agent: str
    ) -> Entry:
        """Append a compaction and mark what it replaces, in one step."""
        ...


Announcer = Callable[["SessionEvent"], None]
"""Tells everybody who listens what happens in sessions; never raises and never waits."""


class TodoWork(Protocol):
    """The todo lists, as far as the loop reminds of them and fills them."""

    async def reminder(
        self, project_id: str, session_id: str, *, just_shown: bool = False
    ) -> str | None:
        """Return what the agent is reminded of before its next step."""
        ...

    async def proposed(self, context: ToolCallContext, result: JsonValue, agent: str) -> None:
        """Store the todos that a subagent proposes in its result, if it proposes any."""
        ...


class Models(Protocol):
    """The models by alias."""

    def get(self, alias: str) -> Model:
        """Return a model. Raises ModelUnknown."""
        ...


class AuditPost(Protocol):
    """The audit log, as far as compactions are put on record."""

    def post(self, event: AuditEvent) -> None:
        """Queue an event without waiting."""
        ...
