"""The extension pipeline: `Extensions`, `Plugin`, `hook`, `Pipeline`, `Runner`, filter and merge.

For each plugin of a hook, in order:

    filter_extensions → the plugin's hook → merge_extensions → next plugin

`slots` are the typed context, `tiers` say who may see and change it, `view` and `merge` apply that,
`plan` decides everything that can be decided at load, `runner` is the one place that runs plugins.

Names are looked up when they are first used: a command that only asks for the version does not pay
for the models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaged.kernel.extension_caps import ExtensionCapability as Capability
    from kaged.pipeline.constraints import validate_tier_constraints
    from kaged.pipeline.contexts import (
        GlobalContext,
        PluginContext,
        PluginContextTable,
        UserContext,
    )
    from kaged.pipeline.decorator import hook
    from kaged.pipeline.document import PipelineDocument, parse_document
    from kaged.pipeline.errors import (
        PayloadSizeError,
        PipelineNotReady,
        PluginError,
        PluginErrorModel,
        PluginViolationError,
    )
    from kaged.pipeline.filter import filter_extensions
    from kaged.pipeline.merge import DiscardedChange, merge_extensions
    from kaged.pipeline.modes import OnError, PluginMode
    from kaged.pipeline.payloads import (
        AgentPostInvokePayload,
        AgentPostInvokeResult,
        AgentPreInvokePayload,
        AgentPreInvokeResult,
        HttpHeaderPayload,
        PluginPayload,
        PromptPosthookPayload,
        PromptPosthookResult,
        PromptPrehookPayload,
        PromptPrehookResult,
        ResourcePostFetchPayload,
        ResourcePostFetchResult,
        ResourcePreFetchPayload,
        ResourcePreFetchResult,
        ToolPostInvokePayload,
        ToolPostInvokeResult,
        ToolPreInvokePayload,
        ToolPreInvokeResult,
    )
    from kaged.pipeline.pipeline import LoadReport, Pipeline, PipelineStatus
    from kaged.pipeline.plugin import Plugin
    from kaged.pipeline.records import ControlExecutionRecord, ControlExecutionStatus
    from kaged.pipeline.results import PluginResult
    from kaged.pipeline.runner import Runner
    from kaged.pipeline.settings import PluginCondition, PluginConfig
    from kaged.pipeline.slots import (
        AgentExtension,
        CompletionExtension,
        ConversationContext,
        DataPolicy,
        DelegationExtension,
        DelegationHop,
        Extensions,
        FrameworkExtension,
        HttpExtension,
        LLMExtension,
        MCPExtension,
        MetaExtension,
        ObjectSecurityProfile,
        PromptMetadata,
        ProvenanceExtension,
        RequestExtension,
        ResourceMetadata,
        RetentionPolicy,
        SecurityExtension,
        StopReason,
        SubjectExtension,
        SubjectType,
        TokenUsage,
        ToolMetadata,
    )
    from kaged.pipeline.tiers import (
        SLOT_POLICIES,
        AccessPolicy,
        MutabilityTier,
        SlotName,
        SlotPolicy,
        TierViolationError,
    )
    from kaged.pipeline.violations import PluginViolation
    from kaged.pipeline.watchers import PipelineObserver

_HOMES = {
    "SLOT_POLICIES": "tiers",
    "AccessPolicy": "tiers",
    "AgentExtension": "slots",
    "AgentPostInvokePayload": "payloads",
    "AgentPostInvokeResult": "payloads",
    "AgentPreInvokePayload": "payloads",
    "AgentPreInvokeResult": "payloads",
    "Capability": "tiers",
    "CompletionExtension": "slots",
    "ControlExecutionRecord": "records",
    "ControlExecutionStatus": "records",
    "ConversationContext": "slots",
    "DataPolicy": "slots",
    "DelegationExtension": "slots",
    "DelegationHop": "slots",
    "DiscardedChange": "merge",
    "Extensions": "slots",
    "FrameworkExtension": "slots",
    "GlobalContext": "contexts",
    "HttpExtension": "slots",
    "HttpHeaderPayload": "payloads",
    "LLMExtension": "slots",
    "LoadReport": "pipeline",
    "MCPExtension": "slots",
    "MetaExtension": "slots",
    "MutabilityTier": "tiers",
    "ObjectSecurityProfile": "slots",
    "OnError": "modes",
    "PayloadSizeError": "errors",
    "Pipeline": "pipeline",
    "PipelineDocument": "document",
    "PipelineNotReady": "errors",
    "PipelineObserver": "watchers",
    "PipelineStatus": "pipeline",
    "Plugin": "plugin",
    "PluginCondition": "settings",
    "PluginConfig": "settings",
    "PluginContext": "contexts",
    "PluginContextTable": "contexts",
    "PluginError": "errors",
    "PluginErrorModel": "errors",
    "PluginMode": "modes",
    "PluginPayload": "payloads",
    "PluginResult": "results",
    "PluginViolation": "results",
    "PluginViolationError": "errors",
    "PromptMetadata": "slots",
    "PromptPosthookPayload": "payloads",
    "PromptPosthookResult": "payloads",
    "PromptPrehookPayload": "payloads",
    "PromptPrehookResult": "payloads",
    "ProvenanceExtension": "slots",
    "RequestExtension": "slots",
    "ResourceMetadata": "slots",
    "ResourcePostFetchPayload": "payloads",
    "ResourcePostFetchResult": "payloads",
    "ResourcePreFetchPayload": "payloads",
    "ResourcePreFetchResult": "payloads",
    "RetentionPolicy": "slots",
    "Runner": "runner",
    "SecurityExtension": "slots",
    "SlotName": "tiers",
    "SlotPolicy": "tiers",
    "StopReason": "slots",
    "SubjectExtension": "slots",
    "SubjectType": "slots",
    "TierViolationError": "tiers",
    "TokenUsage": "slots",
    "ToolMetadata": "slots",
    "ToolPostInvokePayload": "payloads",
    "ToolPostInvokeResult": "payloads",
    "ToolPreInvokePayload": "payloads",
    "ToolPreInvokeResult": "payloads",
    "UserContext": "contexts",
    "filter_extensions": "filter",
    "hook": "decorator",
    "merge_extensions": "merge",
    "parse_document": "document",
    "validate_tier_constraints": "constraints",
}


def __getattr__(name: str) -> object:
    """Find an exported name in its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


