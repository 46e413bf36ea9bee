"""`/api/v1/projects/{id}/tools`: the tools an agent has, calls as that agent, why or why not."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import (
    AGENT_PATTERN,
    API_PREFIX,
    MAX_AGENT_CHARS,
    ProjectId,
    Who,
)
from kaged.serve.http.routes.subsystems import Tools

MAX_TOOL_CHARS = 200

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["tools"])


class ToolCallIn(RequestBody):
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
    schema_hash: Annotated[
        str | None,
        Field(
            max_length=64,
            pattern=r"^[0-9a-f]+$",
            description="Refuse the call when the tool has other parameters by now.",
        ),
    ] = None


class ToolResultOut(ApiModel):
    """What a tool answered."""

    request_id: Annotated[str, Field(description="The call's id in the audit trail.")]
    result: Any


class ToolOut(ApiModel):
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


class RuleWarningOut(ApiModel):
    """A key of the agent's `tools:` map that matches nothing."""

    pattern: str
    line: int
    message: str


class ToolsOut(ApiModel):
    """The tools of one agent."""

    agent: str
    cage: Annotated[Any, Field(description="What the agent's cage grants, or `uncaged`.")]
    dry_run: Annotated[
        bool, Field(description="Whether changes are only reported, not carried out.")
    ]
    tools: list[ToolOut]
    warnings: list[RuleWarningOut]


class GateOut(ApiModel):
    """One step of a call. `passed` null: only the call itself would show."""

    step: str
    passed: bool | None
    rule: str
    detail: str
    remedy: str


class ExplanationOut(ApiModel):
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


class ToolSeriesOut(ApiModel):
    """The calls of one tool by one agent of one project."""

    project_id: str
    agent: str
    tool: Annotated[str, Field(description="`(unknown)` stands for every name that is no tool.")]
    calls: int
    failed: Annotated[int, Field(description="Calls that ended with an error, refusals apart.")]
    denied: Annotated[int, Field(description="Calls that were refused.")]
    cancelled: int
    error_rate: Annotated[float, Field(description="The part of the calls without a result.")]
    errors: Annotated[dict[str, int], Field(description="Calls without a result, by code.")]
    mean_ms: float
    p50_ms: Annotated[
        float | None, Field(description="Half of the calls took no longer; null beyond 120 s.")
    ]
    p95_ms: float | None
    latency_ms: Annotated[
        dict[str, int], Field(description="How many calls took up to so many milliseconds.")
    ]
    latency_sum_ms: float


class ToolStatsOut(ApiModel):
    """What tool calls came to since the daemon started, busiest first."""

    since: str
    series: list[ToolSeriesOut]


@router.get("/tools/stats", **documented("Count tool calls by tool and agent"))
async def stats(
    service: Tools,
    project_id: Annotated[
        str | None, Query(max_length=64, pattern=r"^[a-zA-Z0-9_-]+$", description="Only this one.")
    ] = None,
    agent: Annotated[
        str | None,
        Query(max_length=MAX_AGENT_CHARS, pattern=AGENT_PATTERN, description="Only this path."),
    ] = None,
    tool: Annotated[
        str | None, Query(min_length=1, max_length=MAX_TOOL_CHARS, description="Only this name.")
    ] = None,
) -> ToolStatsOut:
    """Return counts, errors and times of tool calls per tool and agent, since the start."""
    return ToolStatsOut.model_validate(service.stats(project_id, agent, tool))


@router.get("/projects/{project_id}/tools", **documented("List the tools of an agent", 404))
async def list_tools(
    service: Tools,
    project_id: ProjectId,
    agent: Annotated[
        str, Query(max_length=MAX_AGENT_CHARS, pattern=AGENT_PATTERN, description="Its path.")
    ] = "primary",
) -> ToolsOut:
    """Return the tools that an agent has now, each with the rule that gives it to the agent."""
    return ToolsOut.model_validate(service.list(project_id, agent))


@router.post(
    "/projects/{project_id}/tools/call",
    **documented("Call a tool as an agent", 400, 403, 404, 409, 502),
)
async def call(service: Tools, who: Who, project_id: ProjectId, body: ToolCallIn) -> ToolResultOut:
    """Make a call with the rights of the agent: its tools, its cage, its policies."""
    found = await service.call(
        project_id, body.agent, body.tool, body.params, who, schema_hash=body.schema_hash
    )
    return ToolResultOut.model_validate(found)


@router.post(
    "/projects/{project_id}/tools/explain",
    **documented("Explain whether a call would be allowed", 404),
)
async def explain(
    service: Tools, who: Who, project_id: ProjectId, body: ToolCallIn
) -> ExplanationOut:
    """Take a call through every gate without running it."""
    found = await service.explain(project_id, body.agent, body.tool, body.params, who)
    return ExplanationOut.model_validate(found)
