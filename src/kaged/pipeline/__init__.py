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
    from kaged.pipeline.auditing import PipelineObserver as PipelineObserver
    from kaged.pipeline.constraints import validate_tier_constraints as validate_tier_constraints
    from kaged.pipeline.contexts import GlobalContext as GlobalContext
    from kaged.pipeline.contexts import PluginContext as PluginContext
    from kaged.pipeline.contexts import PluginContextTable as PluginContextTable
    from kaged.pipeline.contexts import UserContext as UserContext
    from kaged.pipeline.discards import DiscardedChange as DiscardedChange
    from kaged.pipeline.document import PipelineDocument as PipelineDocument
    from kaged.pipeline.document import parse_document as parse_document
    from kaged.pipeline.errors import PayloadSizeError as PayloadSizeError
    from kaged.pipeline.errors import PipelineNotReady as PipelineNotReady
    from kaged.pipeline.errors import PluginError as PluginError
    from kaged.pipeline.errors import PluginErrorModel as PluginErrorModel
    from kaged.pipeline.errors import PluginViolationError as PluginViolationError
    from kaged.pipeline.merge import merge_extensions as merge_extensions
    from kaged.pipeline.modes import OnError as OnError
    from kaged.pipeline.modes import PluginMode as PluginMode
    from kaged.pipeline.payloads.base import HttpHeaderPayload as HttpHeaderPayload
    from kaged.pipeline.payloads.base import PluginPayload as PluginPayload
    from kaged.pipeline.payloads.calls import AgentPostInvokePayload as AgentPostInvokePayload
    from kaged.pipeline.payloads.calls import AgentPostInvokeResult as AgentPostInvokeResult
    from kaged.pipeline.payloads.calls import AgentPreInvokePayload as AgentPreInvokePayload
    from kaged.pipeline.payloads.calls import AgentPreInvokeResult as AgentPreInvokeResult
    from kaged.pipeline.payloads.calls import PromptPosthookPayload as PromptPosthookPayload
    from kaged.pipeline.payloads.calls import PromptPosthookResult as PromptPosthookResult
    from kaged.pipeline.payloads.calls import PromptPrehookPayload as PromptPrehookPayload
    from kaged.pipeline.payloads.calls import PromptPrehookResult as PromptPrehookResult
    from kaged.pipeline.payloads.calls import ResourcePostFetchPayload as ResourcePostFetchPayload
    from kaged.pipeline.payloads.calls import ResourcePostFetchResult as ResourcePostFetchResult
    from kaged.pipeline.payloads.calls import ResourcePreFetchPayload as ResourcePreFetchPayload
    from kaged.pipeline.payloads.calls import ResourcePreFetchResult as ResourcePreFetchResult
    from kaged.pipeline.payloads.calls import ToolPostInvokePayload as ToolPostInvokePayload
    from kaged.pipeline.payloads.calls import ToolPostInvokeResult as ToolPostInvokeResult
    from kaged.pipeline.payloads.calls import ToolPreInvokePayload as ToolPreInvokePayload
    from kaged.pipeline.payloads.calls import ToolPreInvokeResult as ToolPreInvokeResult
    from kaged.pipeline.pipeline import LoadReport as LoadReport
    from kaged.pipeline.pipeline import Pipeline as Pipeline
    from kaged.pipeline.pipeline import PipelineStatus as PipelineStatus
    from kaged.pipeline.plugin import Plugin as Plugin
    from kaged.pipeline.plugin import hook as hook
    from kaged.pipeline.records import ControlExecutionRecord as ControlExecutionRecord
    from kaged.pipeline.records import ControlExecutionStatus as ControlExecutionStatus
    from kaged.pipeline.records import PluginViolation as PluginViolation
    from kaged.pipeline.results import PluginResult as PluginResult
    from kaged.pipeline.runner import Runner as Runner
    from kaged.pipeline.settings import PluginCondition as PluginCondition
    from kaged.pipeline.settings import PluginConfig as PluginConfig
    from kaged.pipeline.slots import AgentExtension as AgentExtension
    from kaged.pipeline.slots import CompletionExtension as CompletionExtension
    from kaged.pipeline.slots import ConversationContext as ConversationContext
    from kaged.pipeline.slots import DataPolicy as DataPolicy
    from kaged.pipeline.slots import DelegationExtension as DelegationExtension
    from kaged.pipeline.slots import DelegationHop as DelegationHop
    from kaged.pipeline.slots import Extensions as Extensions
    from kaged.pipeline.slots import FrameworkExtension as FrameworkExtension
    from kaged.pipeline.slots import HttpExtension as HttpExtension
    from kaged.pipeline.slots import LLMExtension as LLMExtension
    from kaged.pipeline.slots import MCPExtension as MCPExtension
    from kaged.pipeline.slots import MetaExtension as MetaExtension
    from kaged.pipeline.slots import ObjectSecurityProfile as ObjectSecurityProfile
    from kaged.pipeline.slots import PromptMetadata as PromptMetadata
    from kaged.pipeline.slots import ProvenanceExtension as ProvenanceExtension
    from kaged.pipeline.slots import RequestExtension as RequestExtension
    from kaged.pipeline.slots import ResourceMetadata as ResourceMetadata
    from kaged.pipeline.slots import RetentionPolicy as RetentionPolicy
    from kaged.pipeline.slots import SecurityExtension as SecurityExtension
    from kaged.pipeline.slots import StopReason as StopReason
    from kaged.pipeline.slots import SubjectExtension as SubjectExtension
    from kaged.pipeline.slots import SubjectType as SubjectType
    from kaged.pipeline.slots import TokenUsage as TokenUsage
    from kaged.pipeline.slots import ToolMetadata as ToolMetadata
    from kaged.pipeline.tiers import SLOT_POLICIES as SLOT_POLICIES
    from kaged.pipeline.tiers import AccessPolicy as AccessPolicy
    from kaged.pipeline.tiers import Capability as Capability
    from kaged.pipeline.tiers import MutabilityTier as MutabilityTier
    from kaged.pipeline.tiers import SlotName as SlotName
    from kaged.pipeline.tiers import SlotPolicy as SlotPolicy
    from kaged.pipeline.tiers import TierViolationError as TierViolationError
    from kaged.pipeline.view import filter_extensions as filter_extensions