__all__ = [
    "SLOT_POLICIES",
    "AccessPolicy",
    "AgentExtension",
    "AgentPostInvokePayload",
    "AgentPostInvokeResult",
    "AgentPreInvokePayload",
    "AgentPreInvokeResult",
    "Capability",
    "CompletionExtension",
    "ControlExecutionRecord",
    "ControlExecutionStatus",
    "ConversationContext",
    "DataPolicy",
    "DelegationExtension",
    "DelegationHop",
    "DiscardedChange",
    "Extensions",
    "FrameworkExtension",
    "GlobalContext",
    "HttpExtension",
    "HttpHeaderPayload",
    "LLMExtension",
    "LoadReport",
    "MCPExtension",
    "MetaExtension",
    "MutabilityTier",
    "ObjectSecurityProfile",
    "OnError",
    "PayloadSizeError",
    "Pipeline",
    "PipelineDocument",
    "PipelineNotReady",
    "PipelineObserver",
    "PipelineStatus",
    "Plugin",
    "PluginCondition",
    "PluginConfig",
    "PluginContext",
    "PluginContextTable",
    "PluginError",
    "PluginErrorModel",
    "PluginMode",
    "PluginPayload",
    "PluginResult",
    "PluginViolation",
    "PluginViolationError",
    "PromptMetadata",
    "PromptPosthookPayload",
    "PromptPosthookResult",
    "PromptPrehookPayload",
    "PromptPrehookResult",
    "ProvenanceExtension",
    "RequestExtension",
    "ResourceMetadata",
    "ResourcePostFetchPayload",
    "ResourcePostFetchResult",
    "ResourcePreFetchPayload",
    "ResourcePreFetchResult",
    "RetentionPolicy",
    "Runner",
    "SecurityExtension",
    "SlotName",
    "SlotPolicy",
    "StopReason",
    "SubjectExtension",
    "SubjectType",
    "TierViolationError",
    "TokenUsage",
    "ToolMetadata",
    "ToolPostInvokePayload",
    "ToolPostInvokeResult",
    "ToolPreInvokePayload",
    "ToolPreInvokeResult",
    "UserContext",
    "filter_extensions",
    "hook",
    "merge_extensions",
    "parse_document",
    "validate_tier_constraints",
]
