"""Which names a published plugin may import, and where they are here: one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, TypeAlias

_Names: TypeAlias = dict[str, tuple[str, str]]


def _from(module: str, names: str) -> _Names:
    """Return, for each of the names, our module that holds it and its name there."""
    return {name: (f"kaged.pipeline.{module}", name) for name in names.split()}


_AGENTS = _from(
    "payloads.calls",
    "AgentHookType AgentPostInvokePayload AgentPostInvokeResult AgentPreInvokePayload"
    " AgentPreInvokeResult",
)
_CMF = _from(
    "payloads.messages",
    "AudioContentPart Channel ContentPart ContentType DocumentContentPart ImageContentPart Message"
    " PromptRequest PromptRequestContentPart PromptResult PromptResultContentPart Resource"
    " ResourceContentPart ResourceRefContentPart ResourceReference ResourceType Role TextContent"
    " ThinkingContent ToolCall ToolCallContentPart ToolResult ToolResultContentPart"
    " VideoContentPart",
)
_DENIALS = _from("records", "DenialExecutionRecord DenialOutcome")
_ERRORS = _from(
    "errors", "PluginError PluginErrorModel PluginViolationError convert_exception_to_error"
)
_EXTENSIONS = {
    "agent": _from("slots", "AgentExtension ConversationContext"),
    "completion": _from("slots", "CompletionExtension StopReason TokenUsage"),
    "delegation": _from("slots", "DelegationExtension DelegationHop"),
    "extensions": _from("slots", "Extensions"),
    "framework": _from("slots", "FrameworkExtension"),
    "http": _from("slots", "HttpExtension"),
    "llm": _from("slots", "LLMExtension"),
    "mcp": _from("slots", "MCPExtension PromptMetadata ResourceMetadata ToolMetadata"),
    "meta": _from("slots", "MetaExtension"),
    "provenance": _from("slots", "ProvenanceExtension"),
    "request": _from("slots", "RequestExtension"),
    "security": _from(
        "slots",
        "DataPolicy ObjectSecurityProfile RetentionPolicy SecurityExtension SubjectExtension"
        " SubjectType",
    ),
}
_HTTP = _from(
    "payloads.calls",
    "HttpAuthCheckPermissionPayload HttpAuthCheckPermissionResult"
    " HttpAuthCheckPermissionResultPayload HttpAuthResolveUserPayload HttpAuthResolveUserResult"
    " HttpHeaderPayload HttpHeaderPayloadResult HttpHookType HttpPostRequestPayload"
    " HttpPostRequestResult HttpPreRequestPayload HttpPreRequestResult",
)
_IDENTITY = _from(
    "payloads.identity",
    "AttenuationConfig DelegationPayload DelegationResult IdentityHookType IdentityPayload"
    " IdentityResolveResult IdentityResult TokenDelegateResult",
)
_MANAGERS = _from("cpex_api.manager", "PluginManager TenantPluginManager get_plugin_manager")
_MODELS = {
    **_from("contexts", "GlobalContext PluginContext PluginContextTable UserContext"),
    **_from("records", "ControlExecutionRecord ControlExecutionStatus PluginViolation"),
    **_from("results", "PluginResult"),
    **_from("settings", "PluginCondition PluginConfig"),
    **_from("modes", "OnError PluginMode"),
    **_from("errors", "PluginErrorModel"),
    **_from("payloads.base", "PluginPayload"),
    **_from("cpex_api.models", "Config MCPClientConfig MCPServerConfig TransportType"),
}
_PROMPTS = _from(
    "payloads.calls",
    "PromptHookType PromptPosthookPayload PromptPosthookResult PromptPrehookPayload"
    " PromptPrehookResult",
)
_RESOURCES = _from(
    "payloads.calls",
    "ResourceHookType ResourcePostFetchPayload ResourcePostFetchResult ResourcePreFetchPayload"
    " ResourcePreFetchResult",
)
_TIERS = _from("tiers", "AccessPolicy Capability MutabilityTier SlotName TierViolationError")
_TOOLS = _from(
    "payloads.calls",
    "ToolHookType ToolPostInvokePayload ToolPostInvokeResult ToolPreInvokePayload"
    " ToolPreInvokeResult",
)

_FRAMEWORK: dict[str, _Names] = {
    "base": _from("plugin", "Plugin"),
    "cmf": {},
    "constants": _from(
        "cpex_api.constants",
        "NATIVE_PLUGIN_TYPE BUILTIN_PLUGIN_TYPE WASM_PLUGIN_TYPE EXTERNAL_PLUGIN_TYPE"
        " ISOLATED_VENV_PLUGIN_TYPE PDP_PLUGIN_TYPE KNOWN_PLUGIN_KINDS PYTHON_SUFFIX URL SCRIPT CMD"
        " ENV CWD UDS NAME PLUGIN_NAME PAYLOAD CONTEXT RESULT ERROR HOOK_TYPE"
        " IGNORE_CONFIG_EXTERNAL TOOL_METADATA GATEWAY_METADATA MCP_SERVER_NAME"
        " MCP_SERVER_INSTRUCTIONS GET_PLUGIN_CONFIGS GET_PLUGIN_CONFIG INVOKE_HOOK",
    ),
    "cmf.message": _CMF,
    "decorator": _from("plugin", "HookMetadata get_hook_metadata has_hook_metadata hook"),
    "errors": {**_ERRORS, **_DENIALS, **_from("records", "sanitize_denial_metadata")},
    "extensions": {
        **{name: home for names in _EXTENSIONS.values() for name, home in names.items()},
        **_TIERS,
    },
    **{f"extensions.{module}": names for module, names in _EXTENSIONS.items()},
    "extensions.constants": _from("tiers", "SlotName"),
    "extensions.tiers": {
        **_TIERS,
        **_from("tiers", "SlotPolicy"),
        **_from("view", "filter_extensions"),
        **_from("merge", "merge_extensions"),
        **_from("constraints", "validate_tier_constraints"),
    },
    "hooks": {},
    "hooks.agents": _AGENTS,
    "hooks.http": _HTTP,
    "hooks.identity": _IDENTITY,
    "hooks.message": _from(
        "payloads.messages", "CmfHookType MessageHookType MessagePayload MessageResult"
    ),
    "hooks.policies": {
        **_from("edits", "DefaultHookPolicy HookPayloadPolicy"),
        **_from("cpex_api.utils", "apply_policy"),
    },
    "hooks.prompts": _PROMPTS,
    "hooks.registry": {
        **_from("payloads.registry", "HookRegistry"),
        **_from("payloads.registry", "get_hook_registry"),
    },
    "hooks.resources": _RESOURCES,
    "hooks.tools": _TOOLS,
    "loader": {},
    "loader.config": _from("cpex_api.manager", "ConfigLoader"),
    "loader.plugin": _from("cpex_api.manager", "PluginLoader"),
    "manager": _MANAGERS,
    "memory": _from(
        "cpex_api.tracked", "CopyOnWriteDict CopyOnWriteList copyonwrite wrap_payload_for_isolation"
    ),
    "models": _MODELS,
    "observability": _from(
        "cpex_api.spans", "NullObservability ObservabilityProvider current_trace_id"
    ),
    "protocols": _from("cpex_api.protocols", "MessageLike PromptResultLike"),
    "settings": _from("cpex_api.models", "get_settings settings"),
    "utils": {
        **_from("payloads.base", "StructuredData coerce_messages coerce_nested"),
        **_from("settings", "normalize_content_type"),
        **_from(
            "cpex_api.utils",
            "get_attr get_matchable_value import_module matches parse_class_name payload_matches",
        ),
    },
}

CPEX_NAMES: Final = MappingProxyType(
    {
        "cpex": {},
        "cpex.framework": {
            **_MODELS,
            **_TOOLS,
            **_PROMPTS,
            **_RESOURCES,
            **_AGENTS,
            **_HTTP,
            **_ERRORS,
            **_DENIALS,
            **_MANAGERS,
            **_from("payloads.registry", "HookRegistry"),
            **_from("edits", "HookPayloadPolicy"),
            **_from("plugin", "Plugin hook"),
            **_from("cpex_api.manager", "ConfigLoader PluginLoader"),
            **_from("payloads.registry", "get_hook_registry"),
            **_from("cpex_api.spans", "ObservabilityProvider"),
            **_from("cpex_api.utils", "get_attr"),
        },
        **{f"cpex.framework.{module}": names for module, names in _FRAMEWORK.items()},
    }
)
"""For each module of the stand-in: its names, with the module and name behind each."""
