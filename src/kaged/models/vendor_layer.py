"""The vendor's side of a question, in its library's words. Loaded when a model is first asked."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import httpx2
from pydantic_ai import messages as theirs
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from kaged.base import JsonValue
from kaged.config.localconfig import ModelEntry
from kaged.models import turn
from kaged.models.errors import ModelRefused
from kaged.models.vendor_parts import VendorPart, VendorParts, kept_parts

RAW_SHOWN_CHARS: Final = 20_000
OLLAMA_URL: Final = "http://127.0.0.1:11434/v1"
OPENAI_URL: Final = "https://api.openai.com/v1"

# Vendors with a protocol of their own; all others are spoken to as OpenAI is.
_OWN_PROTOCOL: Final = frozenset(
    {"anthropic", "bedrock", "cohere", "google", "google-cloud", "groq", "huggingface", "mistral"}
)
_KEYLESS: Final = frozenset({"bedrock", "google-cloud"})
# Where a question says what the vendor may keep of it for the next one. Others keep it unasked, or
# are servers that need not know the word.
_CACHES_WHEN_ASKED: Final = frozenset({"anthropic", "bedrock", "openrouter"})
_BEDROCK_REGION: Final = re.compile(r"https://bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
# What an agent of a project may ask for. Headers and bodies are the operator's alone.
_REQUEST_SETTINGS: Final = frozenset(
    {
        "frequency_penalty", "max_tokens", "parallel_tool_calls", "presence_penalty", "seed",
        "stop_sequences", "temperature", "thinking", "top_p",
    }
)  # fmt: skip


def open_model(alias: str, entry: ModelEntry, client: httpx2.AsyncClient) -> Model[Any]:
    """Make the library's model for an entry of `[models]`.

    The key is the one in local.toml, or none: variables that a vendor's library would look for in
    the environment do not count.

    Raises:
        ModelRefused: a key or a URL is missing.
    """
    vendor, _, name = entry.model.partition(":")
    key = None if entry.api_key is None else entry.api_key.reveal()
    base_url = OLLAMA_URL if vendor == "ollama" and entry.base_url is None else entry.base_url
    if vendor not in _OWN_PROTOCOL and base_url is not None and vendor != "openai-responses":
        provider = OpenAICompatibleProvider(
            vendor, base_url=base_url, api_key=key, http_client=client
        )
        return OpenAIChatModel(name, provider=provider, profile=_FINISHES)
    if key is None and vendor not in _KEYLESS:
        raise ModelRefused(
            f"[models.{alias}] has no api_key.",
            fix='Write api_key = "${NAME_OF_A_VARIABLE}", or base_url for a server without keys.',
        )
    # `openai` means the protocol that every compatible server speaks, too; and its own server,
    # whatever the environment says.
    kind = "openai-chat" if vendor == "openai" else vendor
    if vendor in {"openai", "openai-responses"} and base_url is None:
        base_url = OPENAI_URL
    given = {"api_key": key, "base_url": base_url, "http_client": client}
    if vendor == "bedrock":
        given["region_name"] = _region(alias, base_url)
    return infer_model(f"{kind}:{name}", lambda wanted: _provider(wanted, given))


def _provider(vendor: str, given: Mapping[str, Any]) -> Provider[Any]:
    made = infer_provider_class(vendor)
    known = inspect.signature(made.__init__).parameters
    return made(**{name: value for name, value in given.items() if name in known and value})


# An answer that just stops was cut off; every server of this protocol says why it ends.
_FINISHES: Final = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)


def _region(alias: str, base_url: str | None) -> str | None:
    """Return the region that a server of Bedrock stands in; None for a server of another name."""
    if base_url is None:
        raise ModelRefused(
            f"[models.{alias}] does not say where its server is.",
            fix='Write base_url = "https://bedrock-runtime.REGION.amazonaws.com".',
        )
    found = _BEDROCK_REGION.match(base_url)
    return found[1] if found else "us-east-1"  # only what is signed names it then


def their_messages(
    messages: Sequence[turn.ModelMessage], model: str = ""
) -> list[theirs.ModelMessage]:
    """Write a window as the library wants it, for the model `vendor:name`.

    Thinking goes back only to the model that thought it, and only if that put its mark on it.
    """
    found: list[theirs.ModelMessage] = []
    asked: list[theirs.ModelRequestPart] = []

    def close() -> None:
        if asked:
            found.append(theirs.ModelRequest(parts=list(asked)))
            asked.clear()

    for message in messages:
        match message:
            case turn.SystemMessage():
                asked.append(theirs.SystemPromptPart(message.text))
            case turn.UserMessage():
                asked.append(theirs.UserPromptPart(message.text))
            case turn.ToolResultMessage():
                asked.append(
                    theirs.ToolReturnPart(
                        message.name,
                        message.content,
                        message.call_id,
                        outcome="failed" if message.is_error else "success",
                    )
                )
            case turn.AssistantMessage():
                close()
                marks = message.parts
                if marks is None or marks.model != model or not still_fits(message, marks):
                    parts = _their_answer(message)
                    if parts:
                        found.append(theirs.ModelResponse(parts=parts))
                    continue
                parts = _their_parts(message, marks)
                found.append(theirs.ModelResponse(parts=parts, provider_name=marks.vendor))
    close()
    return found


def _their_answer(message: turn.AssistantMessage) -> list[theirs.ModelResponsePart]:
    parts: list[theirs.ModelResponsePart] = []
    if message.text:
        parts.append(theirs.TextPart(message.text))
    parts += [
        theirs.ToolCallPart(call.name, _arguments(call), call.id) for call in message.tool_calls
    ]
    return parts


def still_fits(message: turn.AssistantMessage, marks: VendorParts) -> bool:
    """Return whether marks are those of a message as it is now."""
    return marks.fits(message.thinking, message.text, len(message.tool_calls))


def _their_parts(
    message: turn.AssistantMessage, marks: VendorParts
) -> list[theirs.ModelResponsePart]:
    """Write an answer in the parts it came in, with the vendor's marks."""
    parts: list[theirs.ModelResponsePart] = []
    calls = iter(message.tool_calls)
    thought = said = 0
    for one in marks.parts:
        given: dict[str, Any] = {"id": one.id, "provider_details": one.details}
        if one.marked:
            given["provider_name"] = marks.vendor
        match one.kind:
            case "thinking":
                text = message.thinking[thought : thought + one.chars]
                thought += one.chars
                parts.append(theirs.ThinkingPart(text, signature=one.signature, **given))
            case "text":
                text = message.text[said : said + one.chars]
                said += one.chars
                if text:
                    parts.append(theirs.TextPart(text, **given))
            case "call":
                call = next(calls)
                parts.append(theirs.ToolCallPart(call.name, _arguments(call), call.id, **given))
    return parts


