"""Payloads around a call of an agent."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from kaged.pipeline.payloads.base import (
    HttpHeaderPayload,
    PluginPayload,
    coerce_messages,
    warn_of_headers,
)
from kaged.pipeline.results import PluginResult


class AgentHookType(StrEnum):
    """Hooks around an agent call."""

    AGENT_PRE_INVOKE = "agent_pre_invoke"
    AGENT_POST_INVOKE = "agent_post_invoke"


class AgentPreInvokePayload(PluginPayload):
    """An agent that is about to be asked."""

    agent_id: str
    messages: list[Any]
    tools: list[str] | None = None
    headers: HttpHeaderPayload | None = None
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] | None = Field(default_factory=dict)

    @field_validator("headers", mode="before")
    @classmethod
    def _headers(cls, value: object, info: ValidationInfo) -> object:
        return warn_of_headers(value, info, "AgentPreInvokePayload")

    @field_validator("messages", mode="before")
    @classmethod
    def _messages(cls, value: Any) -> Any:
        return coerce_messages(value)


class AgentPostInvokePayload(PluginPayload):
    """What an agent answered."""

    agent_id: str
    messages: list[Any]
    tool_calls: list[dict[str, Any]] | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _messages(cls, value: Any) -> Any:
        return coerce_messages(value)


AgentPreInvokeResult = PluginResult[AgentPreInvokePayload]
AgentPostInvokeResult = PluginResult[AgentPostInvokePayload]
