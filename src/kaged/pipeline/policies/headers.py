"""`HeaderAllowlist`: lets only named HTTP headers through."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import AgentPreInvokePayload, ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions, HttpExtension


class HeaderOptions(Options):
    """Which headers stay."""

    allow: list[str] = Field(min_length=1)


class HeaderAllowlist(Plugin):
    """Drops every header whose name matches none of `allow` (`x-trace-*` works, case does not).

    Needs `write_headers`; without it nothing is changed, so loading refuses that.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(HeaderOptions, config)
        if "write_headers" not in config.capabilities:
            raise ValueError("HeaderAllowlist has no effect without the capability write_headers")
        self._allowed = compile_names(name.lower() for name in options.allow)

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Cut the headers of a tool call."""
        return self._cut(extensions)

    async def agent_pre_invoke(
        self, payload: AgentPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Cut the headers of an agent call."""
        return self._cut(extensions)

    def _cut(self, extensions: Extensions | None) -> PluginResult[Any] | None:
        if extensions is None or extensions.http is None:
            return None
        headers = extensions.http.headers
        kept = {name: value for name, value in headers.items() if self._allowed(name.lower())}
        if len(kept) == len(headers):
            return None
        return PluginResult(
            modified_extensions=extensions.model_copy(update={"http": HttpExtension(headers=kept)})
        )
