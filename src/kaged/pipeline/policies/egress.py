"""`EgressGuard`: labelled data does not leave through tools that can reach the network."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.ways_out import WaysOut
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions


class EgressOptions(Options):
    """Which labels stay inside, and which tools count as a way out."""

    labels: list[str] = Field(default_factory=lambda: ["pii"], min_length=1)
    tools: list[str] = Field(default_factory=list)
    except_tools: list[str] = Field(default_factory=list)
    unknown: Literal["deny", "allow"] = "deny"


class EgressGuard(Plugin):
    """Denies a tool call with labelled data when the tool can reach the network.

    A tool can when the host annotates it so (`net`), when its server says `openWorldHint`, or when
    its name matches `tools`; never when it matches `except_tools`. A tool about which nothing is
    known is denied unless `unknown: allow`. Needs `read_labels`.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(EgressOptions, config)
        if not {"read_labels", "append_labels"} & config.capabilities:
            raise ValueError("EgressGuard needs the capability read_labels")
        self._kept = frozenset(options.labels)
        self._leaves = WaysOut(
            options.tools, options.except_tools, unknown=options.unknown == "deny"
        )

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny a way out for labelled data."""
        security = None if extensions is None else extensions.security
        held = self._kept & security.labels if security is not None else frozenset[str]()
        if not held or not self._leaves(payload.name, extensions):
            return None
        named = ", ".join(sorted(held))
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=f"data labelled {named} may not leave",
                description=f"{payload.name} can reach the network, and the call carries {named}",
                code="egress_denied",
                details={"labels": sorted(held), "tool": payload.name},
                http_status_code=403,
            ),
        )
