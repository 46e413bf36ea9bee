"""`Plugin`: the base of everything that runs in the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kaged.pipeline.payloads import HookRegistry

if TYPE_CHECKING:
    from kaged.pipeline.modes import PluginMode
    from kaged.pipeline.payloads import PluginPayload
    from kaged.pipeline.results import PluginResult
    from kaged.pipeline.settings import PluginCondition, PluginConfig


class Plugin:
    """A policy or inspection step; subclass it and write async methods named after hooks.

    `config` is a copy: changing it, or adding capabilities to the object, changes nothing about
    what the plugin may see and do.
    """

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
        """Parse a payload of this plugin's hooks from JSON. Raises ValueError."""
        return self._registry().json_to_payload(hook, payload)

    def json_to_result(self, hook: str, result: str | dict[str, Any]) -> PluginResult[Any]:
        """Parse a result of this plugin's hooks from JSON. Raises ValueError."""
        return self._registry().json_to_result(hook, result)

    def _registry(self) -> HookRegistry:
        registry = HookRegistry()
        for hook, payload in (self._hook_payloads or {}).items():
            registry.register_hook(hook, payload)
        return registry
