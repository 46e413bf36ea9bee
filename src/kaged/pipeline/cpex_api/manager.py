"""`PluginManager` and its companions under the published names, on top of our `Pipeline`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from kaged.base import Ids, SystemClock
from kaged.config.problems import ConfigFileInvalid
from kaged.pipeline.contexts import GlobalContext, PluginContext, PluginContextTable
from kaged.pipeline.cpex_api.models import Config, settings
from kaged.pipeline.cpex_api.spans import ObservabilityProvider, SpanTracer, current_trace_id
from kaged.pipeline.document import parse_document
from kaged.pipeline.edits import DefaultHookPolicy, HookPayloadPolicy
from kaged.pipeline.kinds import add_plugin_dirs, load_class
from kaged.pipeline.payloads.registry import get_hook_registry
from kaged.pipeline.pipeline import DEFAULT_TIMEOUT_S, Pipeline
from kaged.pipeline.plan import LoadedPlugin, Step, compile_plan
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

DECISION_PLUGIN = "_decision_plugin"
_PERMISSION_HOOK = "http_auth_check_permission"
MANY = 1_000_000
"""More than any call has plugins: what an execution pool of 0 means."""


class TenantPluginManager:
    """Loads plugins from a file or a configuration object and runs hooks through them.

    A program that calls this itself passes in its own payloads and contexts, and its plugins get
    them as they are; extensions are filtered and merged as everywhere.
    """

    def __init__(
        self,
        config: str | Config = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        observability: ObservabilityProvider | None = None,
        hook_policies: Mapping[str, HookPayloadPolicy] | None = None,
        default_hook_policy: DefaultHookPolicy | str | None = None,
    ) -> None:
        self._source = config
        self._timeout = timeout
        self._policies = dict(hook_policies or {})
        self._default_policy = DefaultHookPolicy(
            default_hook_policy or settings.default_hook_policy
        )
        self._config: Config | None = config if isinstance(config, Config) else None
        self._pipeline: Pipeline | None = None
        self.observability: ObservabilityProvider | None = observability

    @property
    def config(self) -> Config | None:
        """Return the configuration; a file is read when somebody first asks.

        Raises:
            ConfigFileInvalid: the file cannot be used.
        """
        if self._config is None and isinstance(self._source, str) and self._source:
            self._config = ConfigLoader.load_config(self._source)
        return self._config

    @property
    def initialized(self) -> bool:
        """Return whether plugins are loaded."""
        return self._pipeline is not None

    @property
    def plugin_count(self) -> int:
        """Count the loaded plugins."""
        return 0 if self._pipeline is None else len(self._pipeline.live)

    @property
    def executor(self) -> TenantPluginManager:
        """Return what runs plugins: this object."""
        return self

    async def initialize(self) -> None:
        """Load all plugins; does nothing when they are loaded already.

        Raises:
            ConfigFileInvalid: something is wrong; every problem is listed, and no plugin runs.
        """
        if self._pipeline is not None:
            return
        clock = SystemClock()
        pipeline = Pipeline(
            clock,
            Ids(clock),
            timeout_s=self._timeout,
            tracer=None if self.observability is None else SpanTracer(self.observability),
            hook_policies=self._policies,
            default_hook_policy=self._default_policy,
            guarded=False,
            at_once=settings.execution_pool or MANY,
        )
        if self._config is None:
            self._config = await asyncio.to_thread(ConfigLoader.load_config, str(self._source))
        folders = tuple(self._config.plugin_dirs or ())
        add_plugin_dirs(folders, Path.cwd())  # what the published manager goes by
        if isinstance(self._source, str):
            add_plugin_dirs(folders, Path(self._source).parent)
        report = await pipeline.load_configs(self._config.plugins or [])
        if not report.in_force:
            await pipeline.close()
            raise ConfigFileInvalid(report.problems)
        self._pipeline = pipeline

    async def shutdown(self) -> None:
        """Stop all plugins, last first."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            await pipeline.close()

    async def invoke_hook(
        self,
        hook_type: str,
        payload: Any,
        global_context: GlobalContext,
        local_contexts: PluginContextTable | None = None,
        violations_as_exceptions: bool = False,
        extensions: Extensions | None = None,
    ) -> tuple[PluginResult[Any], PluginContextTable | None]:
        """Take a payload through the plugins of a hook."""
        trace_id = current_trace_id.get()
        provider = self.observability
        calling = self._ready().invoke_hook(
            str(hook_type),
            payload,
            global_context,
            local_contexts,
            violations_as_exceptions,
            extensions,
        )
        if provider is None or trace_id is None:
            return _with_decider(hook_type, await calling)
        steps = self._steps(str(hook_type))
        skipped = sum(not step.applies(payload, global_context) for step in steps)
        span = provider.start_span(
            trace_id=trace_id,
            name="plugin.hook.invoke",
            attributes={
                "plugin.hook.type": str(hook_type),
                "plugin.chain.length": len(steps),
            },
        )
        status, attributes = "error", None
        try:
            answer = _with_decider(hook_type, await calling)
            status, attributes = "ok", _counted(answer[0], skipped)
            return answer
        finally:
            provider.end_span(span_id=span, status=status, attributes=attributes)

    async def invoke_hook_for_plugin(
        self,
        name: str,
        hook_type: str,
        payload: Any,
        context: PluginContext,
        violations_as_exceptions: bool = False,
        payload_as_json: bool = False,
    ) -> PluginResult[Any]:
        """Run one hook of one plugin, outside of any chain. Raises ValueError for a bad name."""
        pipeline = self._ready()
        live = _named(pipeline, name)
        if live is None:
            raise ValueError(f"there is no plugin named {name!r}")
        hook = str(hook_type)
        kind = get_hook_registry().kind(hook)
        if payload_as_json:
            payload = get_hook_registry().json_to_payload(hook, payload)
        plan = compile_plan(hook, [live], kind, self._policies.get(hook))
        if plan.empty:
            raise ValueError(f"plugin {name!r} has no hook {hook!r}")
        shared = context.global_context
        known = {shared.request_id + live.plugin_id: context}
        result, _ = await pipeline.runner.run(
            plan, payload, shared, known, violations_as_exceptions
        )
        return result

    def get_plugin(self, name: str) -> Plugin | None:
        """Return a loaded plugin object by name; None for unknown ones and those out of process."""
        live = None if self._pipeline is None else _named(self._pipeline, name)
        return None if live is None else getattr(live.started, "plugin", None)

    def has_hooks_for(self, hook_type: str) -> bool:
        """Return whether any loaded plugin has this hook."""
        return self._pipeline is not None and self._pipeline.has_hooks_for(str(hook_type))

    def reset_runtime_disabled(self) -> None:
        """Let plugins run again that were switched off after an error."""
        if self._pipeline is not None:
            self._pipeline.reset_switched_off()

    def _steps(self, hook: str) -> tuple[Step, ...]:
        plan = self._ready().plans.get(hook)
        return () if plan is None else plan.steps

    def _ready(self) -> Pipeline:
        if self._pipeline is None:
            raise RuntimeError("the plugin manager is not initialised; await initialize() first")
        return self._pipeline


