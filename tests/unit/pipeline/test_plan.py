from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaged.pipeline import GlobalContext, PluginConfig, PluginMode
from kaged.pipeline.binding import Passing, compile_call
from kaged.pipeline.payloads import HookRegistry
from kaged.pipeline.plan import compile_plan, load_plugin
from unit.pipeline.lab import CALL, HOOK


async def allow(payload: Any, context: Any, extensions: Any = None) -> None: ...


def loaded(name: str, **settings: Any) -> Any:
    config = PluginConfig.model_validate({"name": name, "kind": "a.B", "hooks": [HOOK], **settings})
    return load_plugin(config, name * 32, 9.0, lambda _hook: (allow, Passing.BY_POSITION, ""))


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


class Awaitable:
    """Something to await that is not a coroutine."""

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return "done"


@pytest.mark.parametrize("passing", list(Passing))
async def test_a_hook_is_called_the_way_it_takes_extensions(passing: Passing) -> None:
    got: list[Any] = []

    async def coroutine(*args: Any, **kwargs: Any) -> str:
        got.append((args, kwargs))
        return "done"

    def awaitable(*args: Any, **kwargs: Any) -> Any:
        got.append((args, kwargs))
        return Awaitable()

    context = GlobalContext("r")
    for method in (coroutine, awaitable):
        hook = compile_call(method, passing, "ext")(CALL, context, "view")
        assert len(got) == (method is awaitable), "no code of the plugin has run yet"
        assert await hook == "done"
    expected = {
        Passing.NOT: ((CALL, context), {}),
        Passing.BY_POSITION: ((CALL, context, "view"), {}),
        Passing.BY_KEYWORD: ((CALL, context), {"ext": "view"}),
    }[passing]
    assert got == [expected, expected]
    with pytest.raises(TypeError):
        await compile_call(lambda *_a, **_k: 5, passing, "ext")(CALL, context, "view")  # pyright: ignore[reportArgumentType] - not awaitable
