"""`Plugin`: the base of everything that runs in the pipeline, and `@hook` for its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from kaged.pipeline.errors import PluginError, PluginErrorModel
from kaged.pipeline.modes import PluginMode
from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.payloads.registry import HookRegistry, get_hook_registry
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginCondition, PluginConfig

_ATTRIBUTE = "_plugin_hook_metadata"

C = TypeVar("C", bound=Callable[..., Any])


class Plugin:
    """A policy or inspection step; subclass it and write async methods named after hooks.

    `config` is a copy: changing it, or adding capabilities to the object, changes nothing about
    what the plugin may see and do.

    With `pure` a class declares that its hooks decide by what they are given alone, and have no
    effects: `kaged tool explain` asks them. It counts for the class itself, not for subclasses.
    `depends_on` says of others in words what else decides. With `edits` False a class declares
    that it changes nothing, and the host takes no changes from it.
    """

    pure: ClassVar[bool] = False
    depends_on: ClassVar[str] = ""
    edits: ClassVar[bool] = True

    def __init__(
        self,
        config: PluginConfig,
        hook_payloads: dict[str, type[PluginPayload]] | None = None,
        hook_results: dict[str, type[PluginResult[Any]]] | None = None,
    ) -> None:
        self._config = config
        self._hook_payloads = hook_payloads
        self._hook_results = hook_results

    @property
    def config(self) -> PluginConfig:
        """Return the plugin's own copy of its configuration entry."""
        return self._config

    @property
    def name(self) -> str:
        """Return the configured name."""
        return self._config.name

    @property
    def priority(self) -> int:
        """Return the place in the order of its phase; lower runs earlier."""
        return self._config.priority

    @property
    def mode(self) -> PluginMode:
        """Return the configured mode."""
        return self._config.mode

    @property
    def hooks(self) -> list[str]:
        """Return the configured hooks."""
        return self._config.hooks

    @property
    def tags(self) -> list[str]:
        """Return the configured tags."""
        return self._config.tags

    @property
    def conditions(self) -> list[PluginCondition]:
        """Return the configured conditions."""
        return self._config.conditions

    async def initialize(self) -> None:
        """Get ready; called once before the first hook. Raise to refuse the configuration."""

    async def shutdown(self) -> None:
        """Let go of connections and files; called once after the last hook."""

    def json_to_payload(self, hook: str, payload: str | dict[str, Any]) -> PluginPayload:
        """Parse a payload of this plugin's hooks from JSON.

        Raises:
            PluginError: nothing is known of the hook.
            ValueError: the data does not fit.
        """
        return self._registry(hook).json_to_payload(hook, payload)

    def json_to_result(self, hook: str, result: str | dict[str, Any]) -> PluginResult[Any]:
        """Parse a result of this plugin's hooks from JSON.

        Raises:
            PluginError: nothing is known of the hook.
            ValueError: the data does not fit.
        """
        return self._registry(hook).json_to_result(hook, result)

    def _registry(self, hook: str) -> HookRegistry:
        """Return what knows a hook: this plugin's own types, else the registry of the process."""
        own = (self._hook_payloads or {}).get(hook)
        if own is None and hook not in (self._hook_results or {}):
            registry = get_hook_registry()
        else:
            registry = HookRegistry()
            registry.register_hook(hook, own or PluginPayload)
        if not registry.is_registered(hook):
            message = f"No payload type is registered for hook {hook!r}."
            raise PluginError(PluginErrorModel(message, self.name))
        return registry


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
