"""Payloads of the hooks around tools, prompts, resources, agents and HTTP requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from kaged.pipeline.payloads.base import (
    HttpHeaderPayload,
    PayloadWithHeaders,
    PluginPayload,
    coerce_messages,
    coerce_nested,
)
from kaged.pipeline.results import PluginResult


class ToolHookType(StrEnum):
    """Hooks around a tool call."""

    TOOL_PRE_INVOKE = "tool_pre_invoke"
    TOOL_POST_INVOKE = "tool_post_invoke"


class PromptHookType(StrEnum):
    """Hooks around fetching a prompt."""

    PROMPT_PRE_FETCH = "prompt_pre_fetch"
    PROMPT_POST_FETCH = "prompt_post_fetch"


class ResourceHookType(StrEnum):
    """Hooks around fetching a resource."""

    RESOURCE_PRE_FETCH = "resource_pre_fetch"
    RESOURCE_POST_FETCH = "resource_post_fetch"


class ToolPreInvokePayload(PayloadWithHeaders):
    """A tool that is about to be called."""

    name: str
    args: dict[str, Any] | None = Field(default_factory=dict)
    headers: HttpHeaderPayload | None = None


class ToolPostInvokePayload(PluginPayload):
    """What a tool answered."""

    name: str
    result: Any


class PromptPrehookPayload(PluginPayload):
    """A prompt that is about to be rendered."""

    prompt_id: str
    args: dict[str, str] | None = Field(default_factory=dict)


class PromptPosthookPayload(PluginPayload):
    """A rendered prompt; nested dicts read as attributes."""

    prompt_id: str
    result: Any

    @field_validator("result", mode="before")
    @classmethod
    def _result(cls, value: Any) -> Any:
        return coerce_nested(value) if isinstance(value, dict) else value


class ResourcePreFetchPayload(PluginPayload):
    """A resource that is about to be read."""

    uri: str
    metadata: dict[str, Any] | None = Field(default_factory=dict)


class ResourcePostFetchPayload(PluginPayload):
    """What a resource contained."""

    uri: str
    content: Any


ToolPreInvokeResult = PluginResult[ToolPreInvokePayload]
ToolPostInvokeResult = PluginResult[ToolPostInvokePayload]
PromptPrehookResult = PluginResult[PromptPrehookPayload]
PromptPosthookResult = PluginResult[PromptPosthookPayload]
ResourcePreFetchResult = PluginResult[ResourcePreFetchPayload]
ResourcePostFetchResult = PluginResult[ResourcePostFetchPayload]


class AgentHookType(StrEnum):
    """Hooks around an agent call."""

    AGENT_PRE_INVOKE = "agent_pre_invoke"
    AGENT_POST_INVOKE = "agent_post_invoke"


class AgentPreInvokePayload(PayloadWithHeaders):
    """An agent that is about to be asked."""

    agent_id: str
    messages: Annotated[list[Any], BeforeValidator(coerce_messages)]
    tools: list[str] | None = None
    headers: HttpHeaderPayload | None = None
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] | None = Field(default_factory=dict)


class AgentPostInvokePayload(PluginPayload):
    """What an agent answered."""

    agent_id: str
    messages: Annotated[list[Any], BeforeValidator(coerce_messages)]
    tool_calls: list[dict[str, Any]] | None = None


AgentPreInvokeResult = PluginResult[AgentPreInvokePayload]
AgentPostInvokeResult = PluginResult[AgentPostInvokePayload]


class HttpHookType(StrEnum):
    """Hooks around an HTTP request."""

    HTTP_PRE_REQUEST = "http_pre_request"
    HTTP_POST_REQUEST = "http_post_request"
    HTTP_AUTH_RESOLVE_USER = "http_auth_resolve_user"
    HTTP_AUTH_CHECK_PERMISSION = "http_auth_check_permission"


class HttpPreRequestPayload(PayloadWithHeaders):
    """A request that has come in; plugins may return changed headers."""

    path: str
    method: str
    client_host: str | None = None
    client_port: int | None = None
    headers: HttpHeaderPayload


class HttpPostRequestPayload(HttpPreRequestPayload):
    """A request with its answer."""

    response_headers: HttpHeaderPayload | None = None
    status_code: int | None = None


class HttpAuthResolveUserPayload(PayloadWithHeaders):
    """Credentials of which a plugin may know the user."""

    credentials: dict[str, Any] | None = None
    headers: HttpHeaderPayload
    client_host: str | None = None
    client_port: int | None = None


class HttpAuthCheckPermissionPayload(PluginPayload):
    """A permission that a plugin may grant or refuse."""

    user_email: str
    permission: str
    resource_type: str | None = None
    team_id: str | None = None
    is_admin: bool = False
    auth_method: str | None = None
    client_host: str | None = None
    user_agent: str | None = None


class HttpAuthCheckPermissionResultPayload(PluginPayload):
    """The answer to a permission question."""

    granted: bool
    reason: str | None = None


HttpHeaderPayloadResult = PluginResult[HttpHeaderPayload]
HttpPreRequestResult = PluginResult[HttpHeaderPayload]
HttpPostRequestResult = PluginResult[HttpHeaderPayload]
HttpAuthResolveUserResult = PluginResult[dict[str, Any]]
HttpAuthCheckPermissionResult = PluginResult[HttpAuthCheckPermissionResultPayload]
