from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest
from pydantic import BaseModel

from kaged.pipeline import (
    GlobalContext,
    HttpHeaderPayload,
    Plugin,
    PluginPayload,
    PluginResult,
    PluginViolation,
    ResourcePostFetchPayload,
    ResourcePreFetchPayload,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.answers import accept_answer
from kaged.pipeline.chain import Chain
from kaged.pipeline.edits import (
    DefaultHookPolicy,
    HookPayloadPolicy,
    accept_payload,
    apply_policy,
    resolve_policy,
)
from kaged.pipeline.isolation import isolate_payload
from kaged.pipeline.payloads.base import HOST
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.plan import compile_plan, load_plugin
from kaged.pipeline.settings import PluginConfig
from raising import raises_code
from unit.pipeline.lab import CALL, HOOK, Lab, StubPlugin, entry

KIND = HookRegistry().kind(HOOK)


class Text(str):
    __slots__ = ()


def a_chain(mode: str = "sequential") -> tuple[Any, Chain]:
    config = PluginConfig.model_validate(
        {"name": "p", "kind": "a.B", "hooks": [HOOK], "mode": mode}
    )

    async def call(payload: Any, context: Any, extensions: Any) -> None: ...

    plugin = load_plugin(config, "0" * 32, 1.0, StubPlugin(call))
    plan = compile_plan(HOOK, [plugin], KIND, None)
    return plan.steps[0], Chain(plan, CALL, GlobalContext("r"), None, None, copy_context())


def took(answer: Any, mode: str = "sequential") -> Any:
    step, chain = a_chain(mode)
    return accept_answer(step, chain, CALL, answer)


def test_a_plain_allow_needs_no_further_look() -> None:
    assert took(None) is None
    assert took(PluginResult()) is None
    assert took(PluginResult(continue_processing=True)) is None
    said_yes = PluginResult[Any]()
    said_yes.continue_processing = True
    assert took(said_yes) is None


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ("text", "str"),
        (PluginResult(continue_processing="no"), "not a bool"),  # pyright: ignore[reportArgumentType] - a lie
        (PluginResult(continue_processing=False, violation=5), "PluginViolation"),  # pyright: ignore[reportArgumentType] - a lie
        (PluginResult(metadata=[1]), "not a dict"),  # pyright: ignore[reportArgumentType] - a lie
        (PluginResult(retry_delay_ms=-1), "sensible"),
    ],
)
def test_answers_of_wrong_types_are_refused_with_a_reason(answer: Any, word: str) -> None:
    with raises_code("pipeline_foreign_result", match=word) as caught:
        took(answer)
    assert caught.value.fix


def test_a_denial_is_taken_with_its_reason_and_metrics() -> None:
    deny = PluginResult(
        continue_processing=False,
        violation=PluginViolation("r", "d", "c"),
        denial_metadata={"n": 1},
        modified_payload=CALL.model_copy(update={"name": "x"}),
    )
    accepted = took(deny)
    assert accepted.denied
    assert accepted.violation.plugin_name == "p"
    assert accepted.denial_metadata == {"n": 1}
    assert accepted.payload is None
    assert took(deny, "transform").payload.name == "x"
    assert took(deny, "audit").payload is None


def test_a_known_hook_takes_its_own_payload_class_only() -> None:
    class Sub(ToolPreInvokePayload):
        extra: int = 5

    accepted = accept_payload(CALL, Sub(name="x", args={"a": [1]}), KIND, "p")
    assert type(accepted) is ToolPreInvokePayload
    assert accepted == ToolPreInvokePayload(name="x", args={"a": [1]})
    for foreign in ("x", {"name": "x"}, PluginPayload(), HttpHeaderPayload({})):
        with raises_code("pipeline_foreign_payload"):
            accept_payload(CALL, foreign, KIND, "p")
    with raises_code("pipeline_foreign_payload", match="does not fit"):
        accept_payload(CALL, CALL.model_copy(update={"args": 5}), KIND, "p")


def test_hooks_without_a_registered_payload_take_payloads_and_dicts() -> None:
    given = {"a": [1]}
    accepted = accept_payload({}, given, None, "p")
    assert accepted == given
    assert accepted["a"] is not given["a"]
    assert accept_payload({}, CALL, None, "p") == CALL
    with raises_code("pipeline_foreign_payload"):
        accept_payload({}, [1], None, "p")


