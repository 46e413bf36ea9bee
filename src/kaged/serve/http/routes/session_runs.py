"""Routes of what goes on in a session: say something, cancel, resume, compact; runs and calls."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from kaged.base import iso_utc
from kaged.kernel.ownership import AccessAction
from kaged.serve.http.documented import errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT, Page, Paging, paging
from kaged.serve.http.routes.session_request import Sessions, Which
from kaged.serve.http.session_models import (
    AgentRunOut,
    AgentRunsOut,
    CancelledOut,
    CompactIn,
    MessageIn,
    RunStartOut,
    ToolCallOut,
    ToolCallsOut,
)
from kaged.sessions.run_options import verified_at_ms
from kaged.store.agent_run_rows import AgentRunRecord
from kaged.store.tool_call_rows import ToolCallRecord
from kaged.tools.context import ROOT_CALLER

router = APIRouter(
    route_class=LateRoute,
    prefix=f"{IN_PROJECT}/sessions",
    tags=["sessions"],
    responses=errors(400, 404, 409),
)


@router.get("/{session_id}/runs", summary="List the runs of a session")
async def runs(context: Sessions, session_id: Which, page: Page) -> AgentRunsOut:
    """Return the runs of a session, newest first, a page at a time."""
    session = await context.session(session_id)
    found, total = await context.sessions.service.runs(
        session.id, limit=page.limit, offset=page.offset
    )
    return AgentRunsOut.model_validate(page.answer([_run_out(one) for one in found], total))


@router.get("/{session_id}/tool-calls", summary="List the tool calls of a session")
async def tool_calls(
    context: Sessions,
    session_id: Which,
    page: Annotated[Paging, Depends(paging(100))],
    run_id: Annotated[str | None, Query(max_length=120, description="Only those of a run.")] = None,
) -> ToolCallsOut:
    """Return the tool calls of a session, oldest first, a page at a time."""
    session = await context.session(session_id)
    offset = page.offset
    await context.sessions.calls.flush()
    found, total = await context.sessions.service.tool_calls(
        session.id, run_id=run_id, limit=page.limit, offset=offset
    )
    return ToolCallsOut.model_validate(page.answer([_call_out(one) for one in found], total))


@router.post("/{session_id}/message", status_code=202, summary="Say something and start a run")
async def message(context: Sessions, session_id: Which, body: MessageIn) -> RunStartOut:
    """Send a message to the agent and start a run. Its results are on the event stream."""
    context.require_record()
    session = await context.session(session_id, AccessAction.STEER)
    if body.agent != ROOT_CALLER:
        # Raises for an agent that the project has not.
        context.services.subsystems.tools.list(context.project_id, body.agent)
    if body.queue:
        active = await context.driver.queue(session.id, body.text, context.operator_id)
        if active is not None:
            return RunStartOut(run_id=active, session_id=session.id, queued=True)
    run_id = await context.driver.send(
        session.id,
        body.text,
        model=body.model,
        max_steps=body.max_steps,
        operator=context.operator_id,
        agent=body.agent,
        identity=context.identity,
    )
    return RunStartOut(run_id=run_id, session_id=session.id)


@router.post("/{session_id}/cancel", summary="End the active run")
async def cancel(context: Sessions, session_id: Which) -> CancelledOut:
    """End the active run of a session, if there is one."""
    session = await context.session(session_id, AccessAction.STEER)
    return CancelledOut(cancelled=await context.driver.cancel(session.id))


@router.post("/{session_id}/resume", status_code=202, summary="Go on where a run was cut off")
async def resume(context: Sessions, session_id: Which) -> RunStartOut:
    """Go on where a run was cut off, or with an answer that came meanwhile."""
    context.require_record()
    session = await context.session(session_id, AccessAction.STEER)
    run_id = await context.driver.resume(
        session.id, operator=context.operator_id, identity=context.identity
    )
    return RunStartOut(run_id=run_id, session_id=session.id)


@router.post("/{session_id}/compact", summary="Compact a window, or see what that would do")
async def compact(context: Sessions, session_id: Which, body: CompactIn) -> dict[str, Any]:
    """Compact an agent's window; with `dry_run` only tell what that would do."""
    session = await context.session(session_id, AccessAction.STEER)
    return await context.driver.windows.compact(
        session.id,
        body.agent,
        dry_run=body.dry_run,
        operator=context.operator_id,
        identity=context.identity,
    )


def _run_out(run: AgentRunRecord) -> AgentRunOut:
    ended_at = None if run.ended_at_ms is None else iso_utc(run.ended_at_ms)
    verified = verified_at_ms(run)
    return AgentRunOut.of(
        run,
        verified_at=None if verified is None else iso_utc(verified),
        started_at=iso_utc(run.started_at_ms),
        ended_at=ended_at,
    )


def _call_out(call: ToolCallRecord) -> ToolCallOut:
    ended_at = None if call.finished_at_ms is None else iso_utc(call.finished_at_ms)
    return ToolCallOut.of(call, started_at=iso_utc(call.started_at_ms), finished_at=ended_at)
