"""What a run is made of before it starts: its agent, its model, and what it is started with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.base import KagedError
from kaged.kernel.ownership import acting_in
from kaged.sessions.agent_run import RunState
from kaged.sessions.run_options import OPERATOR, RunOptions, kept_options
from kaged.sessions.run_values import Spending
from kaged.store.agent_run_rows import RunCause
from kaged.tools.context import ROOT_CALLER

if TYPE_CHECKING:
    from kaged.sessions.session_cache import CachedSession
    from kaged.store import Store
    from kaged.store.session_rows import SessionRecord

GOING_ON: Final = frozenset({RunCause.ANSWER, RunCause.RESUME})
"""Causes of runs that were asked nothing new: they do what an earlier one left."""

MAX_GONE_ON: Final = 10_000
_PAGE: Final = 100


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


async def gone_on_with(store: Store, session_id: str) -> frozenset[str]:
    """Return the runs that the newest one of a session goes on with, itself included."""
    found: set[str] = set()
    while len(found) < MAX_GONE_ON:
        rows, _ = await store.agent_runs.page(session_id, _PAGE, len(found))
        for one in rows:
            found.add(one.id)
            if one.cause not in GOING_ON:
                return frozenset(found)
        if len(rows) < _PAGE:
            break
    return frozenset(found)


def require_agent(known: CachedSession, path: str) -> None:
    """Refuse an agent that the project does not have. Raises KagedError: `agent_not_found`."""
    if path not in known.snapshot.agents:
        listed = ", ".join(sorted(known.snapshot.agents))
        raise KagedError(
            f"There is no agent {path[:200]!r}.",
            code="agent_not_found",
            fix=f"The agents are {listed}.",
        )
