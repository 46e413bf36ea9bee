"""`/api/v1/projects/{id}/undo`: what tools did to files, and taking it back."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import IN_PROJECT, ProjectId, Who
from kaged.serve.http.routes.subsystems import Undo

MAX_STEPS = 2000
MAX_ID_CHARS = 100

router = APIRouter(route_class=LateRoute, prefix=IN_PROJECT, tags=["undo"])


class StepFileOut(ApiModel):
    """One file of a step."""

    path: str
    change: Literal["created", "changed", "deleted"]
    undoable: Annotated[bool, Field(description="False: its old content was not kept.")]


class StepOut(ApiModel):
    """One tool call that changed files."""

    step: int
    time: str
    session_id: str
    run_id: str
    caller: Annotated[str, Field(description="The agent.")]
    tool_name: str
    files: list[StepFileOut]


class StepsOut(ApiModel):
    """Steps, the newest first. `total` counts those left out, too."""

    steps: list[StepOut]
    total: int


class UndoIn(RequestBody):
    """What to take back. With neither session nor run: the last step, or the last `count`."""

    session_id: Annotated[str | None, Field(max_length=MAX_ID_CHARS)] = None
    run_id: Annotated[str | None, Field(max_length=MAX_ID_CHARS)] = None
    count: Annotated[
        int | None,
        Field(ge=1, le=MAX_STEPS, description="Only so many; left out: all of the session or run."),
    ] = None


class RevertedOut(ApiModel):
    """One file that is as it was before."""

    path: str
    change: Literal["restored", "removed", "brought back"]


class UndoneOut(ApiModel):
    """What was taken back."""

    steps: list[StepOut]
    files: list[RevertedOut]


OneId = Annotated[str | None, Query(max_length=MAX_ID_CHARS)]


@router.get("/undo", **documented("List what tools did to files", 404))
async def list_steps(
    service: Undo,
    who: Who,
    project_id: ProjectId,
    session_id: OneId = None,
    run_id: OneId = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 50,
) -> StepsOut:
    """Return the steps that the caller may see, of a session or of a run, newest first."""
    found = await service.steps(
        project_id, session_id=session_id, run_id=run_id, limit=limit, who=who
    )
    return StepsOut.model_validate(found)


@router.post("/undo", **documented("Take back what tools did to files", 404, 409, 503))
async def undo(service: Undo, who: Who, project_id: ProjectId, body: UndoIn) -> UndoneOut:
    """Put files back as they were before these steps: all of them, or nothing changes."""
    found = await service.undo(
        project_id, session_id=body.session_id, run_id=body.run_id, count=body.count, who=who
    )
    return UndoneOut.model_validate(found)
