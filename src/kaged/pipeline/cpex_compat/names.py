"""Which names a published plugin may import, and where they are here: one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_P = "kaged.pipeline"

_EXTENSIONS = {
    "agent": ("AgentExtension", "ConversationContext"),
    "completion": ("CompletionExtension", "StopReason", "TokenUsage"),
    "delegation": ("DelegationExtension", "DelegationHop"),
    "extensions": ("Extensions",),
    "framework": ("FrameworkExtension",),
    "http": ("HttpExtension",),
    "llm": ("LLMExtension",),
    "mcp": ("MCPExtension", "PromptMetadata", "ResourceMetadata", "ToolMetadata"),
    "meta": ("MetaExtension",),
    "provenance": ("ProvenanceExtension",),
    "request": ("RequestExtension",),
    "security": (
        "DataPolicy",
        "ObjectSecurityProfile",
        "RetentionPolicy",
        "SecurityExtension",
        "SubjectExtension",
        "SubjectType",
    ),
}
_TIERS = (
    "AccessPolicy",
    "Capability",
    "MutabilityTier",
    "SlotName",
    "SlotPolicy",
    "TierViolationError",
)
_CONTEXTS = ("GlobalContext", "PluginContext", "PluginContextTable", "UserContext")
_RECORDS = ("ControlExecutionRecord", "ControlExecutionStatus")
_DENIALS = ("DenialExecutionRecord", "DenialOutcome")
_ERRORS = ("PluginError", "PluginErrorModel", "PluginViolationError", "convert_exception_to_error")
_RESULTS = ("PluginResult", "PluginViolation")
_SETTINGS = ("PluginCondition", "PluginConfig")
_TOOLS = (
    "ToolHookType",
    "ToolPostInvokePayload",
    "ToolPostInvokeResult",
    "ToolPreInvokePayload",
    "ToolPreInvokeResult",
)
_PROMPTS = (
    "PromptHookType",
    "PromptPosthookPayload",
    "PromptPosthookResult",
    "PromptPrehookPayload",
    "PromptPrehookResult",
)
_RESOURCES = (
    "ResourceHookType",
    "ResourcePostFetchPayload",
    "ResourcePostFetchResult",
    "ResourcePreFetchPayload",
    "ResourcePreFetchResult",
)
_AGENTS = (
    "AgentHookType",
    "AgentPostInvokePayload",
    "AgentPostInvokeResult",
    "AgentPreInvokePayload",
    "AgentPreInvokeResult",
)
_HTTP = (
    "HttpAuthCheckPermissionPayload",
    "HttpAuthCheckPermissionResult",
    "HttpAuthCheckPermissionResultPayload",
    "HttpAuthResolveUserPayload",
    "HttpAuthResolveUserResult",
    "HttpHeaderPayload",
    "HttpHeaderPayloadResult",
    "HttpHookType",
    "HttpPostRequestPayload",
    "HttpPostRequestResult",
    "HttpPreRequestPayload",
    "HttpPreRequestResult",
)
_IDENTITY = (
    "AttenuationConfig",
    "DelegationPayload",
    "DelegationResult",
    "IdentityHookType",
    "IdentityPayload",
    "IdentityResolveResult",
    "IdentityResult",
    "TokenDelegateResult",
)
_CMF = (
    "AudioContentPart",
    "Channel",
    "ContentPart",
    "ContentType",
    "DocumentContentPart",
    "ImageContentPart",
    "Message",
    "PromptRequest",
    "PromptRequestContentPart",
    "PromptResult",
    "PromptResultContentPart",
    "Resource",
    "ResourceContentPart",
    "ResourceRefContentPart",
    "ResourceReference",
    "ResourceType",
    "Role",
    "TextContent",
    "ThinkingContent",
    "ToolCall",
    "ToolCallContentPart",
    "ToolResult",
    "ToolResultContentPart",
    "VideoContentPart",
)
_MESSAGES = ("CmfHookType", "MessageHookType", "MessagePayload", "MessageResult")
_MANAGERS = ("PluginManager", "TenantPluginManager", "get_plugin_manager")
_UTILS = (
    "StructuredData",
    "coerce_messages",
    "coerce_nested",
    "get_attr",
    "get_matchable_value",
    "import_module",
    "matches",
    "normalize_content_type",
    "parse_class_name",
    "payload_matches",
)


def _from(module: str, names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    return {name: (f"{_P}.{module}", name) for name in names}


def _models() -> dict[str, tuple[str, str]]:
    return {
        **_from("contexts", _CONTEXTS),
        **_from("records", _RECORDS),
        **_from("results", _RESULTS),
        **_from("settings", _SETTINGS),
        **_from("modes", ("OnError", "PluginMode")),
        **_from("errors", ("PluginErrorModel",)),
        **_from("payloads.base", ("PluginPayload",)),
        **_from(
            "cpex_api.models", ("Config", "MCPClientConfig", "MCPServerConfig", "TransportType")
        ),
    }


def _framework() -> dict[str, tuple[str, str]]:
    payloads = (*_TOOLS, *_PROMPTS, *_RESOURCES, *_AGENTS, *_HTTP)
    return {
        **_models(),
        **_from("payloads", payloads),
        **_from("payloads", ("HookRegistry",)),
        **_from("errors", _ERRORS),
        **_from("records", _DENIALS),
        **_from("edits", ("HookPayloadPolicy",)),
        **_from("plugin", ("Plugin",)),
        **_from("decorator", ("hook",)),
        **_from("cpex_api.manager", _MANAGERS),
        **_from("cpex_api.manager", ("ConfigLoader", "PluginLoader", "get_hook_registry")),
        **_from("cpex_api.spans", ("ObservabilityProvider",)),
        **_from("cpex_api.utils", ("get_attr",)),
    }


def _modules() -> dict[str, dict[str, tuple[str, str]]]:
    table: dict[str, dict[str, tuple[str, str]]] = {
        "cpex": {},
        "cpex.framework": _framework(),
        "cpex.framework.models": _models(),
        "cpex.framework.base": _from("plugin", ("Plugin",)),
        "cpex.framework.decorator": _from(
            "decorator", ("HookMetadata", "get_hook_metadata", "has_hook_metadata", "hook")
        ),
        "cpex.framework.errors": {
            **_from("errors", _ERRORS),
            **_from("records", (*_DENIALS, "sanitize_denial_metadata")),
        },
        "cpex.framework.hooks": {},
        "cpex.framework.hooks.tools": _from("payloads", _TOOLS),
        "cpex.framework.hooks.prompts": _from("payloads", _PROMPTS),
        "cpex.framework.hooks.resources": _from("payloads", _RESOURCES),
        "cpex.framework.hooks.agents": _from("payloads", _AGENTS),
        "cpex.framework.hooks.http": _from("payloads", _HTTP),
        "cpex.framework.hooks.identity": _from("payloads.identity", _IDENTITY),
        "cpex.framework.hooks.message": _from("payloads.messages", _MESSAGES),
        "cpex.framework.hooks.policies": _from("edits", ("DefaultHookPolicy", "HookPayloadPolicy")),
        "cpex.framework.hooks.registry": {
            **_from("payloads", ("HookRegistry",)),
            **_from("cpex_api.manager", ("get_hook_registry",)),
        },
        "cpex.framework.extensions.tiers": {
            **_from("tiers", _TIERS),
            **_from("filter", ("filter_extensions",)),
            **_from("merge", ("merge_extensions",)),
            **_from("constraints", ("validate_tier_constraints",)),
        },
        "cpex.framework.extensions.constants": _from("tiers", ("SlotName",)),
        "cpex.framework.memory": _from(
            "cpex_api.memory",
            ("CopyOnWriteDict", "CopyOnWriteList", "copyonwrite", "wrap_payload_for_isolation"),
        ),
        "cpex.framework.settings": _from("cpex_api.environment", ("get_settings", "settings")),
        "cpex.framework.utils": _from("cpex_api.utils", _UTILS),
        "cpex.framework.loader": {},
        "cpex.framework.loader.config": _from("cpex_api.manager", ("ConfigLoader",)),
        "cpex.framework.loader.plugin": _from("cpex_api.manager", ("PluginLoader",)),
        "cpex.framework.manager": _from("cpex_api.manager", _MANAGERS),
        "cpex.framework.observability": _from(
            "cpex_api.spans", ("NullObservability", "ObservabilityProvider", "current_trace_id")
        ),
        "cpex.framework.cmf": {},
        "cpex.framework.cmf.message": _from("payloads.messages", _CMF),
    }
    everything: dict[str, tuple[str, str]] = {}
    for module, names in _EXTENSIONS.items():
        here = _from("slots", names)
        table[f"cpex.framework.extensions.{module}"] = here
        everything |= here
    table["cpex.framework.extensions"] = {
        **everything,
        **_from("tiers", tuple(name for name in _TIERS if name != "SlotPolicy")),
    }
    return table


CPEX_NAMES: Final = MappingProxyType(_modules())
"""For each module of the stand-in: its names, with the module and name behind each."""

__all__ = ["CPEX_NAMES"]
