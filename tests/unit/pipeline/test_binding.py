from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from kaged.pipeline import Plugin, PluginConfig, PluginMode, hook
from kaged.pipeline.binding import HookNotBound, bind_hook
from kaged.pipeline.errors import PluginError
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.payloads.registry import get_hook_registry
from kaged.pipeline.plugin import HookMetadata, get_hook_metadata, has_hook_metadata
from kaged.pipeline.results import PluginResult
from requirements import requirement

CONFIG = PluginConfig(name="p", kind="a.B", hooks=["h"], tags=["t"], priority=7)


def passes_along(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Many(Plugin):
    async def two(self, payload: Any, context: Any) -> Any:
        return ((payload, context), {})

    async def three(self, payload: Any, context: Any, extensions: Any) -> Any:
        return ((payload, context, extensions), {})

    async def three_default(self, payload: Any, context: Any, extensions: Any = None) -> Any:
        return ((payload, context, extensions), {})

    async def star(self, payload: Any, context: Any, *args: Any) -> Any:
        return ((payload, context, *args), {})

    async def keyword_only(self, payload: Any, context: Any, *, ext: Any = None) -> Any:
        return ((payload, context), {"ext": ext})

    async def double_star(self, payload: Any, context: Any, **kw: Any) -> Any:
        return ((payload, context), kw)

    async def anything(self, *args: Any, **kw: Any) -> Any:
        return (args, kw)

    async def one(self, payload: Any) -> None: ...
    async def four(self, payload: Any, context: Any, extensions: Any, more: Any) -> None: ...
    async def split(self, payload: Any, *, context: Any) -> None: ...
    def plain(self, payload: Any, context: Any) -> None: ...

    @passes_along
    async def wrapped(self, payload: Any, context: Any, extensions: Any) -> Any:
        return ((payload, context, extensions), {})

    @passes_along
    def wrapped_plain(self, payload: Any, context: Any) -> None: ...

    @passes_along
    @passes_along
    async def awaited(self, payload: Any, context: Any) -> Any:
        return ((payload, context), {})

    @hook(["first.event", "second.event"])
    async def decorated(self, payload: Any, context: Any) -> str:
        return "decorated"

    @hook("first.event")
    async def z_later(self, payload: Any, context: Any) -> None: ...

    @hook("private.event")
    async def _private(self, payload: Any, context: Any) -> None: ...

    @property
    def trap(self) -> None:
        raise AssertionError("looking for hooks ran a property")


class Later:
    """Something to await that is not a coroutine."""

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return "done"


@requirement("EX-AMB-10")
@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("two", (("payload", "context"), {})),
        ("three", (("payload", "context", "view"), {})),
        ("three_default", (("payload", "context", "view"), {})),
        ("star", (("payload", "context", "view"), {})),
        ("keyword_only", (("payload", "context"), {"ext": "view"})),
        ("double_star", (("payload", "context"), {"extensions": "view"})),
        ("wrapped", (("payload", "context", "view"), {})),
        ("awaited", (("payload", "context"), {})),
        ("anything", (("payload", "context"), {})),
        ("one", None),
        ("four", None),
        ("split", None),
        ("plain", None),
        ("wrapped_plain", None),
    ],
)
async def test_a_hook_is_called_the_way_its_signature_takes_extensions(
    name: str, taken: Any
) -> None:
    plugin = Many(CONFIG)
    if taken is None:
        with pytest.raises(HookNotBound, match=name) as caught:
            bind_hook(plugin, "p", name)
        assert caught.value.fix
    else:
        assert await bind_hook(plugin, "p", name)("payload", "context", "view") == taken


async def test_no_code_of_a_plugin_runs_before_its_hook_is_awaited() -> None:
    got: list[str] = []

    async def wrapped(payload: Any, context: Any) -> None: ...

    @functools.wraps(wrapped)
    def awaitable(payload: Any, context: Any) -> Later:
        got.append("called")
        return Later()

    @functools.wraps(wrapped)
    def number(payload: Any, context: Any) -> int:
        return 5

    plugin = Many(CONFIG)
    plugin.event = awaitable  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    waiting = bind_hook(plugin, "p", "event")(1, 2, 3)
    assert got == []
    assert await waiting == "done"
    assert got == ["called"]
    plugin.event = number  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    with pytest.raises(TypeError):
        await bind_hook(plugin, "p", "event")(1, 2, 3)


async def test_a_hook_is_found_by_name_first_and_then_by_its_mark() -> None:
    plugin = Many(CONFIG)
    assert await bind_hook(plugin, "p", "two")(1, 2, 3) == ((1, 2), {})
    assert await bind_hook(plugin, "p", "first.event")(1, 2, 3) == "decorated"
    assert await bind_hook(plugin, "p", "second.event")(1, 2, 3) == "decorated"
    for unknown in ("third.event", "private.event"):
        with pytest.raises(HookNotBound, match="no method"):
            bind_hook(plugin, "p", unknown)


async def test_a_callable_object_with_an_async_call_is_a_hook_and_a_bare_one_is_not() -> None:
    class Callable:
        async def __call__(self, payload: Any, context: Any) -> str:
            return "called"

    plugin = Many(CONFIG)
    plugin.event = Callable()  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    assert await bind_hook(plugin, "p", "event")(1, 2, 3) == "called"
    plugin.event = print  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    with pytest.raises(HookNotBound, match="not async"):
        bind_hook(plugin, "p", "event")

    class NoSignature:
        __signature__ = "nonsense"

        async def __call__(self, payload: Any, context: Any) -> None: ...

    plugin.event = NoSignature()  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    with pytest.raises(HookNotBound, match="no signature"):
        bind_hook(plugin, "p", "event")


def test_the_mark_remembers_events_and_types() -> None:
    noted = get_hook_metadata(Many.decorated)
    assert noted is not None
    assert noted.hook_type == "first.event"
    assert noted.matches("second.event")
    assert not noted.matches("other")
    assert has_hook_metadata(Many.decorated)
    assert not has_hook_metadata(Many.two)
    assert HookMetadata("a", int, str).payload_type is int


def test_a_plugin_reads_its_configuration() -> None:
    plugin = Plugin(CONFIG)
    assert (plugin.name, plugin.priority, plugin.mode) == ("p", 7, PluginMode.SEQUENTIAL)
    assert (plugin.hooks, plugin.tags, plugin.conditions) == (["h"], ["t"], [])
    assert plugin.config is CONFIG


async def test_a_plugin_parses_json_of_known_hooks_and_its_own() -> None:
    plugin = Plugin(CONFIG, hook_payloads={"mine": ToolPreInvokePayload})
    await plugin.initialize()
    await plugin.shutdown()
    assert plugin.json_to_payload("mine", '{"name": "t"}') == ToolPreInvokePayload(name="t")
    result = plugin.json_to_result("tool_pre_invoke", {"continue_processing": False})
    assert result.continue_processing is False
    with pytest.raises(PluginError, match="other"):
        plugin.json_to_payload("other", {})
    with pytest.raises(PluginError, match="other"):
        plugin.json_to_result("other", {})
    answers = Plugin(CONFIG, hook_results={"other": PluginResult})
    assert answers.json_to_result("other", {"continue_processing": False}).violation is None
    # What a program makes known to its process, each of its plugins knows.
    get_hook_registry().register_hook("of.a.program", ToolPreInvokePayload)
    made = plugin.json_to_payload("of.a.program", {"name": "t"})
    assert made == ToolPreInvokePayload(name="t")
