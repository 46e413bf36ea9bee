"""`/api/v1/projects/{id}/tools`: the tools an agent has, calls as that agent, why or why not."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import Depends, FastAPI, Query
from pydantic import Field

from kaged.base import KagedError
from kaged.serve.http.documented import errors
from kaged.serve.http.models import Model
from kaged.serve.http.routes.projects import ProjectId
from kaged.serve.http.services import Asker, HttpServices, ToolDeskPort, asker_of, services_of

MAX_AGENT_CHARS = 1000
MAX_TOOL_CHARS = 200
AGENT_PATTERN = r"^[a-z][a-z0-9_.-]*$"


class ToolsAbsent(KagedError):
    """The application was built without a tool desk."""

    code: ClassVar[str] = "tools_absent"


class ToolCallIn(Model):
    """A tool call as one of the project's agents."""

    agent: Annotated[
        str,
        Field(max_length=MAX_AGENT_CHARS, pattern=AGENT_PATTERN, description="The agent's path."),
    ] = "primary"
    tool: Annotated[
        str, Field(min_length=1, max_length=MAX_TOOL_CHARS, description="The tool's name.")
    ]
    params: Annotated[
        dict[str, Any], Field(default_factory=dict, description="The tool's arguments.")
    ]


class ToolResultOut(Model):
    """What a tool answered."""

    request_id: Annotated[str, Field(description="The call's id in the audit trail.")]
    result: Any


class ToolOut(Model):
    """One tool of an agent."""

    name: str
    namespace: str
    description: str
    parameters: Annotated[dict[str, Any], Field(description="JSON Schema of its arguments.")]
    source: str
    plugin_name: str | None
    principal_scope: str | None
    requires: Annotated[
        list[dict[str, Any]], Field(description="What it needs of the caller's cage.")
    ]
    tool_version: str
    schema_hash: Annotated[str, Field(description="Changes when the arguments change.")]
    why: Annotated[str, Field(description="The rule that gives the agent this tool.")]
    off_actions: Annotated[list[str], Field(description="Its actions that are switched off.")]


class RuleWarningOut(Model):
    """A key of the agent's `tools:` map that matches nothing."""

    pattern: str
    line: int
    message: str


class ToolsOut(Model):
    """The tools of one agent."""

    agent: str
    cage: Annotated[Any, Field(description="What the agent's cage grants, or `uncaged`.")]
    tools: list[ToolOut]
    warnings: list[RuleWarningOut]


class GateOut(Model):
    """One step of a call. `passed` null: only the call itself would show."""

    step: str
    passed: bool | None
    rule: str
    detail: str
    remedy: str


class ExplanationOut(Model):
    """What would happen to a call."""

    tool: str
    agent: str
    allowed: bool
    gates: list[GateOut]
    cage: Any
    changes: Annotated[bool, Field(description="Whether the call would change something.")]
    error: Annotated[
        dict[str, Any] | None, Field(description="The error that the agent would get.")
    ]


Who = Annotated[Asker, Depends(asker_of)]


async def _desk(services: Annotated[HttpServices, Depends(services_of)]) -> ToolDeskPort:
    if services.tools is None:
        raise ToolsAbsent("This daemon runs without a tool desk.")
    return services.tools


Desk = Annotated[ToolDeskPort, Depends(_desk)]


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/projects/{{project_id}}/tools",
        list_tools,
        methods=["GET"],
        tags=["tools"],
        responses=errors(404),
        summary="List the tools of an agent",
    )
    app.add_api_route(
        f"{prefix}/projects/{{project_id}}/tools/call",
        call,
        methods=["POST"],
        tags=["tools"],
        responses=errors(400, 403, 404, 409, 502),
        summary="Call a tool as an agent",
    )
    app.add_api_route(
        f"{prefix}/projects/{{project_id}}/tools/explain",
        explain,
        methods=["POST"],
        tags=["tools"],
        responses=errors(404),
        summary="Say whether a call would be allowed",
    )


async def list_tools(
    desk: Desk,
    project_id: ProjectId,
    agent: Annotated[
        str, Query(max_length=MAX_AGENT_CHARS, pattern=AGENT_PATTERN, description="Its path.")
    ] = "primary",
) -> ToolsOut:
    """Give the tools that an agent has now, each with the rule that gives it to the agent."""
    return ToolsOut.model_validate(desk.list(project_id, agent))


async def call(desk: Desk, who: Who, project_id: ProjectId, body: ToolCallIn) -> ToolResultOut:
    """Make a call with the rights of the agent: its tools, its cage, its policies."""
    found = await desk.call(project_id, body.agent, body.tool, body.params, who)
    return ToolResultOut.model_validate(found)


async def explain(desk: Desk, who: Who, project_id: ProjectId, body: ToolCallIn) -> ExplanationOut:
    """Take a call through every gate without running it."""
    found = desk.explain(project_id, body.agent, body.tool, body.params, who)
    return ExplanationOut.model_validate(found)


__all__ = ["add_routes"]
