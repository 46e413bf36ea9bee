"""The twelve slots of `Extensions`, each a frozen model; pure values without behaviour."""

from kaged.pipeline.slots.agent import AgentExtension, ConversationContext
from kaged.pipeline.slots.base import Slot
from kaged.pipeline.slots.call import (
    FrameworkExtension,
    HttpExtension,
    MetaExtension,
    ProvenanceExtension,
    RequestExtension,
)
from kaged.pipeline.slots.container import Extensions
from kaged.pipeline.slots.delegation import DelegationExtension, DelegationHop
from kaged.pipeline.slots.mcp import MCPExtension, PromptMetadata, ResourceMetadata, ToolMetadata
from kaged.pipeline.slots.model import (
    CompletionExtension,
    LLMExtension,
    StopReason,
    TokenUsage,
)
from kaged.pipeline.slots.security import (
    DataPolicy,
    ObjectSecurityProfile,
    RetentionPolicy,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
)

__all__ = [
    "AgentExtension",
    "CompletionExtension",
    "ConversationContext",
    "DataPolicy",
    "DelegationExtension",
    "DelegationHop",
    "Extensions",
    "FrameworkExtension",
    "HttpExtension",
    "LLMExtension",
    "MCPExtension",
    "MetaExtension",
    "ObjectSecurityProfile",
    "PromptMetadata",
    "ProvenanceExtension",
    "RequestExtension",
    "ResourceMetadata",
    "RetentionPolicy",
    "SecurityExtension",
    "Slot",
    "StopReason",
    "SubjectExtension",
    "SubjectType",
    "TokenUsage",
    "ToolMetadata",
]
