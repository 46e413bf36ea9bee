"""`SecondPerson`: some calls need the yes of somebody else than the one whom they are made for."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.records import APPROVAL_REQUIRED, APPROVER, OPERATOR, PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions


class SecondOptions(Options):
    """Which calls, and who has to agree: a person by their id, or the operator."""

    tools: list[str] = Field(min_length=1)
    approver: str = Field(default=OPERATOR, min_length=1, max_length=200)


class SecondPerson(Plugin):
    """Lets a call wait until a second person agrees to it, in their inbox; each call anew.

    Nobody agrees to a call of their own. The operator may agree in the approver's place.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(SecondOptions, config)
        self._applies = compile_names(options.tools)
        self._approver = options.approver
        self._approved = f"approved:{config.name}"

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Stop a call that nobody else has agreed to."""
        if not self._applies(payload.name):
            return None
        meta = None if extensions is None else extensions.meta
        if meta is not None and self._approved in meta.tags:
            return None
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=f"{payload.name} needs the yes of a second person",
                description=f"{self._approver} is asked about each call of it",
                code=APPROVAL_REQUIRED,
                details={APPROVER: self._approver, "tool": payload.name},
                http_status_code=403,
            ),
        )
