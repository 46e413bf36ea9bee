"""`/api/v1/projects/{project_id}/sessions/{session_id}/grants`: what people let agents do there."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field

from kaged.kernel.access import AccessScope
from kaged.kernel.ownership import AccessAction
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel
from kaged.serve.http.person_access import operator_only
from kaged.serve.http.routes.dependencies import IN_PROJECT
from kaged.serve.http.routes.session_request import Sessions, Which

router = APIRouter(route_class=LateRoute, prefix=IN_PROJECT, tags=["sessions"])

GrantId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_]{1,64}$", description="As the list of grants has it.")
]


class AccessGrantOut(ApiModel):
    """One grant that a person gave when a call was refused."""

    id: str
    session_id: str
    run_id: Annotated[str | None, Field(description="The run with which it ends, if it does.")]
    agent: str
    owner: Annotated[str | None, Field(description="For whose calls; null: the operator's.")]
    scope: Literal[AccessScope.RUN, AccessScope.SESSION]
    grant: str
    words: Annotated[str, Field(description="What it allows.")]
    warning: str
    granted_by: str
    granted_at: str


class AccessGrantsOut(ApiModel):
    """The grants that are in force, newest first."""

    items: list[AccessGrantOut]


class TakenBackOut(ApiModel):
    """Whether there was such a grant. Afterwards there is none."""

    taken_back: bool


@router.get("/grants", **documented("List what people let agents do", 404, 409))
async def of_project(context: Sessions) -> AccessGrantsOut:
    """Return the grants of all sessions of a project that are in force; for the operator."""
    if context.who.is_person:
        raise operator_only()
    access = context.services.subsystems.access
    return _out([one.as_json() for one in await access.grants.of_project(context.project_id)])


@router.get("/sessions/{session_id}/grants", **documented("List what a session allows", 404, 409))
async def of_session(context: Sessions, session_id: Which) -> AccessGrantsOut:
    """Return what people let agents do in a session when calls were refused."""
    session = await context.session(session_id, AccessAction.MANAGE)
    found = await context.services.subsystems.access.grants.of_session(
        context.project_id, session.id
    )
    return _out([one.as_json() for one in found])


@router.delete(
    "/sessions/{session_id}/grants/{grant_id}", **documented("Take a grant back", 404, 409, 503)
)
async def take_back(context: Sessions, session_id: Which, grant_id: GrantId) -> TakenBackOut:
    """Take back what was granted. Calls that begin from now on do not have it.

    A command that runs goes on in its cage; connections that it was asked about are decided anew.
    """
    session = await context.session(session_id, AccessAction.MANAGE)
    context.require_record()
    access = context.services.subsystems.access
    done = await access.take_back(context.project_id, session.id, grant_id, context.who)
    return TakenBackOut(taken_back=done)


def _out(items: list[object]) -> AccessGrantsOut:
    return AccessGrantsOut.model_validate({"items": items})
