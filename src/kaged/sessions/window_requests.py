"""`WindowRequests`: what people and scripts ask about an agent's window between its turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kaged.base import KagedError
from kaged.kernel.identity import Actor
from kaged.projects.readiness import Ready
from kaged.sessions.compacting import REQUESTED
from kaged.sessions.run_options import OPERATOR
from kaged.sessions.run_plan import last_options, model_alias, require_agent, run_state
from kaged.tools.context import ROOT_CALLER

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.sessions.agent_run_factory import AgentRunFactory
    from kaged.sessions.loop import LoopParts
    from kaged.sessions.needs import Models
    from kaged.sessions.session_cache import SessionCache
    from kaged.store import Store

RECENT_ENTRIES: Final = 200
"""How far back the last turn of a session is looked for."""


class WindowRequests:
    """Compacts windows on request and tells how full they are. `is_busy` names active sessions."""

    def __init__(
        self,
        store: Store,
        known: SessionCache,
        run_factory: AgentRunFactory,
        parts: LoopParts,
        models: Models,
        *,
        ready: Ready,
        is_busy: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._known = known
        self._run_factory = run_factory
        self._parts = parts
        self._models = models
        self._ready = ready
        self._is_busy = is_busy

    async def compact(
        self,
        session_id: str,
        agent: str = ROOT_CALLER,
        *,
        dry_run: bool = False,
        wish: str | None = None,
        operator: str = OPERATOR,
        identity: Actor | None = None,
    ) -> JsonObject:
        """Compact an agent's window for somebody, or tell what that would do.

        Raises:
            SessionNotFound, KagedError: `session_busy`; there is no such session, or a run of it
                is active.
        """
        session = await self._store.sessions.of_id(session_id)
        await self._ready(session.project_id)
        if not dry_run and self._is_busy(session_id):
            raise KagedError(
                "A run of this session is active.",
                code="session_busy",
                fix="wait for it, or cancel it",
            )
        last = await last_options(self._store, session)
        options = replace(last, operator=operator, identity=identity, kept=None)
        known = await self._known.of(session)
        run = run_state(session, "", known, options)
        path = agent.partition("#")[0]
        require_agent(known, path)
        alias = model_alias(session, options, path, known)
        agent_run = await self._run_factory.create(run, path, agent, model=alias)
        if dry_run:
            return self._parts.compactor.preview(agent_run)
        done = await self._parts.compactor.compact(agent_run, REQUESTED, wish)
        return {"compacted": False} if done is None else {"compacted": True, **done.as_json()}

    async def usage(self, session_id: str) -> JsonObject | None:
        """Return what the last turn of a session's primary agent took; None before there is one."""
        for entry in reversed(await self._parts.transcript.last(session_id, RECENT_ENTRIES)):
            usage = entry.content.get("usage")
            if entry.agent == ROOT_CALLER and isinstance(usage, dict):
                break
        else:
            return None
        session = await self._store.sessions.of_id(session_id)
        options = await last_options(self._store, session)
        known = await self._known.of(session)
        alias = model_alias(session, options, ROOT_CALLER, known)
        return {
            "model": alias,
            "input_tokens": usage.get("input"),
            "output_tokens": usage.get("output"),
            "context_window": self._models.get(alias, session.project_id).context_tokens,
        }
