"""`@hook("tool_pre_invoke")`: binds a method of a plugin to an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_ATTRIBUTE = "_plugin_hook_metadata"

C = TypeVar("C", bound=Callable[..., Any])


class HookMetadata:
    """What `@hook` noted on a method: the events, and the types if the author named them."""

    __slots__ = ("hook_types", "payload_type", "result_type")

    def __init__(
        self,
        hook_types: str | Sequence[str],
        payload_type: type | None = None,
        result_type: type | None = None,
    ) -> None:
        names = [hook_types] if isinstance(hook_types, str) else list(hook_types)
        self.hook_types: tuple[str, ...] = tuple(str(name) for name in names)
        self.payload_type = payload_type
        self.result_type = result_type

    @property
    def hook_type(self) -> str:
        """Return the first event."""
        return self.hook_types[0]

    def matches(self, hook_type: str) -> bool:
        """Return whether the method is bound to this event."""
        return str(hook_type) in self.hook_types


def hook(
    hook_type: str | Sequence[str],
    payload_type: type | None = None,
    result_type: type | None = None,
) -> Callable[[C], C]:
    """Bind an async method to one or more events.

    Only a note on the function: the host calls it for an event when the configuration lists that
    event under the plugin's `hooks`.
    """

    def note(function: C) -> C:
        setattr(function, _ATTRIBUTE, HookMetadata(hook_type, payload_type, result_type))
        return function

    return note


def get_hook_metadata(function: Callable[..., Any]) -> HookMetadata | None:
    """Return what `@hook` noted on a function."""
    noted = getattr(function, _ATTRIBUTE, None)
    return noted if isinstance(noted, HookMetadata) else None


def has_hook_metadata(function: Callable[..., Any]) -> bool:
    """Return whether a function carries `@hook`."""
    return get_hook_metadata(function) is not None
