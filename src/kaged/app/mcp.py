"""`build_mcp`: agents for MCP clients and outside MCP servers for agents, put together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from fastapi import FastAPI

from kaged.audit import AuditLog
from kaged.base import Clock, Ids
from kaged.cage import CageRequest, Spawner
from kaged.config.settings import Settings
from kaged.credentials.cage_kit import CageKits
from kaged.events import EventHub
from kaged.inbox import Inbox
from kaged.kernel.credential_grants import ServerCage
from kaged.mcp.approvals import Approvals
from kaged.mcp.held_tools import HeldTools
from kaged.mcp.host import McpHost
from kaged.mcp.offers import Offers
from kaged.mcp.outside import OutsideServer
from kaged.mcp.plan import OutsideParts
from kaged.pipeline.pipeline import Pipeline
from kaged.projects.readiness import Guard, Ready
from kaged.serve.mcp.endpoint import McpEndpoint
from kaged.serve.mcp.mcp_service import APPROVALS, McpService
from kaged.serve.mcp.routes import add_mcp
from kaged.serve.mcp.served_agents import ServedAgents
from kaged.sessions.agent_tools import AgentToolService
from kaged.sessions.session_services import SessionServices
from kaged.toolbox.project import ProjectWork


def build_mcp(
    settings: Callable[[], Settings],
    agent_tools: AgentToolService,
    work: ProjectWork,
    *,
    spawner: Spawner,
    kits: CageKits,
    sessions: SessionServices,
    audit: AuditLog,
    hub: EventHub,
    inbox: Inbox,
    pipeline: Callable[[], Pipeline | None],
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
    app: FastAPI,
    ready: Ready,
    guard: Guard,
) -> McpService:
    """Put MCP together and add its routes to `app`; nothing is started yet.

    What must be undone is put on `closing`.
    """
    servers = McpHost(agent_tools.registry)
    held = HeldTools(inbox, servers)

    def on_tools(server: OutsideServer) -> None:
        servers.tools_changed(server)
        held.update(server)

    agents = ServedAgents(
        agent_tools,
        work,
        sessions,
        servers,
        Offers(pipeline, sessions.labels, clock),
        audit=audit,
        ids=ids,
        pipeline=pipeline,
    )
    parts = OutsideParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        approvals=Approvals(settings().places.data_dir / APPROVALS),
        on_tools=on_tools,
        with_credentials=lambda name, request: (
            kits.added_to(request, ServerCage(name))
            if isinstance(request, CageRequest)
            else request
        ),
    )
    endpoint = McpEndpoint(agents, clock=clock, ids=ids, hub=hub, ready=ready)
    mcp = McpService(settings, servers, held, parts, endpoint, agents, guard)
    closing.push_async_callback(mcp.close)
    add_mcp(app, mcp)
    return mcp
