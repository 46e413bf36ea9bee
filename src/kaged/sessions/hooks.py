"""`SessionHooks`: the moments of a session that plugins take part in, bound to who takes part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kaged.base import JsonObject
from kaged.plugins.hooks import CompactionEvent, HookRunner, Participant, PreCompactOutcome
from kaged.plugins.observers import Observed
from kaged.wire.context import WireContext

Participants = Callable[[str, str], Sequence[Participant]]
"""(project id, agent path) to the plugins of that agent, in declared order."""


class SessionHooks:
    """Fires the hooks of whatever agent a context names."""

    def __init__(self, firer: HookRunner, participants: Participants) -> None:
        self._firer = firer
        self._participants = participants

    async def session_start(self, context: WireContext) -> tuple[str, ...]:
        """Fire on_session_start; returns the wrapped injections in plugin order."""
        found = self._of(context)
        return (await self._firer.session_start(found, context)).inject if found else ()

    async def session_idle(self, context: WireContext, transcript: Sequence[JsonObject]) -> None:
        """Fire on_session_idle."""
        found = self._of(context)
        if found:
            await self._firer.session_idle(found, context, transcript)

    async def pre_compact(self, context: WireContext, event: CompactionEvent) -> PreCompactOutcome:
        """Fire pre_compact."""
        found = self._of(context)
        if not found:
            return PreCompactOutcome(Observed())
        return await self._firer.pre_compact(found, context, event)

    async def post_compact(self, context: WireContext, event: CompactionEvent) -> Observed:
        """Fire post_compact."""
        found = self._of(context)
        return await self._firer.post_compact(found, context, event) if found else Observed()

    def wants_idle(self, project_id: str, agent_path: str) -> bool:
        """Return whether any plugin or listener wants to know that a session is idle."""
        return bool(self._participants(project_id, agent_path))

    def _of(self, context: WireContext) -> Sequence[Participant]:
        if context.project_id is None or context.agent_path is None:
            return ()
        return self._participants(context.project_id, context.agent_path)
