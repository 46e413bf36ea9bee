"""A pipeline for tests: plugin classes in, results out, without files and imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kaged.base import Clock, Ids, ManualClock
from kaged.pipeline import (
    Extensions,
    GlobalContext,
    Pipeline,
    Plugin,
    PluginConfig,
    PluginContext,
    PluginResult,
    ToolPreInvokePayload,
)
from kaged.pipeline.binding import HookCall, bind_hook
from kaged.pipeline.contexts import PluginContextTable
from kaged.pipeline.kinds import StartedPlugin

HOOK = "tool_pre_invoke"
CALL = ToolPreInvokePayload(name="db.query", args={"q": "select 1", "deep": {"list": [1]}})


class ClassKind:
    """Starts plugins of one class that a test defines."""

    def __init__(self, make: Callable[[PluginConfig], Plugin]) -> None:
        self._make = make

    async def start(self, config: PluginConfig) -> StartedPlugin:
        plugin = self._make(config.model_copy(deep=True))
        await plugin.initialize()
        return Started(plugin)


class Started:
    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    def bind(self, hook: str) -> HookCall:
        return bind_hook(self.plugin, self.plugin.name, hook)

    async def shutdown(self) -> None:
        await self.plugin.shutdown()


class StubPlugin:
    """A started plugin that has one method for every hook."""

    def __init__(self, method: HookCall) -> None:
        self._method = method

    def bind(self, hook: str) -> HookCall:
        return self._method

    async def shutdown(self) -> None: ...


def entry(
    make: Callable[[PluginConfig], Plugin], *capabilities: str, **settings: Any
) -> tuple[Callable[[PluginConfig], Plugin], dict[str, Any]]:
    """Describe one plugin: its class, its capabilities, and what else its entry says."""
    return make, {"capabilities": list(capabilities), **settings}


class Lab:
    """A loaded pipeline with the plugins of a test."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    @classmethod
    async def of(
        cls,
        *entries: tuple[Callable[[PluginConfig], Plugin], dict[str, Any]],
        clock: Clock | None = None,
        **options: Any,
    ) -> Lab:
        clock = clock or ManualClock()
        kinds: dict[str, Any] = {}
        configs: list[PluginConfig] = []
        for number, (make, settings) in enumerate(entries):
            kind = f"lab.Plugin{number}"
            kinds[kind] = ClassKind(make)
            name = getattr(make, "__name__", "plugin")
            configs.append(
                PluginConfig.model_validate(
                    {"name": f"{name}{number}", "kind": kind, "hooks": [HOOK], **settings}
                )
            )
        pipeline = Pipeline(clock, Ids(clock), kinds=kinds, **options)
        report = await pipeline.load_configs(configs)
        assert report.in_force, report.problems
        return cls(pipeline)

    async def call(
        self,
        payload: Any = CALL,
        *,
        hook: str = HOOK,
        extensions: Extensions | None = None,
        context: GlobalContext | None = None,
        contexts: PluginContextTable | None = None,
        raising: bool = False,
    ) -> PluginResult[Any]:
        result, self.contexts = await self.pipeline.invoke_hook(
            hook,
            payload,
            context or GlobalContext("req-1"),
            contexts,
            raising,
            extensions,
        )
        return result

    @property
    def only_context(self) -> PluginContext:
        assert self.contexts is not None
        (context,) = self.contexts.values()
        return context


async def outcome(
    *entries: tuple[Callable[[PluginConfig], Plugin], dict[str, Any]],
    extensions: Extensions | None = None,
    payload: Any = CALL,
    **options: Any,
) -> PluginResult[Any]:
    """Run one call through the plugins and return the result of the chain."""
    lab = await Lab.of(*entries, **options)
    return await lab.call(payload, extensions=extensions)
