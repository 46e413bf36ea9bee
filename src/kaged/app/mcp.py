"""`build_mcp`: agents for MCP clients and outside MCP servers for agents, put together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from fastapi import FastAPI

from kaged.audit import AuditLog
from kaged.base import Clock, Ids
from kaged.cage import Spawner
from kaged.config.settings import Settings
from kaged.events import EventHub
from kaged.mcp.approvals import Approvals
from kaged.mcp.host import McpHost
from kaged.mcp.offers import Offers
from kaged.mcp.plan import OutsideParts
from kaged.pipeline.pipeline import Pipeline
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
    sessions: SessionServices,
    audit: AuditLog,
    hub: EventHub,
    pipeline: Callable[[], Pipeline | None],
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
    app: FastAPI,
) -> McpService:
    """Put MCP together and add its routes to `app`; nothing is started yet.

    What must be undone is put on `closing`.
    """
    servers = McpHost(agent_tools.registry)
    agents = ServedAgents(
        agent_tools,
        work,
        sessions,
        servers,
        Offers(pipeline, clock),
        audit=audit,
        ids=ids,
        pipeline=pipeline,
    )
    parts = OutsideParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        approvals=Approvals(settings().places.data_dir / APPROVALS),
        on_tools=servers.tools_changed,
    )
    endpoint = McpEndpoint(agents, clock=clock, ids=ids, hub=hub)
    mcp = McpService(settings, servers, parts, endpoint, agents)
    closing.push_async_callback(mcp.close)
    add_mcp(app, mcp)
    return mcp
