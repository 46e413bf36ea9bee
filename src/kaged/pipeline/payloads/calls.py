"""Payloads around tools, prompts and resources, before and after the call."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from kaged.pipeline.payloads.base import (
    HttpHeaderPayload,
    PluginPayload,
    coerce_nested,
    warn_of_headers,
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


class ToolPreInvokePayload(PluginPayload):
    """A tool that is about to be called."""

    name: str
    args: dict[str, Any] | None = Field(default_factory=dict)
    headers: HttpHeaderPayload | None = None

    @field_validator("headers", mode="before")
    @classmethod
    def _headers(cls, value: object, info: ValidationInfo) -> object:
        return warn_of_headers(value, info, "ToolPreInvokePayload")


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
