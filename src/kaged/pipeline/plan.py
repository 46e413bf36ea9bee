"""What runs for a hook, decided once: `Step`, `Plan`, and `compile_plan`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.binding import HookCall
from kaged.pipeline.conditions import Matcher, compile_conditions
from kaged.pipeline.contexts import GlobalContext
from kaged.pipeline.edits import HookPayloadPolicy
from kaged.pipeline.kinds import StartedPlugin, declares_no_edits, what_decides
from kaged.pipeline.modes import MODE_RULES, OnError, PluginMode
from kaged.pipeline.payloads.registry import HookKind
from kaged.pipeline.records import MAX_CONFIG_KEYS
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.tiers import Rights, resolve_rights

_PAYLOADS_WITH_HEADERS = frozenset({"tool_pre_invoke", "agent_pre_invoke"})


@dataclass(slots=True)
class Switch:
    """Whether a plugin still runs; `on_error: disable` turns it off, in all its hooks at once."""

    off: bool = False


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that runs: its identity and rights as the host holds them, and the plugin itself."""

    plugin_id: str
    config: PluginConfig
    rights: Rights
    timeout_s: float
    switch: Switch
    started: StartedPlugin


@dataclass(frozen=True, slots=True)
class Step:
    """One plugin on one hook, with everything that can be decided before a call."""

    plugin_id: str
    name: str
    kind: str
    hook: str
    mode: PluginMode
    priority: int
    may_deny: bool
    may_edit: bool
    shares_state: bool
    on_error: OnError
    timeout_s: float
    rights: Rights
    matches: Matcher | None
    call: HookCall
    config_keys: tuple[str, ...]
    switch: Switch
    hides_headers: bool
    """The hook's payload has a header map which this plugin may not see."""
    guards_headers: bool
    """The hook's payload has a header map which this plugin may not change."""
    pure: bool
    """The plugin declares that it decides by what it is given alone, and has no effects."""
    depends_on: str
    """What else decides, in words; empty for a pure plugin."""

    def applies(self, payload: Any, shared: GlobalContext) -> bool:
        """Return whether the plugin is switched on and one of its conditions matches."""
        if self.switch.off:
            return False
        return self.matches is None or self.matches(payload, shared)


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of one hook, by phase and priority."""

    hook: str
    kind: HookKind | None
    policy: HookPayloadPolicy | None
    serial: tuple[Step, ...]
    """Sequential, then transform, then audit plugins: one after the other."""
    concurrent: tuple[Step, ...]
    background: tuple[Step, ...]
    empty: bool

    def pure_part(self) -> Plan:
        """Return the steps of pure plugins alone; a failure among them switches nothing off."""
        serial, concurrent = (
            tuple(replace(step, switch=Switch(step.switch.off)) for step in steps if step.pure)
            for steps in (self.serial, self.concurrent)
        )
        return replace(
            self,
            serial=serial,
            concurrent=concurrent,
            background=(),
            empty=not (serial or concurrent),
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return all steps in the order of their phases."""
        return self.serial + self.concurrent + self.background


def compile_plan(
    hook: str,
    plugins: Iterable[LoadedPlugin],
    kind: HookKind | None,
    policy: HookPayloadPolicy | None,
) -> Plan:
    """Lay out the steps of a hook: by phase, inside a phase by priority, then by list order."""
    ordered = sorted(
        (plugin for plugin in plugins if hook in plugin.config.hooks),
        key=lambda plugin: plugin.config.priority,
    )
    phases: dict[PluginMode, list[Step]] = {mode: [] for mode in MODE_RULES}
    for plugin in ordered:
        if plugin.config.mode is not PluginMode.DISABLED:
            phases[plugin.config.mode].append(_compile_step(hook, plugin))
    return Plan(
        hook=hook,
        kind=kind,
        policy=policy,
        serial=(
            *phases[PluginMode.SEQUENTIAL],
            *phases[PluginMode.TRANSFORM],
            *phases[PluginMode.AUDIT],
        ),
        concurrent=tuple(phases[PluginMode.CONCURRENT]),
        background=tuple(phases[PluginMode.FIRE_AND_FORGET]),
        empty=not any(phases.values()),
    )


def load_plugin(
    config: PluginConfig,
    plugin_id: str,
    default_timeout_s: float,
    started: StartedPlugin,
) -> LoadedPlugin:
    """Put a plugin's identity, rights and limits together, from the host's configuration alone."""
    return LoadedPlugin(
        plugin_id=plugin_id,
        config=config,
        rights=resolve_rights(config.capabilities),
        timeout_s=default_timeout_s if config.timeout_s is None else config.timeout_s,
        switch=Switch(),
        started=started,
    )


def _compile_step(hook: str, plugin: LoadedPlugin) -> Step:
    config = plugin.config
    rules = MODE_RULES[config.mode]
    has_headers = hook in _PAYLOADS_WITH_HEADERS
    depends_on = what_decides(plugin.started)
    return Step(
        plugin_id=plugin.plugin_id,
        name=config.name,
        kind=config.kind,
        hook=hook,
        mode=config.mode,
        priority=config.priority,
        may_deny=rules.may_deny,
        may_edit=rules.may_edit and not declares_no_edits(plugin.started),
        shares_state=rules.shares_state,
        on_error=config.on_error,
        timeout_s=plugin.timeout_s,
        rights=plugin.rights,
        matches=compile_conditions(config.conditions, hook),
        call=plugin.started.bind(hook),
        config_keys=tuple(list(config.config or {})[:MAX_CONFIG_KEYS]),
        switch=plugin.switch,
        hides_headers=has_headers and not plugin.rights.headers,
        guards_headers=has_headers and not plugin.rights.write_headers,
        pure=not depends_on,
        depends_on=depends_on,
    )