def vendor_parts(response: theirs.ModelResponse, model: str) -> VendorParts | None:
    """Return the marks that a vendor put on its answer; None when it wants nothing back."""
    parts: list[VendorPart] = []
    vendor = response.provider_name
    for one in response.parts:
        match one:
            case theirs.ThinkingPart():
                marks = one.id, one.signature, one.provider_details
                parts.append(VendorPart("thinking", len(one.content), *marks))
            case theirs.TextPart():
                parts.append(
                    VendorPart("text", len(one.content), one.id, None, one.provider_details)
                )
            case theirs.ToolCallPart():
                parts.append(VendorPart("call", 0, one.id, None, one.provider_details))
            case _:
                pass
    return None if vendor is None else kept_parts(model, vendor, parts)


def _arguments(call: turn.ModelToolCall) -> str:
    if call.arguments is not None:
        return json.dumps(call.arguments)
    # Servers take arguments apart when they fill in a model's template, so they get an object.
    return json.dumps({"not_json": call.raw[:RAW_SHOWN_CHARS]})


def their_parameters(tools: Sequence[turn.ToolSpec]) -> ModelRequestParameters:
    """Write the tools as the library wants them."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
            )
            for tool in tools
        ]
    )


def their_settings(entry: ModelEntry, request: turn.ModelRequest) -> ModelSettings:
    """Put the operator's settings and the agent's together; attempts are counted by us alone."""
    vendor = entry.model.partition(":")[0]
    caches: dict[str, JsonValue] = {"cache": True} if vendor in _CACHES_WHEN_ASKED else {}
    wanted: dict[str, JsonValue] = {
        **caches,
        **entry.settings,
        **{name: value for name, value in request.settings.items() if name in _REQUEST_SETTINGS},
    }
    wanted["max_retries"] = 0
    return cast("ModelSettings", wanted)
