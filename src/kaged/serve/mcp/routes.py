"""`/api/v1/projects/{id}/mcp`: an agent for MCP clients; `/api/v1/mcp/servers`: outside servers."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Path
from pydantic import Field
from starlette.requests import HTTPConnection, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from kaged.base import KagedError
from kaged.kernel.identity import Actor, ActorKey
from kaged.serve.http.connection import accept
from kaged.serve.http.documented import documented
from kaged.serve.http.errors import InvalidHttpRequest, error_response, request_id_of
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.dependencies import (
    AGENT_PATTERN,
    API_PREFIX,
    IN_PROJECT,
    MAX_AGENT_CHARS,
    PROJECT_ID,
    Who,
)
from kaged.serve.http.services import actor_of
from kaged.serve.mcp.mcp_service import McpService

ROOT: Final = "primary"

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["mcp"])

_PROJECT: Final = re.compile(PROJECT_ID)
_AGENT: Final = re.compile(AGENT_PATTERN)


class McpToolOut(ApiModel):
    """One tool of an outside server."""

    name: Annotated[str, Field(description="As agents call it.")]
    original: Annotated[str, Field(description="As the server calls it.")]
    offered: Annotated[bool, Field(description="Whether agents can be given it.")]
    why: Annotated[str, Field(description="Why not, when it is not offered.")]
    digest: Annotated[str, Field(description="Changes when its text or its arguments do.")]


class McpServerOut(ApiModel):
    """One outside server."""

    name: str
    state: str
    note: Annotated[str, Field(description="Why it is not running, or what is odd about it.")]
    command: list[str]
    pid: int | None
    cage_id: str | None
    failures: int
    restarts: int
    calls: int
    errors: int
    protocol_version: str
    claims: Annotated[str, Field(description="What the server calls itself.")]
    agents: list[str]
    projects: list[str]
    pending: Annotated[int, Field(description="Changed tools that wait for approval.")]
    tools: list[McpToolOut]


class McpServersOut(ApiModel):
    """The outside servers, by name."""

    servers: list[McpServerOut]


class McpLogsOut(ApiModel):
    """The last lines of a server's standard error."""

    name: str
    lines: list[str]


async def _service(connection: HTTPConnection) -> McpService:
    service: McpService = connection.app.state.mcp
    return service


Outside = Annotated[McpService, Depends(_service)]
ServerName = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="As config.toml names it.")
]


def add_mcp(app: FastAPI, service: McpService) -> None:
    """Add the routes of MCP to the application, and what they lead to."""
    app.state.mcp = service
    app.router.routes.extend(router.routes)
    app.openapi_schema = None  # drawn anew, with everything in it


class _StreamableHttp:
    """The streamable HTTP transport of MCP; who may come in was decided before."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            service = await _service(request)
            project_id, agent = _place(request)
            request.state.mcp_agent = agent
            sessions = await service.endpoint.http(project_id, agent)
            actor: Actor = request.state.actor
            scope["user"] = _principal(actor.key)
            place = sessions.enter(request, actor)
        except KagedError as error:
            await error_response(error, request_id_of(request))(scope, receive, send)
            return
        await sessions.serve(place, scope, receive, send)


def _principal(key: ActorKey) -> Any:
    """Return the caller for the SDK, which allows a session only to the one who opened it."""
    from mcp.server.auth.middleware.bearer_auth import (  # noqa: PLC0415 - loaded with the first client
        AuthenticatedUser,
    )
    from mcp.server.auth.provider import AccessToken  # noqa: PLC0415 - as above

    name = json.dumps(key)
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[], subject=name))


# No API route: requests and answers are MCP's own, and the SDK reads and writes them.
router.routes.append(
    Route(
        f"{IN_PROJECT}/mcp",
        endpoint=_StreamableHttp(),
        methods=["GET", "POST", "DELETE"],
        include_in_schema=False,
    )
)


@router.websocket("/projects/{project_id}/mcp/stream")
async def stream(websocket: WebSocket) -> None:
    """Serve one client of `kaged mcp` until it leaves."""
    try:
        service = await _service(websocket)
        server = await service.endpoint.served(*_place(websocket))
        who = await actor_of(websocket)
        cut_off = asyncio.Event()
        client_session = service.endpoint.begin(server, who, cut_off)
    except KagedError as error:
        answer = error_response(error, request_id_of(websocket))
        await answer(websocket.scope, websocket.receive, websocket.send)
        return
    try:
        module: Any = importlib.import_module("kaged.serve.mcp.stream")  # the SDK is loaded by now
        if await accept(websocket):
            await module.serve_stream(websocket, server, client_session, cut_off)
    finally:
        service.endpoint.end(server, client_session, cut_off)


@router.get("/mcp/servers", **documented("List the outside MCP servers"))
async def list_servers(outside: Outside) -> McpServersOut:
    """Return what is known of each server; none is started."""
    return McpServersOut.model_validate({"servers": outside.servers()})


@router.get("/mcp/servers/{name}", **documented("Describe an outside MCP server", 404))
async def get_server(outside: Outside, name: ServerName) -> McpServerOut:
    """Return one server with its tools."""
    return McpServerOut.model_validate(outside.server(name))


@router.post(
    "/mcp/servers/{name}/restart", **documented("Stop and start an outside MCP server", 404, 409)
)
async def restart_server(outside: Outside, who: Who, name: ServerName) -> McpServerOut:
    """Stop and start a server, also one that was given up."""
    return McpServerOut.model_validate(await outside.restart(name, who))


@router.post(
    "/mcp/servers/{name}/approve",
    **documented("Agree to an outside MCP server's tools as they are now", 404, 409),
)
async def approve_server(outside: Outside, who: Who, name: ServerName) -> McpServerOut:
    """Offer changed and new tools of a server from now on."""
    return McpServerOut.model_validate(await outside.approve(name, who))


@router.get(
    "/mcp/servers/{name}/logs",
    **documented("Show the last lines that an outside MCP server wrote", 404),
)
async def logs(outside: Outside, name: ServerName) -> McpLogsOut:
    """Return the last lines of a server's standard error."""
    return McpLogsOut.model_validate({"name": name, "lines": list(outside.logs(name))})


def _place(connection: HTTPConnection) -> tuple[str, str]:
    """Read which agent of which project is asked for. Raises InvalidHttpRequest."""
    project_id = str(connection.path_params["project_id"])
    agent = connection.query_params.get("agent", ROOT)
    if not _PROJECT.fullmatch(project_id):
        raise InvalidHttpRequest("The project is named by the id that `POST /projects` returned.")
    if len(agent) > MAX_AGENT_CHARS or not _AGENT.fullmatch(agent):
        raise InvalidHttpRequest("agent is an agent's path, such as primary.subagents.coder.")
    return project_id, agent
