"""Typed multi-part messages, and the hooks that look at them on their way."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.results import PluginResult


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Channel(StrEnum):
    """What kind of output a message is."""

    ANALYSIS = "analysis"
    COMMENTARY = "commentary"
    FINAL = "final"


class ContentType(StrEnum):
    """What a part of a message holds."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    RESOURCE = "resource"
    RESOURCE_REF = "resource_ref"
    PROMPT_REQUEST = "prompt_request"
    PROMPT_RESULT = "prompt_result"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    DOCUMENT = "document"


class ResourceType(StrEnum):
    """What kind of thing a resource is."""

    FILE = "file"
    BLOB = "blob"
    URI = "uri"
    DATABASE = "database"
    API = "api"
    MEMORY = "memory"
    ARTIFACT = "artifact"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class ToolCall(_Value):
    """A request to run a tool."""

    tool_call_id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    namespace: str | None = None


class ToolResult(_Value):
    """What a tool gave back."""

    tool_call_id: str
    tool_name: str
    content: Any = None
    is_error: bool = False


class Resource(_Value):
    """A resource with its content."""

    resource_request_id: str
    uri: str
    name: str | None = None
    description: str | None = None
    resource_type: ResourceType
    content: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None
    size_bytes: int | None = None
    annotations: dict[str, Any] = Field(default_factory=dict)
    version: str | None = None

    @model_validator(mode="after")
    def _check_one_content(self) -> Self:
        if self.content is not None and self.blob is not None:
            raise ValueError("a resource cannot have both content and blob")
        return self


class ResourceReference(_Value):
    """A resource, or a part of one, without its content."""

    resource_request_id: str
    uri: str
    name: str | None = None
    resource_type: ResourceType
    range_start: int | None = None
    range_end: int | None = None
    selector: str | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        start, end = self.range_start, self.range_end
        if start is not None and end is not None and end < start:
            raise ValueError(f"range_end ({end}) must be >= range_start ({start})")
        return self


class PromptRequest(_Value):
    """A request to render a prompt."""

    prompt_request_id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    server_id: str | None = None


class PromptResult(_Value):
    """A rendered prompt."""

    prompt_request_id: str
    prompt_name: str
    messages: list[Message] = Field(default_factory=list)
    content: str | None = None
    is_error: bool = False
    error_message: str | None = None


class MediaSource(_Value):
    """An image, video, audio or document: by address, or encoded as base64."""

    type: Literal["url", "base64"]
    data: str
    media_type: str | None = None
    duration_ms: int | None = None
    title: str | None = None


class ContentPart(_Value):
    """One part of a message; its `content_type` tells which."""


class TextContent(ContentPart):
    """Plain text."""

    content_type: Literal[ContentType.TEXT] = ContentType.TEXT
    text: str


class ThinkingContent(ContentPart):
    """Reasoning that is not part of the answer."""

    content_type: Literal[ContentType.THINKING] = ContentType.THINKING
    text: str


class ToolCallContentPart(ContentPart):
    """A request to run a tool."""

    content_type: Literal[ContentType.TOOL_CALL] = ContentType.TOOL_CALL
    content: ToolCall


class ToolResultContentPart(ContentPart):
    """What a tool gave back."""

    content_type: Literal[ContentType.TOOL_RESULT] = ContentType.TOOL_RESULT
    content: ToolResult


class ResourceContentPart(ContentPart):
    """A resource with its content."""

    content_type: Literal[ContentType.RESOURCE] = ContentType.RESOURCE
    content: Resource


class ResourceRefContentPart(ContentPart):
    """A reference to a resource."""

    content_type: Literal[ContentType.RESOURCE_REF] = ContentType.RESOURCE_REF
    content: ResourceReference


class PromptRequestContentPart(ContentPart):
    """A request to render a prompt."""

    content_type: Literal[ContentType.PROMPT_REQUEST] = ContentType.PROMPT_REQUEST
    content: PromptRequest


class PromptResultContentPart(ContentPart):
    """A rendered prompt."""

    content_type: Literal[ContentType.PROMPT_RESULT] = ContentType.PROMPT_RESULT
    content: PromptResult


class ImageContentPart(ContentPart):
    """An image."""

    content_type: Literal[ContentType.IMAGE] = ContentType.IMAGE
    content: MediaSource


class VideoContentPart(ContentPart):
    """A video."""

    content_type: Literal[ContentType.VIDEO] = ContentType.VIDEO
    content: MediaSource


class AudioContentPart(ContentPart):
    """A sound."""

    content_type: Literal[ContentType.AUDIO] = ContentType.AUDIO
    content: MediaSource


class DocumentContentPart(ContentPart):
    """A document."""

    content_type: Literal[ContentType.DOCUMENT] = ContentType.DOCUMENT
    content: MediaSource


AnyContentPart = Annotated[
    TextContent
    | ThinkingContent
    | ToolCallContentPart
    | ToolResultContentPart
    | ResourceContentPart
    | ResourceRefContentPart
    | PromptRequestContentPart
    | PromptResultContentPart
    | ImageContentPart
    | VideoContentPart
    | AudioContentPart
    | DocumentContentPart,
    Field(discriminator="content_type"),
]


class Message(_Value):
    """One turn of a conversation, in typed parts."""

    schema_version: str = "2.0"
    role: Role
    content: list[AnyContentPart] = Field(default_factory=list)
    channel: Channel | None = None


class MessageHookType(StrEnum):
    """Where in the life of a message a hook looks at it; `evaluate` is a hook of its own."""

    EVALUATE = "evaluate"
    LLM_INPUT = "llm_input"
    LLM_OUTPUT = "llm_output"
    TOOL_PRE_INVOKE = "tool_pre_invoke"
    TOOL_POST_INVOKE = "tool_post_invoke"
    PROMPT_PRE_FETCH = "prompt_pre_fetch"
    PROMPT_POST_FETCH = "prompt_post_fetch"
    RESOURCE_PRE_FETCH = "resource_pre_fetch"
    RESOURCE_POST_FETCH = "resource_post_fetch"


class CmfHookType(StrEnum):
    """Hooks that get the call as a message."""

    TOOL_PRE_INVOKE = "cmf.tool_pre_invoke"
    TOOL_POST_INVOKE = "cmf.tool_post_invoke"
    LLM_INPUT = "cmf.llm_input"
    LLM_OUTPUT = "cmf.llm_output"
    RESOURCE_PRE_FETCH = "cmf.resource_pre_fetch"
    RESOURCE_POST_FETCH = "cmf.resource_post_fetch"
    PROMPT_PRE_FETCH = "cmf.prompt_pre_fetch"
    PROMPT_POST_FETCH = "cmf.prompt_post_fetch"


class MessagePayload(PluginPayload):
    """A message that passes a hook."""

    message: Message
    hook: MessageHookType = MessageHookType.EVALUATE


MessageResult = PluginResult[MessagePayload]
