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
    which = f"hook {hook!r} of plugin {plugin_name!r}"
    place = {"plugin": plugin_name, "hook": hook}
    method = _find(plugin, hook)
    if method is None:
        raise HookNotBound(
            f"plugin {plugin_name!r} has no method for hook {hook!r}",
            fix=f'add "async def {hook}(self, payload, context)" or @hook("{hook}")',
            **place,
        )
    if not _is_async(method):
        raise HookNotBound(f"{which} is not async", fix="write it with async def", **place)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (ValueError, TypeError) as error:
        fix = "wrap it in an async def of your own"
        raise HookNotBound(f"{which} has no signature", fix=fix, **place) from error
    if len(parameters) > 3 or not _takes_call(parameters[:2]):
        raise HookNotBound(
            f"{which} takes ({', '.join(str(parameter) for parameter in parameters)})",
            fix="take (payload, context) or (payload, context, extensions)",
            **place,
        )
    return _bind(method, parameters[2] if len(parameters) == 3 else None)


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


def _takes_call(first_two: list[inspect.Parameter]) -> bool:
    """Return whether payload and context can be given by position."""
    return len(first_two) == 2 and (
        all(parameter.kind in _POSITIONAL for parameter in first_two)
        or first_two[0].kind is inspect.Parameter.VAR_POSITIONAL
    )


def _bind(method: Callable[..., Any], third: inspect.Parameter | None) -> HookCall:
    """Return the one way in which a hook is called, whatever parameters its method takes."""
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
