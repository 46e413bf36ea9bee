"""`AgentReading`: what an agent can read over MCP: issues, sessions, what outside servers offer."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY
from typing import Final
from urllib.parse import quote, unquote

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.identity import Actor
from kaged.mcp.host import McpHost
from kaged.mcp.offers import Offers, hooked_resource
from kaged.mcp.outside import OutsideServer
from kaged.serve.mcp.client_session import ListedResource, ResourceContent
from kaged.serve.mcp.work_resources import issue_page, read_issue, read_session, session_page
from kaged.sessions.session_services import SessionServices
from kaged.toolbox.project import ProjectWork
from kaged.tools import ROOT_CALLER, ToolCallContext
from kaged.tools.resolution import AgentTools

ISSUE_TOOL: Final = "kaged.issue"
SCHEME: Final = "kaged://"
_OWN: Final = re.compile(r"kaged://(issues|sessions)/([A-Za-z0-9_]{1,64})")
_OUTSIDE: Final = re.compile(r"kaged://mcp/([a-z][a-z0-9-]{0,63})/(.{1,6000})")
_CURSOR: Final = re.compile(r"(issues|sessions)\.([0-9]{1,9})")

_log = get_logger("kaged.mcp")


@dataclass(eq=False)
class AgentReading:
    """Reads for one agent; policy plugins stand on both sides of each fetch.

    `tools` returns the agent's tools as they are now: who has none of a server sees nothing of it.
    """

    project_id: str
    agent: str
    tools: Callable[[], AgentTools]
    _: KW_ONLY
    work: ProjectWork
    sessions: SessionServices
    host: McpHost
    offers: Offers
    begin_session: Callable[[ToolCallContext], Awaitable[None]]

    async def resources(
        self, cursor: str | None, actor: Actor
    ) -> tuple[Sequence[ListedResource], str | None]:
        """Return a page of issues, then of sessions, then what outside servers offer."""
        found = None if cursor is None else _CURSOR.fullmatch(cursor)
        part, offset = ("issues", 0) if found is None else (found[1], int(found[2]))
        if part == "issues":
            if self._sees_issues:
                page, following = await issue_page(self.work, self.project_id, offset)
                if page:
                    after = "sessions.0" if following is None else f"issues.{following}"
                    return page, after
            offset = 0
        page = []
        if self.agent == ROOT_CALLER:
            page, following = await session_page(self.sessions, self.project_id, offset, actor)
            if following is not None:
                return page, f"sessions.{following}"
        return [*page, *await self._outside_resources()], None

    async def read(self, uri: str, context: ToolCallContext) -> Sequence[ResourceContent]:
        """Read one.

        Raises:
            KagedError: `mcp_resource_not_found`; there is none, or not for this agent.
            PipelineRefused: a policy plugin said no.
        """
        outside = _OUTSIDE.fullmatch(uri)
        if outside is not None:
            server = self._server(outside[1])
            if server is None:
                raise _no_resource(uri)
            await self.begin_session(context)
            answer = await self.offers.read_resource(server, unquote(outside[2]), context)
            return _contents(uri, answer)
        own = _OWN.fullmatch(uri)
        if own is None:
            raise _no_resource(uri)
        kind, which = own[1], own[2]

        async def read() -> str:
            if kind == "issues" and self._sees_issues and which.isdigit():
                text = await read_issue(self.work, self.project_id, int(which[:15]))
            elif kind == "sessions" and self.agent == ROOT_CALLER:
                text = await read_session(self.sessions, self.project_id, which, context.identity)
            else:
                raise _no_resource(uri)
            await self.begin_session(context)  # not for whoever found nothing
            if kind == "sessions":
                await self.offers.carry(which, hooked, context)
            return text

        hooked = await self.offers.guarded("resource", "kaged", context)
        text = await hooked_resource(hooked, uri, read)
        return [ResourceContent(uri, "application/json", text=text)]

    async def prompts(self) -> Sequence[JsonObject]:
        """Return the prompts of outside servers that the agent may use."""
        found: list[JsonObject] = []
        for server in self._servers():
            try:
                listed = await self.offers.prompts(server)
            except KagedError as error:
                _log.warning("mcp.prompts_not_listed", server=server.name, error=error.message)
                continue
            found += [{**one, "name": f"{server.name}.{one['name']}"} for one in listed]
        return found

    async def get_prompt(
        self, name: str, arguments: dict[str, str], context: ToolCallContext
    ) -> JsonObject:
        """Fetch one. Raises `mcp_prompt_not_found`, PipelineRefused."""
        owner, _, prompt = name.partition(".")
        server = self._server(owner)
        if server is None or not prompt:
            raise KagedError(f"There is no prompt {name[:200]!r}.", code="mcp_prompt_not_found")
        await self.begin_session(context)
        return await self.offers.get_prompt(server, prompt, arguments, context)

    # -- own -------------------------------------------------------------------------------------

    @property
    def _sees_issues(self) -> bool:
        return self.agent == ROOT_CALLER and ISSUE_TOOL in self.tools().enabled

    def _servers(self) -> Sequence[OutsideServer]:
        """Return the outside servers of which the agent has at least one tool."""
        tools = self.tools().enabled
        return [
            server for server in self.host.servers if any(one.name in tools for one in server.tools)
        ]

    def _server(self, name: str) -> OutsideServer | None:
        return next((one for one in self._servers() if one.name == name), None)

    async def _outside_resources(self) -> list[ListedResource]:
        found: list[ListedResource] = []
        for server in self._servers():
            try:
                listed = await self.offers.resources(server)
            except KagedError as error:
                _log.warning("mcp.resources_not_listed", server=server.name, error=error.message)
                continue
            found += [
                ListedResource(
                    f"{SCHEME}mcp/{server.name}/{quote(str(one['uri']), safe='')}",
                    f"{server.name}: {one['name']}",
                    str(one["description"]),
                    str(one["mime_type"]),
                )
                for one in listed
            ]
        return found


def _no_resource(uri: str) -> KagedError:
    return KagedError(
        f"There is no resource {uri[:200]!r} for this agent.",
        code="mcp_resource_not_found",
        fix="resources/list names what there is",
    )


def _contents(uri: str, answer: JsonObject) -> list[ResourceContent]:
    found: list[ResourceContent] = []
    contents = answer.get("contents")
    for one in contents if isinstance(contents, list) else []:
        if not isinstance(one, dict):
            continue
        mime = str(one.get("mimeType") or "application/octet-stream")[:100]
        blob = one.get("blob")
        if isinstance(blob, str):
            found.append(ResourceContent(uri, mime, blob=blob))
        else:
            text = one.get("text")
            shown = text if isinstance(text, str) else json.dumps(text)
            found.append(ResourceContent(uri, mime, text=shown))
    return found
