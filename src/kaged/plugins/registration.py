"""`PluginTools`: the tools of running plugins, kept in the registry as tools like any other.

A tool enters when its plugin has finished its handshake and leaves when the plugin is disabled,
failed or stopped. While a plugin is being restarted its tools stay, and calls fail at once.
"""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.plugins.settings import thaw
from kaged.plugins.supervisor import PluginSupervisor, PluginTool
from kaged.tools import (
    InvalidToolParams,
    Tool,
    ToolDefinition,
    ToolError,
    ToolInvocation,
    ToolSource,
)
from kaged.tools.registry import ToolRegistry
from kaged.wire.context import CONTEXT_MEMBER, WireContext

HOST_MEMBERS: Final = (CONTEXT_MEMBER, "_config")
"""Members of a call's params that the host fills; no caller may send them."""

_log = get_logger("kaged.plugins")


class PluginTools:
    """Keeps the registry's plugin tools equal to those that the supervisor has."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._supervisor: PluginSupervisor | None = None
        self._registered: dict[str, PluginTool] = {}

    def connect(self, supervisor: PluginSupervisor) -> None:
        """Take the supervisor, which tells of changes by `refresh`."""
        self._supervisor = supervisor

    def refresh(self) -> None:
        """Bring the registry up to date; the supervisor calls this when its tools change."""
        supervisor = self._supervisor
        wanted = {} if supervisor is None else dict(supervisor.tools)
        for name, known in list(self._registered.items()):
            if wanted.get(name) != known:
                self._registry.withdraw(name)
                del self._registered[name]
        if supervisor is None:
            return
        for name, tool in wanted.items():
            if name in self._registered:
                continue
            try:
                self._registry.register(_tool(tool, supervisor))
            except ToolError as error:
                # One tool that cannot be taken in holds up neither its plugin nor the others.
                _log.warning("plugin.tool_not_registered", tool=name, error=str(error))
                continue
            self._registered[name] = tool


def _tool(tool: PluginTool, supervisor: PluginSupervisor) -> Tool:
    declaration = tool.declaration
    schema = thaw(declaration.parameters_schema)
    installed = supervisor.get(tool.plugin_name).installed

    async def forward(call: ToolInvocation) -> JsonValue:
        context = call.context
        return await supervisor.call_tool(
            tool.name,
            call.args,
            WireContext(
                request_id=context.request_id,
                operator_id=context.operator_id,
                project_id=context.project_id,
                agent_path=context.caller,
                session_id=context.session_id,
            ),
        )

    return Tool(
        ToolDefinition(
            name=tool.name,
            namespace=tool.plugin_name,
            description=declaration.description,
            parameters=schema if isinstance(schema, dict) else {"type": "object"},
            returns={},
            requires=(),
            source=ToolSource.PLUGIN,
            plugin_name=tool.plugin_name,
            version=str(installed.manifest.version),
        ),
        forward,
        # What a plugin does with a call is its own business, so it counts as a change.
        changes=True,
        check=_refuse_host_members,
        reaches_net=installed.reaches_net,
        labels=installed.labels,
    )


def _refuse_host_members(args: JsonObject) -> None:
    sent = [name for name in HOST_MEMBERS if name in args]
    if sent:
        raise InvalidToolParams.of_fields((name, "is filled in by the host") for name in sent)
