"""What a run is made of before it starts: its agent, its model, and what it is started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base import KagedError
from kaged.kernel.ownership import acting_in
from kaged.sessions.agent_run import RunState
from kaged.sessions.run_options import OPERATOR, RunOptions, kept_options
from kaged.sessions.run_values import Spending
from kaged.tools.context import ROOT_CALLER

if TYPE_CHECKING:
    from kaged.sessions.session_cache import CachedSession
    from kaged.store import Store
    from kaged.store.session_rows import SessionRecord


def run_state(
    session: SessionRecord, run_id: str, known: CachedSession, options: RunOptions
) -> RunState:
    """Return the state of a run that has done nothing yet."""
    identity = options.identity
    return RunState(
        session_id=session.id,
        run_id=run_id,
        project_id=session.project_id,
        operator_id=options.operator,
        # Whoever they are and wherever they sit: others may read along in this session.
        identity=None if identity is None else acting_in(identity, session.ownership),
        snapshot=known.snapshot,
        spending=Spending(),
        top=options.agent,
    )


def model_alias(
    session: SessionRecord, options: RunOptions, path: str, known: CachedSession
) -> str:
    """Return the model of an agent: asked for, else the session's, else the agent's own."""
    own = known.snapshot.agents[path].agent.model.value.alias
    if path != options.agent:
        return own
    return options.model or (session.model if path == ROOT_CALLER else None) or own


async def last_options(store: Store, session: SessionRecord) -> RunOptions:
    """Return what the last run of a session was started with; nobody acts in it yet."""
    last = await store.agent_runs.last(session.id)
    if last is None:
        return RunOptions(operator=session.operator_id or OPERATOR)
    return kept_options(last)


def require_agent(known: CachedSession, path: str) -> None:
    """Refuse an agent that the project does not have. Raises KagedError: `agent_not_found`."""
    if path not in known.snapshot.agents:
        listed = ", ".join(sorted(known.snapshot.agents))
        raise KagedError(
            f"There is no agent {path[:200]!r}.",
            code="agent_not_found",
            fix=f"The agents are {listed}.",
        )