class PluginManager(TenantPluginManager):
    """A manager whose state is shared by all objects of this class in the process."""

    _shared: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        config: str | Config = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        observability: ObservabilityProvider | None = None,
        hook_policies: Mapping[str, HookPayloadPolicy] | None = None,
        default_hook_policy: DefaultHookPolicy | str | None = None,
    ) -> None:
        """Make the shared state, or add to it what no earlier construction has said.

        Plugins that run already keep their configuration, timeout and policies; `reset` makes room.
        """
        self.__dict__ = self._shared
        if not self._shared:
            super().__init__(config, timeout, observability, hook_policies, default_hook_policy)
            return
        if self.observability is None and observability is not None:
            self.observability = observability
            if self._pipeline is not None:
                self._pipeline.watch(SpanTracer(observability))
        if self._pipeline is not None:
            return
        if not self._source:
            self._source = config
            self._config = config if isinstance(config, Config) else None
        if timeout != DEFAULT_TIMEOUT_S:
            self._timeout = timeout
        if not self._policies:
            self._policies = dict(hook_policies or {})
        if default_hook_policy:
            self._default_policy = DefaultHookPolicy(default_hook_policy)

    @classmethod
    def reset(cls) -> None:
        """Forget the shared state; plugins that still run are not stopped by this."""
        cls._shared.clear()
        _managers.clear()


class ConfigLoader:
    """Reads configuration files."""

    @staticmethod
    def load_config(config: str, use_jinja: bool = True) -> Config:
        """Read a file; a missing file is an empty configuration. Raises ConfigFileInvalid."""
        del use_jinja  # the one expression that files use, {{ env.NAME }}, is always understood
        path = Path(config)
        if not config or not path.is_file():
            return Config(plugins=[])
        document = parse_document(path.read_text(encoding="utf-8"), config)
        if document.faulty:
            raise ConfigFileInvalid(document.problems)
        return Config(
            plugins=[entry.config for entry in document.entries],
            plugin_dirs=list(document.plugin_dirs),
        )


class PluginLoader:
    """Brings single plugins to life, for programs that do it by hand."""

    async def load_and_instantiate_plugin(self, config: PluginConfig) -> Plugin:
        """Import, construct and initialise a plugin. Raises `pipeline_plugin_not_loaded`."""
        plugin = load_class(config.kind)(config.model_copy(deep=True))
        await plugin.initialize()
        return plugin


_Answer: TypeAlias = tuple[PluginResult[Any], PluginContextTable | None]


def _with_decider(hook_type: str, answer: _Answer) -> _Answer:
    """Name the plugin that decided about a permission, as programs of that hook expect it."""
    if str(hook_type) == _PERMISSION_HOOK:
        result = answer[0]
        deciders = [one.plugin_name for one in result.executions if one.payload_modified]
        if deciders:  # a refusal of the call is no decision about the permission
            result.metadata[DECISION_PLUGIN] = deciders[-1]
    return answer


def _counted(result: PluginResult[Any], skipped: int) -> dict[str, Any]:
    stopped = next((one.plugin_name for one in result.executions if not one.effective_allow), "")
    return {
        "plugin.executed_count": len(result.executions),
        "plugin.skipped_count": skipped,
        "plugin.chain.stopped": bool(stopped),
        "plugin.chain.stopped_by": stopped,
    }


def _named(pipeline: Pipeline, name: str) -> LoadedPlugin | None:
    return next((live for live in pipeline.live if live.config.name == name), None)


def get_plugin_manager(
    observability: ObservabilityProvider | None = None,
    hook_policies: Mapping[str, HookPayloadPolicy] | None = None,
) -> PluginManager | None:
    """Return the process-wide manager; None unless PLUGINS_ENABLED is set."""
    if not settings.enabled:
        return None
    if not _managers:
        _managers.append(
            PluginManager(
                settings.config_file,
                timeout=settings.plugin_timeout,
                observability=observability,
                hook_policies=hook_policies,
            )
        )
    return _managers[0]


_managers: list[PluginManager] = []
