from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from kaged.pipeline import (
    AgentPostInvokePayload,
    AgentPreInvokePayload,
    Extensions,
    HttpHeaderPayload,
    PluginPayload,
    PromptPosthookPayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.payloads.base import (
    HOST,
    MAX_COERCE_BREADTH,
    StructuredData,
    coerce_messages,
    coerce_nested,
)
from kaged.pipeline.payloads.calls import HttpAuthResolveUserPayload, HttpPostRequestPayload
from kaged.pipeline.payloads.identity import IdentityPayload
from kaged.pipeline.payloads.messages import (
    Message,
    MessagePayload,
    Resource,
    ResourceReference,
    TextContent,
)
from kaged.pipeline.payloads.registry import HookRegistry


def test_payloads_are_frozen_and_changed_by_copy() -> None:
    payload = ToolPreInvokePayload(name="t", args={"a": 1})
    with pytest.raises(ValidationError):
        payload.name = "x"
    assert payload.model_copy(update={"name": "x"}).name == "x"


@pytest.mark.parametrize(
    "build",
    [
        lambda: ToolPreInvokePayload.model_validate({"name": "t", "headers": {"a": "b"}}),
        lambda: AgentPreInvokePayload.model_validate(
            {"agent_id": "a", "messages": [], "headers": {"a": "b"}}
        ),
        lambda: HttpPostRequestPayload.model_validate(
            {"path": "/", "method": "GET", "headers": {}}
        ),
        lambda: HttpAuthResolveUserPayload.model_validate({"headers": {}}),
    ],
)
def test_filling_the_header_map_of_a_payload_warns(build: Any) -> None:
    with pytest.warns(DeprecationWarning, match=r"use extensions\.http\.headers"):
        build()


def test_the_host_fills_header_maps_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        payload = ToolPreInvokePayload.model_validate(
            {"name": "t", "headers": {"a": "b"}}, context={HOST: True}
        )
        assert ToolPreInvokePayload(name="t", headers=None).headers is None
    assert payload.headers == HttpHeaderPayload({"a": "b"})


def test_a_header_map_reads_and_writes_like_a_dict() -> None:
    headers = HttpHeaderPayload({"a": "b"})
    headers["c"] = "d"
    assert (headers["a"], list(headers), len(headers)) == ("b", ["a", "c"], 2)
    assert headers.root == {"a": "b", "c": "d"}


def test_nested_data_reads_as_attributes_within_limits() -> None:
    payload = PromptPosthookPayload(
        prompt_id="p", result={"messages": [{"role": "user", "content": {"text": "hi"}}]}
    )
    assert payload.result.messages[0].content.text == "hi"
    assert PromptPosthookPayload(prompt_id="p", result="text").result == "text"
    message = AgentPostInvokePayload(agent_id="a", messages=[{"role": "user"}, "text"]).messages
    assert (message[0].role, message[1]) == ("user", "text")

    class Existing(BaseModel):
        x: int = 1

    model = Existing()
    assert coerce_nested(model) is model
    wide = {str(n): n for n in range(MAX_COERCE_BREADTH + 1)}
    assert coerce_nested(wide) is wide
    assert isinstance(coerce_nested([{"a": 1}])[0], StructuredData)
    long = [1] * (MAX_COERCE_BREADTH + 1)
    assert coerce_nested(long) is long
    deep: Any = {}
    for _ in range(30):
        deep = {"k": deep}
    coerced = coerce_nested(deep)
    for _ in range(20):
        coerced = coerced.k
    assert isinstance(coerced, dict)
    assert coerce_messages("text") == "text"


def test_the_registry_knows_twelve_hooks_at_once_and_eleven_when_asked() -> None:
    registry = HookRegistry()
    assert len(registry.get_registered_hooks()) == 12
    assert registry.is_registered("tool_pre_invoke")
    assert registry.get_payload_type("tool_pre_invoke") is ToolPreInvokePayload
    assert registry.get_result_type("tool_pre_invoke") is not None
    assert registry.get_payload_type("cmf.llm_input") is MessagePayload
    assert registry.get_payload_type("identity_resolve") is IdentityPayload
    assert len(registry.get_registered_hooks()) == 23
    assert registry.get_payload_type("cmf.unknown") is None
    assert registry.get_result_type("my.hook") is None
    registry.register_hook("my.hook", ToolPreInvokePayload)
    assert registry.is_registered("my.hook")


def test_results_are_parsed_from_json_with_their_payload_and_extensions() -> None:
    registry = HookRegistry()
    data = {
        "continue_processing": False,
        "modified_payload": {"name": "x", "args": {"a": 1}},
        "modified_extensions": {"custom": {"k": 1}},
        "violation": {"reason": "r", "description": "d", "code": "c"},
        "metadata": {"m": 1},
        "retry_delay_ms": 4,
        "unknown": True,
    }
    result = registry.json_to_result("tool_pre_invoke", json.dumps(data))
    assert result.modified_payload == ToolPreInvokePayload(name="x", args={"a": 1})
    assert result.modified_extensions == Extensions(custom={"k": 1})
    assert result.violation is not None
    assert result.violation.code == "c"
    assert registry.json_to_result("tool_pre_invoke", {}).continue_processing is True
    user = registry.json_to_result("http_auth_resolve_user", {"modified_payload": {"id": 1}})
    assert user.modified_payload == {"id": 1}
    with pytest.raises(ValueError, match="JSON object"):
        registry.json_to_result("tool_pre_invoke", "[]")
    with pytest.raises(ValueError, match="reason"):
        registry.json_to_result("tool_pre_invoke", {"violation": {"code": "c"}})
    with pytest.raises(ValueError, match="No result"):
        registry.json_to_result("my.hook", {})
    with pytest.raises(ValidationError):
        registry.json_to_result("tool_pre_invoke", {"modified_payload": {"name": 5}})
    parsed = registry.json_to_payload("tool_pre_invoke", {"name": "t", "headers": {"a": "b"}})
    assert isinstance(parsed, ToolPreInvokePayload)


def test_messages_have_typed_parts() -> None:
    payload = MessagePayload.model_validate(
        {
            "message": {
                "role": "user",
                "content": [
                    {"content_type": "text", "text": "hi"},
                    {
                        "content_type": "tool_call",
                        "content": {"tool_call_id": "1", "name": "t"},
                    },
                ],
            },
            "hook": "llm_input",
        }
    )
    assert payload.message.content[0] == TextContent(text="hi")
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "content": [{"content_type": "smell"}]})


def test_a_token_never_shows_in_a_payload() -> None:
    payload = IdentityPayload.model_validate({"raw_token": "s3cret"})
    assert "s3cret" not in repr(payload)
    assert "s3cret" not in payload.model_dump_json()
    assert issubclass(IdentityPayload, PluginPayload)


def test_a_resource_of_a_message_has_one_content_and_a_range_that_goes_forward() -> None:
    base = {"resource_request_id": "r", "uri": "file:///a", "resource_type": "file"}
    with pytest.raises(ValueError, match="cannot have both"):
        Resource.model_validate({**base, "content": "x", "blob": b"x"})
    assert Resource.model_validate({**base, "blob": b"x"}).content is None
    with pytest.raises(ValueError, match=r"range_end.*must be >= range_start"):
        ResourceReference.model_validate({**base, "range_start": 2, "range_end": 1})
    same = ResourceReference.model_validate({**base, "range_start": 2, "range_end": 2})
    assert same.range_end == 2
