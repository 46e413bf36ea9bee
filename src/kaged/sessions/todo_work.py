"""`LoopTodos`: todo lists as the loop uses them: it reminds of them and takes over proposals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import KagedError
from kaged.base.log import get_logger
from kaged.store.work_errors import NoBoundIssue, SessionNotFound

if TYPE_CHECKING:
    from kaged.base import JsonValue
    from kaged.sessions.needs import AuditPost
    from kaged.store.session_rows import SessionRows
    from kaged.toolbox.project import TodoService
    from kaged.tools import ToolCallContext

MAX_REMEMBERED: Final = 10_000

_log = get_logger("kaged.sessions")


class LoopTodos:
    """Todo lists of sessions."""

    def __init__(self, todos: TodoService, sessions: SessionRows, audit: AuditPost) -> None:
        self._todos = todos
        self._sessions = sessions
        self._audit = audit
        self._unbound: dict[str, int] = {}

    async def reminder(
        self, project_id: str, session_id: str, *, just_shown: bool = False
    ) -> str | None:
        """Return what the agent is reminded of before its next step.

        Asked at every step: that a session works on no issue is remembered until a binding changes.
        """
        now = self._sessions.bindings
        if just_shown or self._unbound.get(session_id) == now:
            return None
        if (await self._sessions.get(project_id, session_id)).bound_issue is None:
            if len(self._unbound) >= MAX_REMEMBERED:
                self._unbound.clear()
            self._unbound[session_id] = now
            return None
        return await self._todos.reminder(project_id, session_id, just_shown=just_shown)

    async def proposed(self, context: ToolCallContext, result: JsonValue, agent: str) -> None:
        """Store the todos that a subagent proposes; a session without an issue has no list."""
        try:
            issue_id = await self._todos.bound_issue(context.project_id, context.session_id)
            done = await self._todos.take_over(issue_id, result, agent)
        except (NoBoundIssue, SessionNotFound):
            return
        except KagedError as error:
            # The proposal stands in the result all the same; the root can take it over itself.
            _log.warning("todos.proposal_not_taken", agent=agent, error=str(error))
            return
        if done is None or done.event is None:
            return
        event = AuditEvent(
            done.event,
            done.facts,
            project_id=context.project_id,
            request_id=context.request_id,
            caller=context.caller,
        )
        try:
            self._audit.post(event)
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=done.event, error=str(error))
