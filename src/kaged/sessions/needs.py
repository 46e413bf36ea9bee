"""What the agent loop needs of the rest, as protocols; the transcript and others provide it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kaged.audit import AuditEvent
    from kaged.models.turn import Model
    from kaged.sessions.agent_run import RunState
    from kaged.sessions.lifecycle import SessionEvent
    from kaged.sessions.snapshot import AgentSnapshot


Announcer = Callable[["SessionEvent"], None]
"""Tells everybody who listens what happens in sessions; never raises and never waits."""

Routing = Callable[["RunState", "AgentSnapshot"], Awaitable[str]]
"""Gives what an agent's prompt says about skills and accounts that it may use in a run."""


class Models(Protocol):
    """The models by alias."""

    def get(self, alias: str, project_id: str) -> Model:
        """Return a model. Raises `model_unknown`."""
        ...


class AuditPost(Protocol):
    """The audit log, as far as compactions are put on record."""

    def post(self, event: AuditEvent) -> None:
        """Queue an event without waiting."""
        ...