def test_hooks_that_give_back_another_type_take_that_type() -> None:
    registry = HookRegistry()
    resolve = registry.kind("http_auth_resolve_user")
    assert accept_payload(CALL, {"id": 1}, resolve, "p") == {"id": 1}
    with raises_code("pipeline_foreign_payload"):
        accept_payload(CALL, CALL, resolve, "p")
    request = registry.kind("http_pre_request")
    headers = HttpHeaderPayload({"a": "b"})
    assert accept_payload(CALL, headers, request, "p") == headers


def test_a_policy_takes_over_writable_fields_only() -> None:
    given = CALL
    edited = CALL.model_copy(update={"name": "x", "args": {"n": 1}})
    both = HookPayloadPolicy(frozenset({"name", "args"}))
    assert apply_policy(given, edited, both, CALL) == edited
    changed = apply_policy(given, edited, HookPayloadPolicy(frozenset({"name"})), CALL)
    assert changed == CALL.model_copy(update={"name": "x"})
    assert apply_policy(given, CALL, both, CALL) is None
    assert resolve_policy(HOOK, {HOOK: both}, DefaultHookPolicy.DENY) is both
    assert resolve_policy(HOOK, {}, DefaultHookPolicy.ALLOW) is None
    closed = resolve_policy(HOOK, {}, DefaultHookPolicy.DENY)
    assert closed is not None
    assert closed.writable_fields == frozenset()


async def test_a_dict_given_back_by_an_auth_hook_is_the_result_and_the_payload_stays() -> None:
    got: list[Any] = []

    class Resolve(Plugin):
        async def http_auth_resolve_user(self, payload: Any, context: Any) -> PluginResult[Any]:
            got.append(payload)
            return PluginResult(modified_payload={"user": self.name})

    from kaged.pipeline.payloads.base import HOST
    from kaged.pipeline.payloads.calls import HttpAuthResolveUserPayload

    payload = HttpAuthResolveUserPayload.model_validate({"headers": {}}, context={HOST: True})
    hooks = ["http_auth_resolve_user"]
    lab = await Lab.of(entry(Resolve, name="a", hooks=hooks), entry(Resolve, name="b", hooks=hooks))
    result = await lab.call(payload, hook="http_auth_resolve_user")
    assert result.modified_payload == {"user": "b"}
    assert got == [payload, payload]


@pytest.mark.parametrize(
    ("hook", "given", "updates"),
    [
        (HOOK, CALL, {"args": {"a": [1, {"b": 2}], "c": None}}),
        (HOOK, CALL, {"args": None}),
        (HOOK, CALL, {"args": {"a": Text("x")}}),
        (HOOK, CALL, {"args": {Text("a"): 1}}),
        (HOOK, CALL, {"name": Text("other")}),
        (HOOK, CALL, {"headers": HttpHeaderPayload(root={"x": "y"})}),
        ("tool_post_invoke", ToolPostInvokePayload(name="t", result=1), {"result": {"a": [1]}}),
        ("tool_post_invoke", ToolPostInvokePayload(name="t", result=1), {"result": {1: {2: 3}}}),
        ("resource_pre_fetch", ResourcePreFetchPayload(uri="u"), {"metadata": {"a": {"b": 1}}}),
        ("resource_post_fetch", ResourcePostFetchPayload(uri="u", content=1), {"content": "x"}),
    ],
)
def test_an_edit_that_needs_no_validation_is_taken_as_validation_would_leave_it(
    hook: str, given: Any, updates: dict[str, Any]
) -> None:
    returned = given.model_copy(update=updates)
    taken = accept_payload(given, returned, HookRegistry().kind(hook), "p")
    parsed = type(given).model_validate(isolate_payload(dict(returned)), context={HOST: True})
    assert type(taken) is type(given)
    assert taken == parsed
    assert repr(taken) == repr(parsed)
    assert isinstance(taken, BaseModel)
    assert taken.model_dump() == parsed.model_dump()
    for name, value in dict(taken).items():
        if isinstance(value, (dict, list)):
            assert value is not dict(returned)[name], "a copy in the host's hands"
            assert type(value) in (dict, list)


@pytest.mark.parametrize("args", [{1: 2}, [1], "text"])
def test_an_edit_that_does_not_fit_is_refused(args: Any) -> None:
    with raises_code("pipeline_foreign_payload"):
        accept_payload(CALL, CALL.model_copy(update={"args": args}), KIND, "p")


def test_what_a_plugin_changes_later_in_its_payload_counts_no_more() -> None:
    args = {"a": [1]}
    taken = accept_payload(CALL, CALL.model_copy(update={"args": args}), KIND, "p")
    args["a"].append(2)
    args["b"] = [3]
    assert taken.args == {"a": [1]}
