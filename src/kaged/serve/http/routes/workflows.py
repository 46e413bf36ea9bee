"""`/api/v1/projects/{project_id}/workflows` and `…/runs`: start declared jobs, watch them."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Query

from kaged.config.workflows import Invoker
from kaged.serve.http.documented import errors
from kaged.serve.http.routes.work import (
    OPERATOR,
    Cursor,
    InProject,
    Limit,
    offset_of,
    page_of,
    uploads_of,
)
from kaged.serve.http.work_models import RunIn, RunOut, RunsOut, RunStartedOut, WorkflowsOut
from kaged.store.run_rows import RunStatus
from kaged.toolbox.project.workflows import run_json

Name = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="The workflow's name.")]
RunId = Annotated[
    str, Path(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$", description="As starting it gave it.")
]


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    base = f"{prefix}/projects/{{project_id}}"
    for path, handler, method, summary, status in (
        ("/workflows", list_workflows, "GET", "List the workflows of a project", 200),
        ("/workflows/{name}/runs", start, "POST", "Start a workflow", 201),
        ("/runs", list_runs, "GET", "List the workflow runs of a project", 200),
        ("/runs/{run_id}", get, "GET", "Look at one workflow run", 200),
        ("/runs/{run_id}/cancel", cancel, "POST", "End a workflow run", 200),
    ):
        app.add_api_route(
            f"{base}{path}",
            handler,
            methods=[method],
            tags=["workflows"],
            responses=errors(400, 404, 409),
            status_code=status,
            summary=summary,
        )


async def list_workflows(
    context: InProject,
    invokable_by: Annotated[Invoker | None, Query(description="Only what these may start.")] = None,
) -> WorkflowsOut:
    """Return the workflows that the project file declares."""
    return WorkflowsOut.model_validate(
        context.work.workflows.list(context.project_id, invokable_by)
    )


async def start(context: InProject, name: Name, body: RunIn) -> RunStartedOut:
    """Start a run. Files go into the project, and the run gets their paths as inputs."""
    context.require_record()
    done = await context.work.workflows.trigger(
        context.project_id, name, body.inputs, OPERATOR, files=uploads_of(body.files)
    )
    return RunStartedOut.model_validate(await context.recorded(done))


async def list_runs(context: InProject, cursor: Cursor = None, limit: Limit = 50) -> RunsOut:
    """Return the runs, newest first, a page at a time."""
    found = await context.work.workflows.runs(context.project_id, limit, offset_of(cursor))
    return RunsOut.model_validate(page_of(found, "runs"))


async def get(context: InProject, run_id: RunId) -> RunOut:
    """Return the status of a run."""
    return RunOut.model_validate(
        (await context.work.workflows.status(context.project_id, run_id)).result
    )


async def cancel(context: InProject, run_id: RunId) -> RunOut:
    """End a run; one that has ended stays as it is."""
    context.require_record()
    run = await context.work.workflows.cancel(context.project_id, run_id)
    if run.status is RunStatus.CANCELLED:
        await context.record(
            "kaged.workflow.cancelled",
            {"run_id": run.run_id, "workflow_name": run.workflow_name},
        )
    return RunOut.model_validate(run_json(run))
