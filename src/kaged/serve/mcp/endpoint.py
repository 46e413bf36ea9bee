"""`McpEndpoint`: where MCP clients come in, by a stream or over HTTP; keeps sessions apart.

One server per served agent, made when its first client comes; one session per client. Nothing of
the SDK is loaded before that.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from dataclasses import KW_ONLY, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from kaged.base import Clock, Ids, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor, ActorKey
from kaged.kernel.shares import Shares
from kaged.projects.readiness import Ready
from kaged.serve.mcp.client_session import McpClientSession
from kaged.serve.mcp.http_sessions import SESSION_HEADER, HttpSessions, TooManyMcpClients

if TYPE_CHECKING:
    from starlette.requests import Request

    from kaged.events import EventHub
    from kaged.serve.mcp.served_agents import ServedAgents
    from kaged.serve.mcp.server import AgentServer

MAX_SERVED: Final = 256
MAX_CLIENT_SESSIONS: Final = 256
MAX_HTTP_SESSIONS: Final = 64
IDLE_S: Final = 30 * 60.0
MAX_BODY_BYTES: Final = 1024 * 1024


class StreamKey(NamedTuple):
    """By what a client on a stream of its own is found again."""

    ulid: str


class HttpKey(NamedTuple):
    """By what a client over HTTP is found again: its session, and whose requests they are."""

    project_id: str
    agent: str
    session: str
    actor: ActorKey


ClientKey: TypeAlias = StreamKey | HttpKey


@dataclass(slots=True)
class _Served:
    """A served agent: its server, and its HTTP sessions once there is one."""

    server: AgentServer
    http: HttpSessions | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    streams: set[asyncio.Event] = field(default_factory=set[asyncio.Event])


@dataclass(eq=False)
class McpEndpoint:
    """Lets clients in and keeps track of them."""

    agents: ServedAgents
    _: KW_ONLY
    clock: Clock
    ids: Ids
    hub: EventHub
    ready: Ready

    def __post_init__(self) -> None:
        self._served: dict[tuple[str, str], _Served] = {}
        self._client_sessions: dict[ClientKey, tuple[_Served, McpClientSession]] = {}
        self._shares = Shares(MAX_CLIENT_SESSIONS, what="MCP clients", error=TooManyMcpClients)
        self._tasks = Tasks("mcp endpoint")
        self._making = asyncio.Lock()
        self._watching = False

    async def served(self, project_id: str, agent: str) -> AgentServer:
        """Return the server of an agent.

        Raises:
            KagedError: `project_not_found`, `agent_not_found`; there is no such agent.
            KagedError: `mcp_too_many_clients`; too many agents are served.
            ProjectOpening: what guards the project is not loaded.
        """
        return (await self._serve(project_id, agent)).server

    async def http(self, project_id: str, agent: str) -> HttpSessions:
        """Return what serves an agent over HTTP. Raises as `served`."""
        served = await self._serve(project_id, agent)
        async with self._making:
            if served.http is None:
                served.http = await self._run_http(served)
        return served.http

    def begin(self, server: AgentServer, actor: Actor, cut_off: asyncio.Event) -> McpClientSession:
        """Let a client in that holds its stream for as long as it stays, or until `cut_off`.

        Raises `mcp_too_many_clients`.
        """
        served = self._served[server.port.project_id, server.port.agent]
        client_session = self._client_session(StreamKey(self.ids.ulid()), served, actor, "stdio")
        served.streams.add(cut_off)
        return client_session

    def end(
        self, server: AgentServer, client_session: McpClientSession, cut_off: asyncio.Event
    ) -> None:
        """Take note that the client of a stream has left."""
        served = self._served.get((server.port.project_id, server.port.agent))
        if served is not None:
            served.streams.discard(cut_off)
        self._leave(StreamKey(client_session.id.partition(":")[2]))

    async def close(self) -> None:
        """Cut everybody off."""
        for place in list(self._served):
            await self._drop(place)
        await self._tasks.close()

    def project_unloaded(self, project_id: str) -> None:
        """Cut off the clients of a project that is gone."""
        for place in [one for one in self._served if one[0] == project_id]:
            self._tasks.start(self._drop(place), "project gone")

    @property
    def client_sessions(self) -> int:
        """Count the clients."""
        return len(self._client_sessions)

    # -- own -------------------------------------------------------------------------------------

    async def _serve(self, project_id: str, agent: str) -> _Served:
        port = self.agents.port(project_id, agent)
        # Clients over HTTP pass here with each request, others when their stream begins.
        await self.ready(project_id)
        known = self._served.get((project_id, agent))
        if known is not None:
            return known
        # In a thread: loading the SDK takes a second, in which the daemon would answer nobody.
        module: Any = await asyncio.to_thread(importlib.import_module, "kaged.serve.mcp.server")
        # It reports every session by its id, and nothing that the trail does not have.
        logging.getLogger("mcp").setLevel(logging.WARNING)
        async with self._making:
            known = self._served.get((project_id, agent))
            if known is not None:
                return known
            if len(self._served) >= MAX_SERVED:
                raise KagedError(
                    f"{MAX_SERVED} agents are served already", code="mcp_too_many_clients"
                )
            server = cast(
                "AgentServer", module.AgentServer(port, self._client_session_of, clock=self.clock)
            )
            fresh = self._served[project_id, agent] = _Served(server)
            if not self._watching:
                self._watching = True
                self._tasks.start(self._watch(), "end of the daemon")
            return fresh

    async def _run_http(self, served: _Served) -> HttpSessions:
        from mcp.server.streamable_http_manager import (  # noqa: PLC0415 - see the module
            StreamableHTTPSessionManager,
        )

        manager = StreamableHTTPSessionManager(
            app=served.server.sdk,
            session_idle_timeout=IDLE_S,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_HTTP_SESSIONS,
        )
        running = asyncio.Event()

        async def run() -> None:
            async with manager.run():
                running.set()
                await served.stop.wait()

        self._tasks.start(run(), f"http sessions of {served.server.port.agent}")
        await running.wait()
        port = served.server.port

        def left(session: str, actor: ActorKey) -> None:
            self._leave(HttpKey(port.project_id, port.agent, session, actor))

        return HttpSessions(manager, MAX_HTTP_SESSIONS, IDLE_S, self.clock, left)

    def _client_session_of(self, ctx: Any) -> McpClientSession:
        """Return the client session of a request: that of its stream, HTTP session, or caller."""
        known = ctx.lifespan_context
        if isinstance(known, McpClientSession):
            return known
        request: Request = ctx.request
        actor: Actor = request.state.actor
        project_id, agent = request.path_params["project_id"], request.state.mcp_agent
        session = request.headers.get(SESSION_HEADER, "")
        key = HttpKey(project_id, agent, session, actor.key)
        found = self._client_sessions.get(key)
        if found is not None:
            found[1].actor = actor  # the same person and place; what they may do is of this request
            return found[1]
        return self._client_session(key, self._served[project_id, agent], actor, "http")

    def _client_session(
        self, key: ClientKey, served: _Served, actor: Actor, transport: str
    ) -> McpClientSession:
        now_s = self.clock.monotonic_s()
        # HTTP clients do not say goodbye: who was not heard of for long has left.
        for old, (_, client_session) in list(self._client_sessions.items()):
            idle = client_session.transport == "http" and client_session.open_calls == 0
            if idle and now_s - client_session.last_used_s > IDLE_S:
                self._leave(old)
        self._shares.take(key, actor)
        ulid = key.ulid if isinstance(key, StreamKey) else self.ids.ulid()
        client_session = McpClientSession(
            id=f"{transport}:{ulid}",
            session_id=f"ses_{self.ids.ulid()}",
            run_id=f"run_{self.ids.ulid()}",
            actor=actor,
            transport=transport,
            last_used_s=now_s,
        )
        self._client_sessions[key] = (served, client_session)
        return client_session

    def _leave(self, key: ClientKey) -> None:
        found = self._client_sessions.pop(key, None)
        self._shares.release(key)
        if found is not None:
            served, client_session = found
            served.server.forget(client_session.id)
            served.server.port.leave(client_session)

    async def _drop(self, place: tuple[str, str]) -> None:
        served = self._served.pop(place, None)
        if served is None:
            return
        served.stop.set()
        for cut_off in served.streams:
            cut_off.set()
        await served.server.close()
        for key in [key for key, (owner, _) in self._client_sessions.items() if owner is served]:
            self._leave(key)

    async def _watch(self) -> None:
        """Cut everybody off when the daemon begins to stop: open streams would hold it up."""
        with self.hub.subscribe() as waker:
            while not self.hub.closed:
                waker.clear()
                await waker.wait()
        for place in list(self._served):
            await self._drop(place)
