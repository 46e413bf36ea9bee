"""Kind `external`: a plugin behind an MCP server, reached through whatever MCP client the host has.

The server offers the tools `get_plugin_config` and `invoke_hook` (hook_type, plugin_name, payload,
context, and our `extensions`); it answers `invoke_hook` with an object of `result`, `context` or
`error`. The client is handed in, because this package stands below the one that has it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.pipeline.binding import HookCall, HookNotBound
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.errors import not_loaded
from kaged.pipeline.kinds import StartedPlugin
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.remote import decode_answer, encode_call
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

GET_CONFIG = "get_plugin_config"
INVOKE = "invoke_hook"


class McpSession(Protocol):
    """What an open MCP connection must be able to do."""

    async def call_tool(self, name: str, arguments: JsonObject) -> JsonValue:
        """Call a tool and return its structured content, or its text content parsed as JSON."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


Connect: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[McpSession]]
"""Opens a session for a plugin name and the `mcp` table of its entry. Raises KagedError."""


class ExternalKind:
    """Starts external plugins: `kind: external` with an `mcp` table."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def start(self, config: PluginConfig) -> StartedPlugin:
        """Connect and ask whether the server has this plugin.

        Raises `mcp_server_invalid` for a table that makes no sense, `pipeline_plugin_not_loaded`.
        """
        try:
            session = await self._connect(config.name, config.mcp or {})
        except KagedError as error:
            message = f"plugin {config.name!r}: its MCP server cannot be reached: {error.message}"
            if error.code == "mcp_server_invalid":  # the file is wrong, not the server
                raise KagedError(message, code=error.code, fix=error.fix, key="mcp") from error
            raise not_loaded(message, "mcp", error.fix) from error
        plugin = ExternalPlugin(session, config)
        try:
            await plugin.check()
        except BaseException:
            await session.close()
            raise
        return plugin


class ExternalPlugin:
    """One plugin on an MCP server."""

    def __init__(self, session: McpSession, config: PluginConfig) -> None:
        self._session = session
        self._name = config.name
        self._hooks = frozenset(config.hooks)
        self._offered: frozenset[str] | None = None

    async def check(self) -> None:
        """Ask the server for its own configuration of this plugin.

        Raises `pipeline_plugin_not_loaded`.
        """
        try:
            known = await self._session.call_tool(GET_CONFIG, {"name": self._name})
        except KagedError as error:
            message = f"plugin {self._name!r}: its MCP server does not serve plugins"
            raise not_loaded(f"{message}: {error.message}", "mcp") from error
        if not isinstance(known, dict):
            message = f"plugin {self._name!r} is not known to its MCP server"
            raise not_loaded(message, "name", "name it as the server does")
        hooks = known.get("hooks")
        if isinstance(hooks, list):
            self._offered = frozenset(str(hook) for hook in hooks)

    def bind(self, hook: str) -> HookCall:
        """Return what to call for a hook. Raises HookNotBound when the server does not offer it."""
        if hook not in self._hooks or (self._offered is not None and hook not in self._offered):
            raise HookNotBound(
                f"plugin {self._name!r} has no hook {hook!r} on its server",
                plugin=self._name,
                hook=hook,
            )
        kind = HookRegistry().kind(hook)

        async def call(
            payload: Any, context: PluginContext, extensions: Extensions | None
        ) -> PluginResult[Any]:
            arguments = encode_call(hook, payload, context, extensions)
            answer = await self._session.call_tool(INVOKE, {**arguments, "plugin_name": self._name})
            return decode_answer(_only_changes(answer, extensions), kind, context, extensions)

        return call

    async def shutdown(self) -> None:
        """End the connection."""
        await self._session.close()


def _only_changes(answer: JsonValue, shown: Extensions | None) -> JsonValue:
    """Leave the slots out of an answer that came back as they were sent.

    A server that echoes the whole container must not seem to blank what it was never shown.
    """
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError as error:
            raise KagedError(
                "the server's answer is not JSON", code="plugin_answer_invalid"
            ) from error
    given = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(given, dict):
        return answer
    result: dict[str, Any] = dict(given)
    slots = result.get("modified_extensions")
    if isinstance(slots, dict):
        sent = (shown or Extensions()).model_dump(mode="json")
        result["modified_extensions"] = {
            name: value for name, value in slots.items() if value != sent.get(name)
        }
    return {**answer, "result": result}