_HOMES = {
    name: module
    for module, names in {
        "auditing": "PipelineObserver",
        "constraints": "validate_tier_constraints",
        "contexts": "GlobalContext PluginContext PluginContextTable UserContext",
        "document": "PipelineDocument parse_document",
        "errors": (
            "PayloadSizeError PipelineNotReady PluginError PluginErrorModel PluginViolationError"
        ),
        "discards": "DiscardedChange",
        "merge": "merge_extensions",
        "modes": "OnError PluginMode",
        "payloads.base": "HttpHeaderPayload PluginPayload",
        "payloads.calls": (
            "AgentPostInvokePayload AgentPostInvokeResult AgentPreInvokePayload"
            " AgentPreInvokeResult PromptPosthookPayload PromptPosthookResult"
            " PromptPrehookPayload PromptPrehookResult ResourcePostFetchPayload"
            " ResourcePostFetchResult ResourcePreFetchPayload ResourcePreFetchResult"
            " ToolPostInvokePayload ToolPostInvokeResult ToolPreInvokePayload"
            " ToolPreInvokeResult"
        ),
        "pipeline": "LoadReport Pipeline PipelineStatus",
        "plugin": "Plugin hook",
        "records": "ControlExecutionRecord ControlExecutionStatus PluginViolation",
        "results": "PluginResult",
        "runner": "Runner",
        "settings": "PluginCondition PluginConfig",
        "slots": (
            "AgentExtension CompletionExtension ConversationContext DataPolicy"
            " DelegationExtension DelegationHop Extensions FrameworkExtension HttpExtension"
            " LLMExtension MCPExtension MetaExtension ObjectSecurityProfile PromptMetadata"
            " ProvenanceExtension RequestExtension ResourceMetadata RetentionPolicy"
            " SecurityExtension StopReason SubjectExtension SubjectType TokenUsage ToolMetadata"
        ),
        "tiers": (
            "SLOT_POLICIES AccessPolicy Capability MutabilityTier SlotName SlotPolicy"
            " TierViolationError"
        ),
        "view": "filter_extensions",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    """Find an exported name in its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - the table is the list
