"""`Extensions`: the frozen container of the twelve slots that travels with a payload."""

from __future__ import annotations

from typing import Any

from kaged.pipeline.slots.agent import AgentExtension
from kaged.pipeline.slots.base import Frozen
from kaged.pipeline.slots.call import (
    FrameworkExtension,
    HttpExtension,
    MetaExtension,
    ProvenanceExtension,
    RequestExtension,
)
from kaged.pipeline.slots.delegation import DelegationExtension
from kaged.pipeline.slots.mcp import MCPExtension
from kaged.pipeline.slots.model import CompletionExtension, LLMExtension
from kaged.pipeline.slots.security import SecurityExtension


class Extensions(Frozen):  # noqa: PLW1641 - pydantic adds the hash of a frozen model
    """Typed context of one call; every slot is optional.

    Frozen: `model_copy(update={...})` returns a changed copy (it does not validate the update).
    Only the host fills it; what a plugin gives back passes `merge_extensions` first.
    """

    request: RequestExtension | None = None
    agent: AgentExtension | None = None
    http: HttpExtension | None = None
    security: SecurityExtension | None = None
    delegation: DelegationExtension | None = None
    mcp: MCPExtension | None = None
    completion: CompletionExtension | None = None
    provenance: ProvenanceExtension | None = None
    llm: LLMExtension | None = None
    framework: FrameworkExtension | None = None
    meta: MetaExtension | None = None
    custom: dict[str, Any] | None = None

    def __eq__(self, other: object) -> bool:
        # By slots, not by class: a plugin's view is an instance of a private subclass.
        if not isinstance(other, Extensions):
            return NotImplemented
        return self.__dict__ == other.__dict__
