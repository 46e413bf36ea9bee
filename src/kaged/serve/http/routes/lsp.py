"""`/api/v1/projects/{id}/lsp`: the language servers of a project."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from fastapi import Depends, FastAPI
from pydantic import Field

from kaged.base import KagedError
from kaged.serve.http.documented import errors
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.projects import ProjectId
from kaged.serve.http.services import HttpServices, services_of
from kaged.toolset.language_services import LanguageServices


class LanguageServicesAbsent(KagedError):
    """The application was built without language servers."""

    code: ClassVar[str] = "bridges_absent"


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


async def _bridges(services: Annotated[HttpServices, Depends(services_of)]) -> LanguageServices:
    if services.code is None:
        raise LanguageServicesAbsent("This daemon runs without language servers.")
    return services.code


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/projects/{{project_id}}/lsp",
        list_servers,
        methods=["GET"],
        tags=["lsp"],
        responses=errors(404),
        summary="List the language servers of a project",
    )


async def list_servers(
    bridges: Annotated[LanguageServices, Depends(_bridges)], project_id: ProjectId
) -> LanguageServersOut:
    """Return what is known of each language's server; none is started."""
    return LanguageServersOut.model_validate(bridges.servers(project_id))
