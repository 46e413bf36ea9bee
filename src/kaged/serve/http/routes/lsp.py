"""`/api/v1/projects/{id}/lsp`: the language servers of a project."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.dependencies import IN_PROJECT, ProjectId
from kaged.serve.http.routes.subsystems import LanguageServers

router = APIRouter(route_class=LateRoute, prefix=IN_PROJECT, tags=["lsp"])


class LanguageServerOut(ApiModel):
    """One language's server."""

    language: str
    command: list[str]
    state: Literal["not_started", "starting", "running", "stopped", "failed"]
    pid: int | None
    restart_count: int
    open_files: int
    idle_seconds: float
    installed: Annotated[bool, Field(description="Whether its program was found.")]
    install: Annotated[str, Field(description="How to get it.")]
    configured_by: Annotated[
        Literal["project", "config.toml", "built in"], Field(description="Who chose the command.")
    ]


class LanguageServersOut(ApiModel):
    """The servers of a project, by language."""

    servers: list[LanguageServerOut]


@router.get("/lsp", **documented("List the language servers of a project", 404))
async def list_servers(service: LanguageServers, project_id: ProjectId) -> LanguageServersOut:
    """Return what is known of each language's server; none is started."""
    return LanguageServersOut.model_validate(service.servers(project_id))
