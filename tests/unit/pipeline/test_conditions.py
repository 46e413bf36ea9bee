from __future__ import annotations

import pytest

from kaged.pipeline import (
    AgentPreInvokePayload,
    GlobalContext,
    PluginCondition,
    PromptPrehookPayload,
    ResourcePreFetchPayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.conditions import compile_conditions, matchable_value
from kaged.pipeline.payloads.identity import DelegationPayload

TOOL = ToolPreInvokePayload(name="db.query")


def ask(condition: PluginCondition, context: GlobalContext, payload: object = TOOL) -> bool:
    test = compile_conditions([condition], "tool_pre_invoke")
    assert test is not None
    return test(payload, context)


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        (PluginCondition(server_ids=frozenset({"s"})), GlobalContext("r", server_id="s"), True),
        (PluginCondition(server_ids=frozenset({"s"})), GlobalContext("r"), False),
        (PluginCondition(tenant_ids=frozenset({"t"})), GlobalContext("r", tenant_id="t"), True),
        (PluginCondition(tenant_ids=frozenset({"t"})), GlobalContext("r", tenant_id="x"), False),
        (
            PluginCondition(content_types=["Application/JSON; charset=x"]),
            GlobalContext("r", content_type="application/json; q=1"),
            True,
        ),
        (PluginCondition(content_types=["text/plain"]), GlobalContext("r"), False),
        (PluginCondition(user_patterns=["adm"]), GlobalContext("r", user="the-admin"), True),
        (PluginCondition(user_patterns=["adm"]), GlobalContext("r", user="bob"), False),
        (PluginCondition(user_patterns=["adm"]), GlobalContext("r"), False),
        (PluginCondition(user_patterns=["x@y"]), GlobalContext("r", user={"email": "x@y"}), True),
        (PluginCondition(user_patterns=["id7"]), GlobalContext("r", user={"id": "id7"}), True),
        (PluginCondition(user_patterns=["email"]), GlobalContext("r", user={"email": 5}), False),
        (PluginCondition(tools=frozenset({"db.query"})), GlobalContext("r"), True),
        (PluginCondition(tools=frozenset({"other"})), GlobalContext("r"), False),
        (
            PluginCondition(tools=frozenset({"db.query"}), tenant_ids=frozenset({"t"})),
            GlobalContext("r"),
            False,
        ),
    ],
)
def test_all_given_parts_of_a_condition_must_match(
    condition: PluginCondition, context: GlobalContext, expected: bool
) -> None:
    assert ask(condition, context) is expected


def test_several_conditions_are_alternatives_and_none_means_always() -> None:
    either = compile_conditions(
        [
            PluginCondition(tools=frozenset({"other"})),
            PluginCondition(tenant_ids=frozenset({"t"})),
        ],
        "tool_pre_invoke",
    )
    assert either is not None
    assert either(TOOL, GlobalContext("r", tenant_id="t"))
    assert not either(TOOL, GlobalContext("r"))
    assert compile_conditions([], "tool_pre_invoke") is None


def test_a_part_for_another_family_is_ignored_and_a_payload_without_a_value_passes() -> None:
    assert (
        compile_conditions([PluginCondition(prompts=frozenset({"x"}))], "tool_pre_invoke") is None
    )
    assert compile_conditions([PluginCondition(tools=frozenset({"x"}))], "my.hook") is None
    assert ask(PluginCondition(tools=frozenset({"x"})), GlobalContext("r"), object())


def test_each_family_looks_at_its_own_value() -> None:
    for hook, payload, value in (
        ("tool_post_invoke", TOOL, "db.query"),
        ("prompt_pre_fetch", PromptPrehookPayload(prompt_id="p"), "p"),
        ("resource_pre_fetch", ResourcePreFetchPayload(uri="u"), "u"),
        ("agent_pre_invoke", AgentPreInvokePayload(agent_id="a", messages=[]), "a"),
        ("token_delegate", DelegationPayload(target_name="t"), "t"),
        ("my.hook", TOOL, None),
    ):
        assert matchable_value(payload, hook) == value


def test_conditions_are_written_back_sorted() -> None:
    condition = PluginCondition(tools=frozenset({"b", "a"}))
    assert condition.model_dump()["tools"] == ["a", "b"]
    assert condition.model_dump()["prompts"] is None
