"""`/api/v1/projects`: load, list, look at, reload, trust and unload projects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from kaged.base import JsonObject, JsonValue
from kaged.plugins.plugin_service import PluginService
from kaged.projects.service import ProjectView
from kaged.serve.http.documented import errors
from kaged.serve.http.models import (
    LoadProjectIn,
    PageOut,
    ProblemOut,
    ProjectDetailOut,
    ProjectOut,
    TrustIn,
)
from kaged.serve.http.routes.dependencies import API_PREFIX, MAX_PAGE, ProjectId, Services, Who

router = APIRouter(prefix=API_PREFIX, tags=["projects"])


@router.post("/projects", responses=errors(), status_code=201, summary="Load a project")
async def load(services: Services, who: Who, body: LoadProjectIn) -> ProjectDetailOut:
    """Read a project's files and keep it loaded. Loading one again reads its files anew."""
    return detail(services, await services.projects.load(body.root, who))


@router.get("/projects", responses=errors(400), summary="List the loaded projects")
async def list_projects(
    services: Services,
    cursor: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> PageOut[ProjectOut]:
    """Return the loaded projects in the order of their ids, a page at a time."""
    views, next_cursor = await services.projects.page(cursor, limit)
    items = [ProjectOut.of(view, problems=_problems(view)) for view in views]
    return PageOut[ProjectOut](items=items, next_cursor=next_cursor)


@router.get("/projects/{project_id}", responses=errors(404), summary="Look at one project")
async def get(services: Services, project_id: ProjectId) -> ProjectDetailOut:
    """Return one project with its agent tree."""
    return detail(services, await services.projects.get(project_id))


@router.post(
    "/projects/{project_id}/reload", responses=errors(404), summary="Read a project's files again"
)
async def reload(services: Services, who: Who, project_id: ProjectId) -> ProjectDetailOut:
    """Read the files again. If they have errors, what was loaded before stays in force."""
    return detail(services, await services.projects.reload(project_id, who))


@router.put(
    "/projects/{project_id}/trust", responses=errors(404), summary="Trust a project, or stop"
)
async def trust(
    services: Services, who: Who, project_id: ProjectId, body: TrustIn
) -> ProjectDetailOut:
    """Allow the commands that a project's files name to be run, or take that back."""
    return detail(services, await services.projects.set_trusted(project_id, body.trusted, who))


@router.delete(
    "/projects/{project_id}", responses=errors(404), status_code=204, summary="Unload a project"
)
async def unload(services: Services, who: Who, project_id: ProjectId) -> Response:
    """Let go of a project. Its files, and whether it is trusted, stay as they are."""
    await services.projects.unload(project_id, who)
    return Response(status_code=204)


def detail(services: Services, view: ProjectView) -> ProjectDetailOut:
    """Write a project with its tree."""
    tree = view.tree
    if tree is not None and services.plugins is not None:
        tree = _with_knobs(tree, view.id, services.plugins)
    return ProjectDetailOut.of(view, problems=_problems(view), tree=tree)


def _with_knobs(tree: JsonObject, project_id: str, plugin_service: PluginService) -> JsonObject:
    """Put beside each agent's compaction the knobs of the plugins that shape it."""
    agents: list[JsonValue] = []
    for agent in _objects(tree["agents"]):
        compaction = agent["compaction"]
        assert isinstance(compaction, dict)
        plugins: list[JsonValue] = [
            *plugin_service.compaction_knobs(project_id, str(agent["path"]))
        ]
        agents.append({**agent, "compaction": {**compaction, "plugins": plugins}})
    return {**tree, "agents": agents}


def _objects(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _problems(view: ProjectView) -> list[ProblemOut]:
    return [ProblemOut.model_validate(problem.as_json()) for problem in view.problems]
