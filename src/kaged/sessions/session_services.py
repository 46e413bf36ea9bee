"""`SessionServices`: the session service with everything around it, as edges and scripts use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.kernel.identity import Actor
    from kaged.sessions.lifecycle import Lifecycle
    from kaged.sessions.navigation import Navigation
    from kaged.sessions.session_service import SessionService
    from kaged.sessions.tool_log import ToolCallLog
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store


class Driver(Protocol):
    """What starts and stops runs: `kaged.sessions.driver.SessionDriver`."""

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        model: str | None = None,
        max_steps: int | None = None,
        operator: str = "operator",
        agent: str = "primary",
        identity: Actor | None = None,
    ) -> str:
        """Send a message and start a run; returns its id once the message is on disk."""
        ...

    async def resume(
        self,
        session_id: str,
        *,
        operator: str = "operator",
        identity: Actor | None = None,
    ) -> str:
        """Go on where a run was cut off; returns the id of the new run."""
        ...

    async def cancel(self, which: str) -> bool:
        """End the active run of a session; returns whether there was one."""
        ...

    async def compact_now(
        self, session_id: str, agent: str = "primary", *, dry_run: bool = False
    ) -> JsonObject:
        """Compact an agent's window, or tell what that would do."""
        ...


@dataclass(slots=True)
class SessionServices:
    """Sessions: their entries, their list, moves between them, their tool calls, their runs.

    `driver` is None in a daemon that was built without the agent loop.
    """

    store: Store
    lifecycle: Lifecycle
    transcript: Transcript
    service: SessionService
    navigation: Navigation
    calls: ToolCallLog
    driver: Driver | None = None
