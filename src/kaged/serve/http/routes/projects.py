"""`/api/v1/projects`: load, list, look at, reload, trust and unload projects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from kaged.base import JsonObject, JsonValue
from kaged.plugins.plugin_service import PluginService
from kaged.projects.agreement import Agreement
from kaged.projects.loaded import ProjectView
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import (
    LoadProjectIn,
    PageOut,
    ProblemOut,
    ProjectDetailOut,
    ProjectOut,
    ReloadProjectIn,
    TrustIn,
)
from kaged.serve.http.routes.dependencies import API_PREFIX, MAX_PAGE, ProjectId, Services, Who

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["projects"])


@router.post("/projects", **documented("Load a project", 409), status_code=201)
async def load(services: Services, who: Who, body: LoadProjectIn) -> ProjectDetailOut:
    """Read a project's files and keep it loaded. Loading one again reads its files anew.

    What its files ask for is in force only as far as the operator has agreed to it; otherwise every
    agent is restricted to reading, and `ask` says what it wants.
    """
    return detail(
        services, await services.subsystems.projects.load(body.root, who, _agreement(body))
    )


@router.get("/projects", **documented("List the loaded projects", 400))
async def list_projects(
    services: Services,
    who: Who,
    cursor: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> PageOut[ProjectOut]:
    """Return the loaded projects that the caller may use, by their ids, a page at a time."""
    views, next_cursor = await services.subsystems.projects.page(cursor, limit, who)
    items = [
        ProjectOut.of(view, problems=_problems(view))
        for view in (one.seen_by(who) for one in views)
    ]
    return PageOut[ProjectOut](items=items, next_cursor=next_cursor)


@router.get("/projects/{project_id}", **documented("Look at one project", 404))
async def get(services: Services, who: Who, project_id: ProjectId) -> ProjectDetailOut:
    """Return one project with its agent tree.

    People see the agents, and neither where the project lies nor what its files ask for.
    """
    view = (await services.subsystems.projects.get(project_id)).seen_by(who)
    if who.is_person:
        return ProjectDetailOut.of(view, problems=_problems(view))
    return detail(services, view)


@router.post(
    "/projects/{project_id}/reload",
    **documented("Read a project's files again", 404, 409),
)
async def reload(
    services: Services, who: Who, project_id: ProjectId, body: ReloadProjectIn | None = None
) -> ProjectDetailOut:
    """Read the files again. If they have errors, what was loaded before stays in force.

    If they ask for more than the operator has agreed to, the project is restricted to reading.
    """
    agreement = None if body is None else _agreement(body)
    return detail(services, await services.subsystems.projects.reload(project_id, who, agreement))


@router.put("/projects/{project_id}/trust", **documented("Trust a project, or stop", 404, 409))
async def trust(
    services: Services, who: Who, project_id: ProjectId, body: TrustIn
) -> ProjectDetailOut:
    """Agree to what a project's files ask for, or take that back, which ends what runs in it."""
    if not body.trusted:
        return detail(services, await services.subsystems.projects.withdraw(project_id, who))
    return detail(services, await services.subsystems.projects.agree(project_id, who, body.digest))


@router.delete("/projects/{project_id}", **documented("Unload a project", 404), status_code=204)
async def unload(services: Services, who: Who, project_id: ProjectId) -> Response:
    """Let go of a project. Its files, and whether it is trusted, stay as they are."""
    await services.subsystems.projects.unload(project_id, who)
    return Response(status_code=204)


def _agreement(body: ReloadProjectIn) -> Agreement | None:
    return Agreement(body.digest) if body.trust or body.digest is not None else None


def detail(services: Services, view: ProjectView) -> ProjectDetailOut:
    """Write a project with its tree."""
    tree = view.tree
    if tree is not None:
        tree = _with_knobs(tree, view.id, services.subsystems.plugins)
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
