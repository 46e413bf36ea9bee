"""`/api/v1/projects/{id}/skills`: the skills that agents of a project can load and run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, ProblemOut, RequestBody
from kaged.serve.http.routes.dependencies import IN_PROJECT, ProjectId, Who
from kaged.serve.http.routes.subsystems import Skills

router = APIRouter(route_class=LateRoute, prefix=IN_PROJECT, tags=["skills"])

SkillName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class SkillFileOut(ApiModel):
    """One file of a skill."""

    path: str
    size: int
    executable: bool


class SkillOut(ApiModel):
    """A skill, or a folder that holds none and why."""

    name: str
    source: Literal["operator", "project"]
    state: Annotated[
        Literal["ready", "waiting", "off", "refused"],
        Field(description="`waiting`: for the operator's agreement; `off`: by config.toml."),
    ]
    description: str
    folder: str
    digest: str
    sensitive: bool
    chat_types: list[str]
    capabilities: list[str]
    files: list[SkillFileOut]
    front_matter: dict[str, Any]
    problems: list[ProblemOut]


class SkillsOut(ApiModel):
    """All skills of a project and of the operator. A restricted project's own are left out."""

    skills: list[SkillOut]
    restricted: bool


class SkillDetailOut(SkillOut):
    """A skill with its instructions, and what it asks for in words."""

    instructions: str
    ask: list[str]


class AgreeIn(RequestBody):
    """What was shown to whoever agrees."""

    digest: Annotated[
        str | None, Field(max_length=64, description="Agree only if this is its digest.")
    ] = None


@router.get("/skills", **documented("List the skills of a project", 404))
async def list_skills(service: Skills, project_id: ProjectId) -> SkillsOut:
    """Return the skills as their files are now, refused ones with the line and the reason."""
    return SkillsOut.model_validate(await service.list(project_id))


@router.get("/skills/{name}", **documented("Look at one skill", 404))
async def show_skill(service: Skills, project_id: ProjectId, name: SkillName) -> SkillDetailOut:
    """Return one skill with its instructions."""
    return SkillDetailOut.model_validate(await service.show(project_id, name))


@router.post("/skills/{name}/agree", **documented("Agree to a skill", 404, 409))
async def agree_to_skill(
    service: Skills, who: Who, project_id: ProjectId, name: SkillName, body: AgreeIn
) -> SkillOut:
    """Let a skill use the account capabilities that it declares, as its files are now."""
    return SkillOut.model_validate(await service.agree(project_id, name, body.digest, who))
