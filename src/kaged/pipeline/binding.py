"""Which method answers a hook, and how it is called: decided once, when a plugin is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from types import CoroutineType
from typing import Any, ClassVar, TypeAlias

from kaged.base import KagedError
from kaged.pipeline.decorator import get_hook_metadata

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


class HookNotBound(KagedError):
    """A plugin has no usable method for a hook that its configuration lists."""

    code: ClassVar[str] = "pipeline_hook_not_bound"


class Passing(Enum):
    """How a method takes extensions."""

    NOT = auto()
    BY_POSITION = auto()
    BY_KEYWORD = auto()


@dataclass(frozen=True, slots=True)
class Binding:
    """A hook method with the way to call it."""

    method: Callable[..., Awaitable[Any]]
    passing: Passing
    keyword: str = ""


Begin: TypeAlias = Callable[[Any, Any, Any], tuple[Coroutine[Any, Any, Any], Any]]
"""Calls a hook with payload, context and extensions and runs its first step: gives the coroutine
and what it waits for, or raises StopIteration with its answer when it is done already."""


def compile_begin(call: Callable[..., Awaitable[Any]], passing: Passing, keyword: str) -> Begin:
    """Make the one way in which a hook is started. Nothing else in the product calls a hook."""
    if passing is Passing.NOT:

        def begin_with_two(payload: Any, context: Any, _extensions: Any) -> Any:
            hook: Any = call(payload, context)
            if type(hook) is not CoroutineType:
                hook = _await(hook)
            return hook, hook.send(None)

        return begin_with_two

    if passing is Passing.BY_KEYWORD:

        def begin_with_keyword(payload: Any, context: Any, extensions: Any) -> Any:
            hook: Any = call(payload, context, **{keyword: extensions})
            if type(hook) is not CoroutineType:
                hook = _await(hook)
            return hook, hook.send(None)

        return begin_with_keyword

    def begin(payload: Any, context: Any, extensions: Any) -> Any:
        hook: Any = call(payload, context, extensions)
        if type(hook) is not CoroutineType:
            hook = _await(hook)
        return hook, hook.send(None)

    return begin


async def _await(awaitable: Any) -> Any:
    return await awaitable


def bind_hook(plugin: object, plugin_name: str, hook: str) -> Binding:
    """Find the method of `plugin` for `hook`: by name first, then by `@hook`.

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


def _bind(method: Callable[..., Any], plugin_name: str, hook: str) -> Binding:
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
    if len(parameters) == 2:
        return Binding(method, Passing.NOT)
    third = parameters[2]
    if third.kind in _POSITIONAL:
        return Binding(method, Passing.BY_POSITION)
    keyword = third.name if third.kind is inspect.Parameter.KEYWORD_ONLY else "extensions"
    return Binding(method, Passing.BY_KEYWORD, keyword)


__all__ = ["Begin", "Binding", "HookNotBound", "Passing", "bind_hook", "compile_begin"]
