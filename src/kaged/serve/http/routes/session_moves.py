"""Routes that move between sessions: branch off at an entry, make another one current."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from kaged.base import KagedError
from kaged.kernel.ownership import AccessAction
from kaged.serve.http.documented import errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.person_access import operator_only
from kaged.serve.http.routes.dependencies import IN_PROJECT
from kaged.serve.http.routes.session_request import SessionRequest, Sessions, Which
from kaged.serve.http.session_models import ForkIn, MoveOut
from kaged.sessions.move import SwitchOutcome
from kaged.sessions.navigation import OPERATOR
from kaged.store.session_rows import SessionRecord

router = APIRouter(
    route_class=LateRoute,
    prefix=f"{IN_PROJECT}/sessions",
    tags=["sessions"],
    responses=errors(400, 404, 409),
)


@router.post("/{session_id}/fork", status_code=201, summary="Branch off at an entry")
async def fork(context: Sessions, session_id: Which, body: ForkIn) -> MoveOut:
    """Branch off at an entry, unless that is vetoed; the session stays as it is.

    With `switch` the fork takes the session's place as the current one; this waits while a run is
    active.
    """
    context.require_record()
    source = await context.session(session_id, AccessAction.STEER)
    if body.switch and context.who.is_person:
        raise operator_only()
    if not body.switch:
        branched = await context.sessions.navigation.branch(
            source.id, body.at, asked_by=context.who.person_id or OPERATOR
        )
        return await _moved(context, source.id, await _made(context, branched))
    context.sessions.navigation.request_fork_to(source.id, body.at)
    outcome = await context.sessions.navigation.apply(source.id)
    return await _outcome(context, source.id, outcome)


@router.post("/{session_id}/switch", summary="Make it the current session")
async def switch(context: Sessions, session_id: Which) -> MoveOut:
    """Make a session the project's current one, unless that is vetoed.

    Waits while a run of the session that is current now is active.
    """
    context.require_record()
    target = await context.session(session_id)
    current = await context.sessions.service.current(context.project_id)
    if current is None or current == target.id:
        await context.sessions.navigation.enter(context.project_id, target.id)
        return await _moved(context, current, target)
    context.sessions.navigation.request_switch(current, target.id)
    outcome = await context.sessions.navigation.apply(current)
    return await _outcome(context, current, outcome)


async def _record_fork(context: SessionRequest, made: SessionRecord) -> None:
    await context.record(
        "kaged.session.forked",
        {"session_id": made.id, "parent": made.parent_session, "entry_id": made.parent_entry},
    )


async def _outcome(context: SessionRequest, source: str, outcome: SwitchOutcome | None) -> MoveOut:
    if outcome is None:
        return await _moved(context, source, None, pending=True)
    made = await _made(context, outcome)
    current = await context.sessions.service.current(context.project_id)
    if current is not None and current != made.id:
        # The fork of a session that nobody follows: the operator wants to go there all the same.
        context.sessions.navigation.request_switch(current, made.id)
        return await _outcome(context, current, await context.sessions.navigation.apply(current))
    return await _moved(context, source, made)


async def _made(context: SessionRequest, outcome: SwitchOutcome) -> SessionRecord:
    """Return the session that a move led to. Raises what stopped it, `session_move_vetoed` too."""
    if outcome.error is not None:
        raise outcome.error
    if outcome.to is None:
        reason = outcome.reason or "no reason was given"
        raise KagedError(
            f"The move was vetoed: {reason}",
            code="session_move_vetoed",
            fix="see which script or plugin vetoed it",
            reason=reason,
        )
    made = await context.sessions.service.get(context.project_id, outcome.to)
    if outcome.entry_id is not None:
        await _record_fork(context, made)
    return made


async def _moved(
    context: SessionRequest,
    source: str | None,
    made: SessionRecord | None,
    *,
    pending: bool = False,
) -> MoveOut:
    current = await context.current()
    shown = None if made is None else await context.shown(made)
    facts: Mapping[str, object] = {
        "pending": pending,
        "session": shown,
        "from": source,
        "current": current,
    }
    return MoveOut.model_validate(facts)
