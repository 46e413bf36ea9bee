"""`/api/v1/projects/{id}/lua`: a project's scripts, their commands, and their questions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX, ProjectId, Who
from kaged.serve.http.routes.subsystems import Scripts

MAX_RAW_CHARS = 64 * 1024
MAX_NAME_CHARS = 128
MAX_SOURCE_CHARS = 1024 * 1024
MAX_FRONT_PARAMS = 16
MAX_WAIT_S = 25.0

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["lua"])


class ScriptOut(ApiModel):
    """One script."""

    name: str
    path: str
    state: str
    error: str | None = None
    pid: int | None = None
    granted: list[str]
    active: Annotated[list[str], Field(description="Granted and asked for.")]
    refused: Annotated[list[str], Field(description="Asked for and not granted.")]
    events: list[str]
    commands: list[dict[str, Any]]
    tools: Annotated[list[str], Field(description="The tools that it gives to agents.")]
    providers: Annotated[list[str], Field(description="The models that it provides.")]
    restarts: int


class ScriptsOut(ApiModel):
    """A project's scripts, in the order in which they were loaded."""

    folder: str
    scripts: list[ScriptOut]
    failed: list[dict[str, str]]
    skipped: list[str]
    commands: list[dict[str, Any]]
    problems: list[str]


class CommandIn(RequestBody):
    """A command to run."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    raw: Annotated[str, Field(max_length=MAX_RAW_CHARS, description="What follows the name.")] = ""
    interactive: Annotated[
        bool, Field(description="Whether the caller answers dialogs meanwhile.")
    ] = False


class CommandOut(ApiModel):
    """What a command gave back."""

    text: str | None
    is_error: bool
    structured: JsonValue = None
    notices: list[dict[str, str]]


class DialogsOut(ApiModel):
    """Dialogs that wait for an answer."""

    dialogs: list[dict[str, Any]]


class DialogAnswerIn(RequestBody):
    """A person's answer: a number for `select` (1 is the first), true or false, a text, or null."""

    answer: JsonValue = None


class FrontIn(RequestBody):
    """What a front end wants of a script: lines to draw, completions, or whether it took a key."""

    script: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    entry: Literal["render", "complete", "input", "key"]
    params: dict[str, JsonValue] = Field(default_factory=dict, max_length=MAX_FRONT_PARAMS)


class ScriptCheckIn(RequestBody):
    """A script to look at."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    source: Annotated[str, Field(max_length=MAX_SOURCE_CHARS)]


class CheckOut(ApiModel):
    """What a script wants and registers."""

    name: str
    ok: bool
    error: str | None = None
    capabilities: dict[str, bool]
    events: list[str]
    commands: list[dict[str, Any]]
    tools: Annotated[list[str], Field(description="The tools that it gives to agents.")]
    providers: Annotated[list[str], Field(description="The models that it provides.")]
    notices: list[str]
    used_at_load: list[str]


WaitS = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="How long to wait for one.")]


@router.get(
    "/projects/{project_id}/lua", **documented("List a project's scripts and commands", 404)
)
async def list_scripts(service: Scripts, project_id: ProjectId) -> ScriptsOut:
    """Return the scripts with their state, their grants and what they registered."""
    return ScriptsOut.model_validate(await service.describe(project_id))


@router.post("/projects/{project_id}/lua/reload", **documented("Load the scripts anew", 404))
async def reload_scripts(service: Scripts, who: Who, project_id: ProjectId) -> ScriptsOut:
    """Read folder and grants again; every script starts anew."""
    return ScriptsOut.model_validate(await service.reload(project_id, who))


@router.post("/projects/{project_id}/lua/commands", **documented("Run a command of a script", 404))
async def run_command(service: Scripts, project_id: ProjectId, body: CommandIn) -> CommandOut:
    """Run it to its end; a move that it asks for is made before the answer."""
    found = await service.command(project_id, body.name, body.raw, interactive=body.interactive)
    return CommandOut.model_validate(found)


@router.get("/projects/{project_id}/lua/dialogs", **documented("List what scripts ask people", 404))
async def list_dialogs(service: Scripts, project_id: ProjectId, wait_s: WaitS = 0) -> DialogsOut:
    """Return the open dialogs. A client that waits here counts as a person who can be asked."""
    return DialogsOut(dialogs=await service.dialogs(project_id, wait_s))


@router.post(
    "/projects/{project_id}/lua/dialogs/{dialog_id}",
    **documented("Answer a script's dialog", 404),
    status_code=204,
)
async def answer_dialog(
    service: Scripts, who: Who, project_id: ProjectId, dialog_id: str, body: DialogAnswerIn
) -> None:
    """Answer a dialog, or dismiss it with null."""
    await service.answer(project_id, dialog_id[:MAX_NAME_CHARS], body.answer, who)


@router.post(
    "/projects/{project_id}/lua/front",
    **documented("Let a script draw, complete or handle a key", 404, 409),
)
async def front(service: Scripts, project_id: ProjectId, body: FrontIn) -> dict[str, Any]:
    """Return `lines` to draw, `items` to complete with, `consumed`, or the `text` of a key."""
    return dict(await service.front(project_id, body.script, body.entry, dict(body.params)))


@router.post("/lua/check", **documented("Load a script without letting it do anything"))
async def check(service: Scripts, body: ScriptCheckIn) -> CheckOut:
    """Return whether it loads, what it asks for and what it registers."""
    return CheckOut.model_validate(await service.check(body.name, body.source))
