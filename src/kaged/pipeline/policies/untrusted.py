"""`UntrustedContentGuard`: after untrusted content, calls with effects need a person's yes.

Whoever writes a page, a mail or a tool's result can write instructions into it. An agent that has
read such text, has something worth stealing and can act is the case that this policy is for.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.policies.ways_out import NET_ANNOTATION
from kaged.pipeline.records import APPROVAL_REQUIRED, PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

CHANGES_ANNOTATION = "changes"
"""Annotation of a call by the host: whether it would change something."""


class UntrustedOptions(Options):
    """What counts as untrusted, which calls have effects, and what becomes of them."""

    labels: list[str] = Field(default_factory=lambda: ["untrusted"], min_length=1)
    effects: Literal["any", "leaving"] = "any"
    tools: list[str] = Field(default_factory=list)
    except_tools: list[str] = Field(default_factory=list)
    action: Literal["ask", "deny"] = "ask"


class UntrustedContentGuard(Plugin):
    """Asks before a call with effects in a session that has read untrusted content.

    A call has effects when it changes something or reaches the network, as the host says, or when
    its name matches `tools`; with `effects: leaving` only the network counts. Never when it matches
    `except_tools`. A call about which nothing is known has effects. Needs `read_labels`.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(UntrustedOptions, config)
        if not {"read_labels", "append_labels"} & config.capabilities:
            raise ValueError("UntrustedContentGuard needs the capability read_labels")
        self._labels = frozenset(options.labels)
        self._annotations = (
            (NET_ANNOTATION,)
            if options.effects == "leaving"
            else (NET_ANNOTATION, CHANGES_ANNOTATION)
        )
        self._named = compile_names(options.tools)
        self._excused = compile_names(options.except_tools)
        self._asks = options.action == "ask"
        self._approved = f"approved:{config.name}"

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Stop a call with effects that follows untrusted content."""
        security = None if extensions is None else extensions.security
        held = self._labels & security.labels if security is not None else frozenset[str]()
        if not held or extensions is None or not self._has_effects(payload.name, extensions):
            return None
        if extensions.meta is not None and self._approved in extensions.meta.tags:
            return None
        named = ", ".join(sorted(held))
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=f"the session has read {named} content, and this call has effects",
                description=f"{payload.name} would act on what somebody outside may have written",
                code=APPROVAL_REQUIRED if self._asks else "untrusted_content",
                details={"labels": sorted(held), "tool": payload.name},
                http_status_code=403,
            ),
        )

    def _has_effects(self, name: str, extensions: Extensions) -> bool:
        if self._excused(name):
            return False
        if self._named(name):
            return True
        tool = None if extensions.mcp is None else extensions.mcp.tool
        if tool is None or tool.name != name:
            return True
        return any(tool.annotations.get(one) is not False for one in self._annotations)
