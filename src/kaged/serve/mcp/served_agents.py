"""`ServedAgents`: agents of loaded projects as MCP clients reach them, through the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, replace

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import Ids, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.inbox import Inbox
from kaged.mcp.host import McpHost
from kaged.mcp.offers import Offers
from kaged.pipeline.pipeline import Pipeline
from kaged.serve.mcp.agent_reading import AgentReading
from kaged.serve.mcp.client_session import (
    ListedResource,
    ListedTool,
    McpClientSession,
    ResourceContent,
)
from kaged.serve.mcp.results import json_text
from kaged.sessions.agent_tools import AgentToolService
from kaged.sessions.session_services import SessionServices
from kaged.toolbox.project import ProjectWork
from kaged.tools import ToolCallContext
from kaged.tools.context import ReachPerson

_log = get_logger("kaged.mcp")


@dataclass(eq=False)
class ServedAgents:
    """Makes the port of each served agent."""

    agent_tools: AgentToolService
    work: ProjectWork
    sessions: SessionServices
    host: McpHost
    offers: Offers
    _: KW_ONLY
    audit: AuditLog
    ids: Ids
    inbox: Inbox
    pipeline: Callable[[], Pipeline | None]

    def __post_init__(self) -> None:
        self._watchers: dict[object, tuple[str, Callable[[], None]]] = {}
        self.agent_tools.registry.subscribe(self._everything_changed)

    def port(self, project_id: str, agent: str) -> ServedAgent:
        """Return the port of an agent. Raises `project_not_found`, `agent_not_found`."""
        self.agent_tools.tools_of(project_id, agent)
        return ServedAgent(self, project_id, agent)

    def changed(self, project_id: str) -> None:
        """Notify those who serve a project's agents that their tools may have changed."""
        for watched, callback in list(self._watchers.values()):
            if watched == project_id:
                callback()

    def watch(self, project_id: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` on changes; returns a function that ends this."""
        token = object()
        self._watchers[token] = (project_id, callback)
        return lambda: (self._watchers.pop(token, None), None)[1]

    def post(self, event: AuditEvent) -> None:
        """Record something that has happened already."""
        try:
            self.audit.post(event)
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=event.name, error=str(error))

    def _everything_changed(self) -> None:
        for _, callback in list(self._watchers.values()):
            callback()


class ServedAgent:
    """One agent: its tools, and what it can read."""

    def __init__(self, agents: ServedAgents, project_id: str, agent: str) -> None:
        self._agents = agents
        self._agent_tools = agents.agent_tools
        self.project_id = project_id
        self.agent = agent
        self._reading = AgentReading(
            project_id,
            agent,
            lambda: self._agent_tools.tools_of(project_id, agent),
            work=agents.work,
            sessions=agents.sessions,
            host=agents.host,
            offers=agents.offers,
            begin_session=self._agent_tools.begin_session,
        )

    @property
    def results_as_declared(self) -> bool:
        """Whether results are what tools declare; not when a policy plugin may change them."""
        pipeline = self._agents.pipeline()
        return pipeline is None or not pipeline.has_hooks_for("tool_post_invoke")

    # -- tools -----------------------------------------------------------------------------------

    def tools(self) -> Sequence[ListedTool]:
        """Return the tools that the agent has now, without those that only its own loop answers."""
        registry = self._agent_tools.registry
        tools = self._agent_tools.tools_of(self.project_id, self.agent)
        exported = {str(one["name"]): one["parameters"] for one in tools.export(registry)}
        found: list[ListedTool] = []
        for name in sorted(tools.enabled):
            entry, parameters = registry.get(name), exported.get(name)
            if entry is not None and isinstance(parameters, dict):
                found.append(ListedTool(entry, parameters))
        return found

    async def call(
        self,
        client_session: McpClientSession,
        name: str,
        arguments: JsonObject,
        schema_hash: str | None = None,
        reach: ReachPerson | None = None,
    ) -> tuple[JsonValue, str | None]:
        """Make a call through dispatch; returns the result, and its text if that had to be cut.

        What comes here enters a window as well, so it has the same budget. `reach` shows its person
        what a refused call asks. Raises ToolError.
        """
        context = replace(self._context(client_session), reach_person=reach)
        try:
            value = await self._agent_tools.dispatch(
                name, arguments, context, schema_hash=schema_hash
            )
            dispatcher = self._agent_tools.dispatcher
            if dispatcher.fits(name, json_text(value), context):
                return value, None
            return value, await dispatcher.shown(name, value, context)
        except KagedError as error:
            error.data = {**error.data, "request_id": context.request_id}
            raise

    async def answer(self, client_session: McpClientSession, request_id: str, choice: str) -> None:
        """Answer what a refused call asked, as whoever the client speaks for.

        Raises what answering raises.
        """
        inbox, who = self._agents.inbox, client_session.actor
        asked = await inbox.get(request_id, who)
        await inbox.answer(request_id, who, asked.digest, {"choice": choice})

    # -- reading ---------------------------------------------------------------------------------

    async def resources(
        self, client_session: McpClientSession, cursor: str | None
    ) -> tuple[Sequence[ListedResource], str | None]:
        """Return a page of what the agent can read, and the cursor of the next."""
        return await self._reading.resources(cursor, client_session.actor)

    async def read_resource(
        self, client_session: McpClientSession, uri: str
    ) -> Sequence[ResourceContent]:
        """Read one. Raises `mcp_resource_not_found`, PipelineRefused."""
        context = self._context(client_session)
        with self._recorded("mcp.resource_read", {"uri": uri}, client_session, context.request_id):
            return await self._reading.read(uri, context)

    async def prompts(self, client_session: McpClientSession) -> Sequence[JsonObject]:
        """Return the prompts of outside servers that the agent may use."""
        del client_session
        return await self._reading.prompts()

    async def get_prompt(
        self, client_session: McpClientSession, name: str, arguments: dict[str, str]
    ) -> JsonObject:
        """Fetch one. Raises `mcp_prompt_not_found`, PipelineRefused."""
        context = self._context(client_session)
        server, _, prompt = name.partition(".")
        facts: JsonObject = {"server": server, "prompt": prompt}
        with self._recorded("mcp.prompt_fetched", facts, client_session, context.request_id):
            return await self._reading.get_prompt(name, arguments, context)

    @contextmanager
    def _recorded(
        self, event: str, facts: JsonObject, client_session: McpClientSession, request_id: str
    ) -> Generator[None]:
        """Put on record what is fetched within, and how that ends."""
        error_code: str | None = None
        try:
            yield
        except KagedError as error:
            error_code = error.code
            raise
        finally:
            ended: JsonObject = {
                "session_id": client_session.session_id,
                "success": error_code is None,
                "error_code": error_code,
            }
            self._post(event, {**facts, **ended}, client_session, request_id)

    # -- coming and going ------------------------------------------------------------------------

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the agent's tools may have changed; returns what ends this."""
        return self._agents.watch(self.project_id, changed)

    def greet(self, client_session: McpClientSession) -> None:
        """Put a client's coming on record."""
        self._post(
            "mcp.client_came",
            {
                "session_id": client_session.session_id,
                "run_id": client_session.run_id,
                "transport": client_session.transport,
                "client": client_session.client,
                "via": client_session.actor.vouched_by.value,
            },
            client_session,
        )

    def leave(self, client_session: McpClientSession) -> None:
        """Let go of everything that belongs to a client's session and run."""
        # When the project is gone, so is everything of the session.
        with suppress(KagedError):
            self._agent_tools.session_ended(self._context(client_session))
        if client_session.begun:
            self._post(
                "mcp.client_left",
                {
                    "session_id": client_session.session_id,
                    "run_id": client_session.run_id,
                    "transport": client_session.transport,
                },
                client_session,
            )

    # -- own -------------------------------------------------------------------------------------

    def _context(self, client_session: McpClientSession) -> ToolCallContext:
        who = client_session.actor.in_request(self._agents.ids.tagged("req"))
        return self._agent_tools.context_for(
            self.project_id,
            self.agent,
            who,
            session_id=client_session.session_id,
            run_id=client_session.run_id,
        )

    def _post(
        self, event: str, data: JsonObject, client_session: McpClientSession, request_id: str = ""
    ) -> None:
        self._agents.post(
            AuditEvent(
                event,
                {**data, "operator_id": client_session.actor.person_id},
                project_id=self.project_id,
                caller=self.agent,
                request_id=request_id or None,
            )
        )
