from __future__ import annotations

import functools
from typing import Any

import pytest

from kaged.pipeline import Plugin, PluginConfig, PluginMode, hook
from kaged.pipeline.binding import HookNotBound, Passing, bind_hook
from kaged.pipeline.decorator import HookMetadata, get_hook_metadata, has_hook_metadata
from kaged.pipeline.payloads import ToolPreInvokePayload
from requirements import requirement

CONFIG = PluginConfig(name="p", kind="a.B", hooks=["h"], tags=["t"], priority=7)


def passes_along(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Many(Plugin):
    async def two(self, payload: Any, context: Any) -> None: ...
    async def three(self, payload: Any, context: Any, extensions: Any) -> None: ...
    async def three_default(self, payload: Any, context: Any, extensions: Any = None) -> None: ...
    async def star(self, payload: Any, context: Any, *args: Any) -> None: ...
    async def keyword_only(self, payload: Any, context: Any, *, ext: Any = None) -> None: ...
    async def double_star(self, payload: Any, context: Any, **kw: Any) -> None: ...
    async def anything(self, *args: Any, **kw: Any) -> None: ...
    async def one(self, payload: Any) -> None: ...
    async def four(self, payload: Any, context: Any, extensions: Any, more: Any) -> None: ...
    async def split(self, payload: Any, *, context: Any) -> None: ...
    def plain(self, payload: Any, context: Any) -> None: ...

    @passes_along
    async def wrapped(self, payload: Any, context: Any, extensions: Any) -> None: ...

    @passes_along
    def wrapped_plain(self, payload: Any, context: Any) -> None: ...

    @hook(["first.event", "second.event"])
    async def decorated(self, payload: Any, context: Any) -> None: ...

    @hook("first.event")
    async def z_later(self, payload: Any, context: Any) -> None: ...

    @hook("private.event")
    async def _private(self, payload: Any, context: Any) -> None: ...

    @property
    def trap(self) -> None:
        raise AssertionError("looking for hooks ran a property")


@requirement("EX-AMB-10")
@pytest.mark.parametrize(
    ("name", "passing", "keyword"),
    [
        ("two", Passing.NOT, ""),
        ("three", Passing.BY_POSITION, ""),
        ("three_default", Passing.BY_POSITION, ""),
        ("star", Passing.BY_POSITION, ""),
        ("keyword_only", Passing.BY_KEYWORD, "ext"),
        ("double_star", Passing.BY_KEYWORD, "extensions"),
        ("wrapped", Passing.BY_POSITION, ""),
        ("anything", Passing.NOT, ""),
        ("one", None, ""),
        ("four", None, ""),
        ("split", None, ""),
        ("plain", None, ""),
        ("wrapped_plain", None, ""),
    ],
)
def test_how_a_hook_takes_extensions_is_counted_once_from_its_signature(
    name: str, passing: Passing | None, keyword: str
) -> None:
    plugin = Many(CONFIG)
    if passing is None:
        with pytest.raises(HookNotBound, match=name) as caught:
            bind_hook(plugin, "p", name)
        assert caught.value.fix
    else:
        bound = bind_hook(plugin, "p", name)
        assert (bound.passing, bound.keyword) == (passing, keyword)


def test_a_hook_is_found_by_name_first_and_then_by_its_mark() -> None:
    plugin = Many(CONFIG)
    assert bind_hook(plugin, "p", "two").method == plugin.two
    assert bind_hook(plugin, "p", "first.event").method == plugin.decorated
    assert bind_hook(plugin, "p", "second.event").method == plugin.decorated
    for unknown in ("third.event", "private.event"):
        with pytest.raises(HookNotBound, match="no method"):
            bind_hook(plugin, "p", unknown)


def test_a_callable_object_with_an_async_call_is_a_hook_and_a_bare_one_is_not() -> None:
    class Callable:
        async def __call__(self, payload: Any, context: Any) -> None: ...

    plugin = Many(CONFIG)
    plugin.event = Callable()  # pyright: ignore[reportAttributeAccessIssue] - set by an author
    assert bind_hook(plugin, "p", "event").passing is Passing.NOT
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
    with pytest.raises(ValueError, match="no payload"):
        plugin.json_to_payload("other", {})
