from __future__ import annotations

from typing import Any

from kaged.pipeline import PluginConfig, PluginMode
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.plan import compile_plan, load_plugin
from unit.pipeline.lab import HOOK, StubPlugin


async def allow(payload: Any, context: Any, extensions: Any = None) -> None: ...


def loaded(name: str, **settings: Any) -> Any:
    config = PluginConfig.model_validate({"name": name, "kind": "a.B", "hooks": [HOOK], **settings})
    return load_plugin(config, name * 32, 9.0, StubPlugin(allow))


def test_a_plan_orders_by_phase_priority_and_place_and_leaves_out_what_does_not_run() -> None:
    plan = compile_plan(
        HOOK,
        [
            loaded("a", mode="audit"),
            loaded("b", priority=5),
            loaded("c", priority=1),
            loaded("d", priority=1),
            loaded("e", mode="disabled"),
            loaded("f", hooks=["other"]),
            loaded("g", mode="fire_and_forget"),
            loaded("h", mode="concurrent"),
            loaded("i", mode="transform"),
        ],
        HookRegistry().kind(HOOK),
        None,
    )
    assert [step.name for step in plan.serial] == ["c", "d", "b", "i", "a"]
    assert [step.name for step in plan.steps] == ["c", "d", "b", "i", "a", "h", "g"]
    assert not plan.empty
    assert compile_plan(HOOK, [], None, None).empty


def test_everything_about_a_step_is_decided_at_load() -> None:
    config = {str(n): n for n in range(100)}
    plan = compile_plan(
        HOOK,
        [loaded("a", config=config, timeout_s=3, capabilities=["read_headers"]), loaded("b")],
        None,
        None,
    )
    first, second = plan.steps
    assert (first.timeout_s, second.timeout_s) == (3, 9.0)
    assert len(first.config_keys) == 64
    assert (first.hides_headers, first.guards_headers) == (False, True)
    assert (second.hides_headers, second.guards_headers) == (True, True)
    assert (first.may_deny, first.may_edit, first.shares_state) == (True, True, True)
    assert first.mode is PluginMode.SEQUENTIAL
    assert first.matches is None
    other = compile_plan("tool_post_invoke", [loaded("a", hooks=["tool_post_invoke"])], None, None)
    assert other.steps[0].hides_headers is False
