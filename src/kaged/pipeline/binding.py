"""Which method answers a hook, and how it is called: decided once, when a plugin is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from kaged.base import KagedError
from kaged.pipeline.plugin import get_hook_metadata

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


class HookNotBound(KagedError):
    """A plugin has no usable method for a hook that its configuration lists."""

    code = "pipeline_hook_not_bound"


HookCall: TypeAlias = Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]
"""Takes payload, context and extensions; returns a coroutine. No code of the plugin runs until the
coroutine does."""


def bind_hook(plugin: object, plugin_name: str, hook: str) -> HookCall:
    """Return how to call the method of `plugin` for `hook`, found by name or else by `@hook`.

    Raises:
        HookNotBound: there is none, or it is not async, or it takes neither two parameters
            (payload, context) nor three (payload, context, extensions).
    """
    method = _find(plugin, hook)
    if method is None:
        raise HookNotBound(
            f"plugin {plugin_name!r} has no method for hook {hook!r}",
            fix=f'add "async def {hook}(self, payload, context)" or @hook("{hook}")',
            plugin=plugin_name,
            hook=hook,
        )
    if not _is_async(method):
        raise HookNotBound(
            f"hook {hook!r} of plugin {plugin_name!r} is not async",
            fix="write it with async def",
            plugin=plugin_name,
            hook=hook,
        )
    return _bind(method, plugin_name, hook)


def _find(plugin: object, hook: str) -> Callable[..., Any] | None:
    named = getattr(plugin, hook, None)
    if callable(named):
        return named
    for name in sorted(dir(type(plugin))):
        if name.startswith("_"):
            continue
        if not inspect.isfunction(inspect.getattr_static(type(plugin), name)):
            continue  # properties and the like: looking at them would run them
        method = getattr(plugin, name)
        noted = get_hook_metadata(method)
        if noted is not None and noted.matches(hook):
            return method
    return None


def _is_async(method: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(
        getattr(method, "__call__", None)  # noqa: B004 - asks about the method, not whether it is callable
    ):
        return True
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _bind(method: Callable[..., Any], plugin_name: str, hook: str) -> HookCall:
    """Return the one way in which a hook is called, whatever parameters its method takes."""
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (ValueError, TypeError) as error:
        raise HookNotBound(
            f"hook {hook!r} of plugin {plugin_name!r} has no signature",
            fix="wrap it in an async def of your own",
            plugin=plugin_name,
            hook=hook,
        ) from error
    first_two = parameters[:2]
    takes_call = len(first_two) == 2 and (
        all(parameter.kind in _POSITIONAL for parameter in first_two)
        or first_two[0].kind is inspect.Parameter.VAR_POSITIONAL
    )
    if not takes_call or len(parameters) > 3:
        raise HookNotBound(
            f"hook {hook!r} of plugin {plugin_name!r} takes"
            f" ({', '.join(str(parameter) for parameter in parameters)})",
            fix="take (payload, context) or (payload, context, extensions)",
            plugin=plugin_name,
            hook=hook,
        )
    third = parameters[2] if len(parameters) == 3 else None
    by_position = third is not None and third.kind in _POSITIONAL
    if by_position and inspect.iscoroutinefunction(method):
        return method
    keyword = "extensions"
    if third is not None and third.kind is inspect.Parameter.KEYWORD_ONLY:
        keyword = third.name

    async def call(payload: Any, context: Any, extensions: Any) -> Any:
        if third is None:
            return await method(payload, context)
        if by_position:
            return await method(payload, context, extensions)
        return await method(payload, context, **{keyword: extensions})

    return call
