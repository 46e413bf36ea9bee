"""The mcp slot: metadata of the tool, resource or prompt that the call is about."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kaged.pipeline.slots.base import Slot


class ToolMetadata(Slot):
    """What is declared about a tool."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    server_id: str | None = None
    namespace: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class ResourceMetadata(Slot):
    """What is declared about a resource."""

    uri: str
    name: str | None = None
    description: str | None = None
    mime_type: str | None = None
    server_id: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class PromptMetadata(Slot):
    """What is declared about a prompt."""

    name: str
    description: str | None = None
    arguments: list[dict[str, Any]] | None = None
    server_id: str | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)


class MCPExtension(Slot):
    """The one of tool, resource and prompt that is called."""

    tool: ToolMetadata | None = None
    resource: ResourceMetadata | None = None
    prompt: PromptMetadata | None = None
