"""`SessionServices`: the session service with everything around it, as edges and scripts use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from kaged.sessions.driver import SessionDriver
    from kaged.sessions.lifecycle import Lifecycle
    from kaged.sessions.navigation import Navigation
    from kaged.sessions.session_service import SessionService
    from kaged.sessions.tool_log import ToolCallLog
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store
    from kaged.tools.session_labels import SessionLabels


@dataclass(slots=True)
class SessionServices:
    """Sessions: their entries, their list, moves, their tool calls, their labels, their runs.

    `driver` is None in a daemon that was built without the agent loop.
    """

    store: Store
    lifecycle: Lifecycle
    transcript: Transcript
    service: SessionService
    navigation: Navigation
    calls: ToolCallLog
    labels: SessionLabels
    driver: SessionDriver | None = None
