"""Which declarations of a project are accepted, and why the others are not.

Structure is checked here once, when the project is loaded: hooks, roles, versions, the project
half of the configuration. One bad declaration never touches the others (PH-AMB-57).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree
from kaged.plugins.declarations import (
    Declaration,
    DeclarationRefusal,
    check_project_half,
    declarations_of,
    effective_hooks,
    is_compactor,
)
from kaged.plugins.plugin import HostedPlugin


@dataclass(frozen=True, slots=True)
class PluginAdmission:
    """The outcome of loading a project's plugins."""

    accepted: tuple[Declaration, ...]
    refused: tuple[DeclarationRefusal, ...]
    missing: tuple[Declaration, ...]
    events: tuple[tuple[str, JsonObject], ...]


def admit_project(
    project_id: str,
    tree: AgentTree,
    plugins: Mapping[str, HostedPlugin],
    may_use: Callable[[str, HostedPlugin], bool],
) -> PluginAdmission:
    """Decide about every declaration of a project, in tree order."""
    accepted: list[Declaration] = []
    refused: list[DeclarationRefusal] = []
    missing: list[Declaration] = []
    events: list[tuple[str, JsonObject]] = []
    compactors: dict[str, str] = {}
    for _, declaration in declarations_of(project_id, tree):
        plugin = plugins.get(declaration.plugin_name)
        if plugin is None or not may_use(project_id, plugin):
            missing.append(declaration)
            continue
        refusal = _structure(declaration, plugin, compactors)
        if refusal is not None:
            refused.append(refusal)
            if refusal.event and refusal.data is not None:
                events.append((refusal.event, refusal.data))
            continue
        manifest = plugin.installed.manifest
        hooks, illegal, _ = effective_hooks(
            declaration.resolved.hooks.value, manifest, is_root=declaration.is_root
        )
        for hook in illegal:
            data: JsonObject = {
                "name": plugin.name,
                "hook": hook.value,
                "agent_path": declaration.agent_path,
            }
            events.append(("plugin.hook.illegal", data))
        if is_compactor(manifest):
            compactors[declaration.agent_path] = plugin.name
        accepted.append(replace(declaration, hooks=hooks))
    return PluginAdmission(tuple(accepted), tuple(refused), tuple(missing), tuple(events))


def _structure(
    declaration: Declaration, plugin: HostedPlugin, compactors: Mapping[str, str]
) -> DeclarationRefusal | None:
    """Find the first thing that keeps a declaration from being used."""
    manifest, agent = plugin.installed.manifest, declaration.agent_path

    def refuse(reason: str, event: str = "", data: JsonObject | None = None) -> DeclarationRefusal:
        return DeclarationRefusal(plugin.name, agent, reason, event, data)

    wanted = declaration.resolved.version.value
    if wanted is not None and not wanted.matches(manifest.version):
        return refuse(
            f"version {plugin.installed.version} is installed, {wanted.text} is asked for"
        )
    _, _, unknown = effective_hooks(
        declaration.resolved.hooks.value, manifest, is_root=declaration.is_root
    )
    if unknown:
        return refuse(f"{plugin.name} has no hook {unknown[0]}")
    if declaration.designated_compactor and not is_compactor(manifest):
        return refuse(f"compaction.delegate names {plugin.name}, which is no compactor")
    if is_compactor(manifest) and agent in compactors:
        first = compactors[agent]
        return refuse(
            f"{agent} has a compactor already: {first}",
            "plugin.role_violation",
            {"first": first, "second": plugin.name, "agent_path": agent},
        )
    invalid = check_project_half(declaration, plugin.schemas)
    if invalid is not None:
        return refuse(
            f"config: {invalid.errors[0]}",
            "plugin.config_validation_failed",
            {
                "name": plugin.name,
                "side": invalid.side.value,
                "errors": [f"{agent}: {error}" for error in invalid.errors],
            },
        )
    return None
