"""`/api/v1/projects/{project_id}/workflows` and `…/runs`: start declared jobs, watch them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from kaged.config.workflows import Invoker
from kaged.serve.http.documented import errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT, Page
from kaged.serve.http.routes.work import InProject, page_of, uploads_of
from kaged.serve.http.work_models import RunIn, RunOut, RunsOut, RunStartedOut, WorkflowsOut
from kaged.store.run_rows import RunStatus
from kaged.toolbox.project.workflows import run_json

router = APIRouter(
    route_class=LateRoute,
    prefix=IN_PROJECT,
    tags=["workflows"],
    responses=errors(400, 404, 409),
)

Name = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="The workflow's name.")]
RunId = Annotated[
    str, Path(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$", description="As starting it gave it.")
]


@router.get("/workflows", summary="List the workflows of a project")
async def list_workflows(
    context: InProject,
    invokable_by: Annotated[Invoker | None, Query(description="Only what these may start.")] = None,
) -> WorkflowsOut:
    """Return the workflows that the project file declares."""
    return WorkflowsOut.model_validate(
        context.work.workflows.list(context.project_id, invokable_by, context.who)
    )


@router.post("/workflows/{name}/runs", status_code=201, summary="Start a workflow")
async def start(context: InProject, name: Name, body: RunIn) -> RunStartedOut:
    """Start a run. Files go into the project, and the run gets their paths as inputs."""
    context.require_record()
    done = await context.work.workflows.trigger(
        context.project_id,
        name,
        body.inputs,
        context.author,
        files=uploads_of(body.files),
        who=context.who,
    )
    return RunStartedOut.model_validate(await context.recorded(done))


@router.get("/runs", summary="List the workflow runs of a project")
async def list_runs(context: InProject, page: Page) -> RunsOut:
    """Return the runs, newest first, a page at a time."""
    found = await context.work.workflows.runs(
        context.project_id, page.limit, page.offset, context.who
    )
    return RunsOut.model_validate(page_of(page, found, "runs"))


@router.get("/runs/{run_id}", summary="Look at one workflow run")
async def get(context: InProject, run_id: RunId) -> RunOut:
    """Return the status of a run."""
    return RunOut.model_validate(
        (await context.work.workflows.status(context.project_id, run_id, context.who)).result
    )


@router.post("/runs/{run_id}/cancel", summary="End a workflow run")
async def cancel(context: InProject, run_id: RunId) -> RunOut:
    """End a run; one that has ended stays as it is."""
    context.require_record()
    run = await context.work.workflows.cancel(context.project_id, run_id, context.who)
    if run.status is RunStatus.CANCELLED:
        await context.record(
            "kaged.workflow.cancelled",
            {"run_id": run.run_id, "workflow_name": run.workflow_name},
        )
    return RunOut.model_validate(run_json(run))
