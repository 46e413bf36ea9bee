"""`AgentServer`: the MCP server of one agent, on the official SDK.

The SDK takes a second to load, so nothing imports this module before the first client comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from kaged import __version__
from kaged.base import Clock, KagedError, Tasks
from kaged.base.log import get_logger
from kaged.base.tasks import report_failure
from kaged.mcp.progress import PROGRESS
from kaged.serve.mcp.client_session import MAX_OPEN_CALLS, McpClientSession
from kaged.serve.mcp.elicitation import Elicitations, Shown
from kaged.serve.mcp.listing import META_SCHEMA, ToolList
from kaged.serve.mcp.results import tool_failure, tool_result

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.models import InitializationOptions
    from mcp.server.session import ServerSession

    from kaged.base import JsonObject
    from kaged.serve.mcp.served_agents import ServedAgent
    from kaged.tools.context import ReachPerson

HEARTBEAT_S: Final = 5.0
TELL_TIMEOUT_S: Final = 5.0
MAX_SUBSCRIPTIONS: Final = 256
MAX_CLIENT_CHARS: Final = 120
REFUSED: Final = -32602  # invalid params: what the SDK's own servers answer for an unknown uri

INSTRUCTIONS: Final = (
    "These are the tools of one agent of a kaged project. Paths are relative to the project's "
    "folder. Each call is held against the agent's cage; a refused call says by which rule and "
    "what to do instead."
)

_log = get_logger("kaged.mcp")


class _AnnouncingServer(Server[Any]):
    """The SDK's server; says in every handshake that lists may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the handshake's answer."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class AgentServer:
    """Answers MCP requests for one agent; `sdk` is what transports drive.

    `client_session_of` returns the client session that a request belongs to.
    """

    def __init__(
        self,
        port: ServedAgent,
        client_session_of: Callable[[ServerRequestContext[Any]], McpClientSession],
        *,
        clock: Clock,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.port = port
        self._client_session_of = client_session_of
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._list: ToolList | None = None
        self._told: str | None = None
        self._listeners: dict[str, ServerSession] = {}
        self._tasks = Tasks(f"mcp {port.agent}", _task_failed)
        self._elicitations = Elicitations(self._tasks, port.answer)
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=MAX_SUBSCRIPTIONS)
        self._telling = False
        self._unsubscribe = port.subscribe(self._changed)
        self.sdk: Server[Any] = _AnnouncingServer(
            "kaged",
            version=__version__,
            title=f"kaged: {port.agent}",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_subscriptions_listen=self._listen,
            get_tool_input_schema=self._schema_of,
        )
        # Nothing about requests leaves this machine, whatever is installed beside us.
        self.sdk.middleware.clear()

    async def close(self) -> None:
        """End what listens."""
        self._unsubscribe()
        self._listen.close()
        self._listeners.clear()
        await self._tasks.close()

    def forget(self, client_session_id: str) -> None:
        """Stop telling a client that has left."""
        self._listeners.pop(client_session_id, None)
        self._elicitations.forget(client_session_id)

    # -- tools -----------------------------------------------------------------------------------

    async def _list_tools(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> Any:
        self._client_session(ctx)
        with _protocol_errors():
            tools, following = self._tools().page(None if params is None else params.cursor)
        return types.ListToolsResult.model_validate({"tools": tools, "nextCursor": following})

    async def _call_tool(
        self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> Any:
        client_session = self._client_session(ctx)
        arguments: JsonObject = dict(params.arguments or {})
        if client_session.open_calls >= MAX_OPEN_CALLS:
            busy = KagedError(
                f"{MAX_OPEN_CALLS} calls of this client are running",
                code="mcp_too_many_calls",
                fix="wait for one of them to end",
            )
            return types.CallToolResult.model_validate(tool_failure(busy, ""))
        client_session.open_calls += 1
        wanted = _wants(ctx)
        beating = self._tasks.start(self._beat(ctx, params.name), "progress") if wanted else None
        reporting = PROGRESS.set(self._reporter(ctx) if wanted else None)
        try:
            name = self._tools().names.tool(params.name)

            def begin(reach: ReachPerson | None) -> Coroutine[Any, Any, Shown]:
                return self.port.call(client_session, name, arguments, _schema_hash(ctx), reach)

            done = await self._elicitations.call(ctx, client_session, params, begin)
            if isinstance(done, types.InputRequiredResult):
                return done
            result = tool_result(*done)
        except KagedError as error:
            result = tool_failure(error, str(error.data.get("request_id", "")))
        finally:
            PROGRESS.reset(reporting)
            client_session.open_calls -= 1
            if beating is not None:
                beating.cancel()
        return types.CallToolResult.model_validate(result)

    async def _beat(self, ctx: ServerRequestContext[Any], name: str) -> None:
        """Notify a client that asked for it that a long call is still running."""
        started_s = self._clock.monotonic_s()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            ran_s = round(self._clock.monotonic_s() - started_s, 1)
            await ctx.session.report_progress(ran_s, None, f"{name} has been running for {ran_s} s")

    def _reporter(
        self, ctx: ServerRequestContext[Any]
    ) -> Callable[[float, float | None, str], None]:
        def report(done: float, total: float | None, message: str) -> None:
            self._tasks.start(ctx.session.report_progress(done, total, message), "progress")

        return report

    def _tools(self) -> ToolList:
        found = self._list
        if found is None:
            found = ToolList(self.port.tools(), returns=self.port.results_as_declared)
            self._list, self._told = found, self._told or found.digest
        return found

    def _schema_of(self, name: str) -> Any:
        listed = self._tools()
        return next((one["inputSchema"] for one in listed.tools if one["name"] == name), None)

    # -- resources and prompts -------------------------------------------------------------------

    async def _list_resources(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> Any:
        client_session = self._client_session(ctx)
        cursor = None if params is None else params.cursor
        with _protocol_errors():
            found, following = await self.port.resources(client_session, cursor)
        resources = [
            {
                "uri": one.uri,
                "name": one.name,
                "description": one.description,
                "mimeType": one.mime_type,
            }
            for one in found
        ]
        return types.ListResourcesResult.model_validate(
            {"resources": resources, "nextCursor": following}
        )

    async def _read_resource(
        self, ctx: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> Any:
        with _protocol_errors():
            found = await self.port.read_resource(self._client_session(ctx), str(params.uri))
        contents = [
            {"uri": one.uri, "mimeType": one.mime_type}
            | ({"text": one.text or ""} if one.blob is None else {"blob": one.blob})
            for one in found
        ]
        return types.ReadResourceResult.model_validate({"contents": contents})

    async def _list_prompts(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> Any:
        del params  # all of them fit on one page
        with _protocol_errors():
            found = await self.port.prompts(self._client_session(ctx))
        return types.ListPromptsResult.model_validate({"prompts": list(found)})

    async def _get_prompt(
        self, ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> Any:
        client_session = self._client_session(ctx)
        arguments = dict(params.arguments or {})
        with _protocol_errors():
            found = await self.port.get_prompt(client_session, params.name, arguments)
        try:
            return types.GetPromptResult.model_validate(found)
        except ValidationError as error:
            raise MCPError(code=REFUSED, message="mcp_answer_invalid: this is no prompt") from error

    # -- change ----------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Called when something may have changed; clients are notified soon, once for a burst."""
        self._list = None
        if not self._telling:
            self._telling = True
            self._tasks.start(self._tell(), "list changed")

    async def _tell(self) -> None:
        await asyncio.sleep(0)  # a plugin with ten tools changes dispatch ten times in a row
        self._telling = False
        try:
            digest = self._tools().digest
        except KagedError:
            digest = ""  # the project is gone; the next request says so
        if digest == self._told:
            return
        self._told = digest
        await self._bus.publish(ToolsListChanged())
        sessions = list(self._listeners.values())
        for session in sessions:
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    await session.send_tool_list_changed()
            except TimeoutError:
                continue  # a client that does not read finds out when it asks

    # -- own -------------------------------------------------------------------------------------

    def _client_session(self, ctx: ServerRequestContext[Any]) -> McpClientSession:
        """Return the client session of a request, with what its client calls itself."""
        with _protocol_errors():
            client_session = self._client_session_of(ctx)
        client_session.last_used_s = self._clock.monotonic_s()
        if not client_session.client:
            said = ctx.session.client_params
            if said is not None:
                named = f"{said.client_info.name} {said.client_info.version}"
                client_session.client = "".join(c for c in named if c.isprintable())[
                    :MAX_CLIENT_CHARS
                ]
        if not client_session.begun:
            client_session.begun = True
            self.port.greet(client_session)
        self._listeners[client_session.id] = ctx.session
        return client_session


def _wants(ctx: ServerRequestContext[Any]) -> bool:
    """Return whether the client asked for progress."""
    return bool(ctx.meta) and "progress_token" in (ctx.meta or {})


def _schema_hash(ctx: ServerRequestContext[Any]) -> str | None:
    """Return which parameters the client means to call with, if it hands back what it was told."""
    said = (ctx.meta or {}).get(META_SCHEMA)
    return said if isinstance(said, str) else None


@contextmanager
def _protocol_errors() -> Generator[None]:
    """Turn errors into those of the protocol where MCP has no place for one in the result."""
    try:
        yield
    except KagedError as error:
        raise MCPError(
            code=REFUSED,
            message=f"{error.code}: {error.message}",
            data={"code": error.code, "fix": error.fix},
        ) from error


def _task_failed(name: str, error: BaseException) -> None:
    if not isinstance(error, KagedError):  # those are the answers of calls
        report_failure(name, error)
