"""Which agents of which loaded projects use a plugin, and under which configuration.

Structure (participation, hooks, roles) is decided when a project is loaded; configuration values
are merged anew at each call from the current declarations (PH-AMB-58).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree, ResolvedAgent, ResolvedPlugin
from kaged.config.manifest import Manifest
from kaged.config.pluginwords import PRIMARY_ONLY_HOOKS, Hook, Isolation, PluginRole
from kaged.plugins.settings import ConfigSchemas, HalfInvalid, Side, thaw


@dataclass(frozen=True, slots=True)
class Declaration:
    """A plugin as one agent of one project uses it."""

    project_id: str
    project_root: Path
    agent_path: str
    is_root: bool
    resolved: ResolvedPlugin
    hooks: tuple[Hook, ...]
    designated_compactor: bool

    @property
    def plugin_name(self) -> str:
        """The plugin's name by its package."""
        return self.resolved.name

    @property
    def project_half(self) -> JsonObject:
        """The project half of its configuration, inheritance applied."""
        config = thaw(self.resolved.config)
        return config if isinstance(config, dict) else {}

    def isolation(self, schemas: ConfigSchemas) -> Isolation:
        """Return the isolation in force: the declaration's, or `config.isolation` (PH-AMB-24)."""
        if self.resolved.isolation_by_config and not schemas.has_isolation:
            return Isolation.AGENT
        return self.resolved.isolation.value

    def effective(self, schemas: ConfigSchemas, system: JsonObject) -> JsonObject:
        """Return the one object that the plugin sees for this agent, as of now."""
        config = schemas.merged(self.project_half, system)
        if schemas.has_isolation:
            config["isolation"] = self.isolation(schemas).value
        return config

    def deliverable(self, schemas: ConfigSchemas, system: JsonObject) -> JsonObject | None:
        """Return the same; None when there is nothing to deliver: no schema, neither half set."""
        if not schemas.any and not system and not self.resolved.config:
            return None
        return self.effective(schemas, system)


@dataclass(frozen=True, slots=True)
class DeclarationRefusal:
    """Why an agent's declaration is not used; `event` and `data` go into the audit log."""

    plugin: str
    agent_path: str
    reason: str
    event: str = ""
    data: JsonObject | None = None


def declarations_of(
    project_id: str, tree: AgentTree
) -> Iterator[tuple[ResolvedAgent, Declaration]]:
    """Walk the plugin declarations of a project in tree order; hooks are not narrowed yet."""
    for agent in tree:
        delegate = agent.compaction.value.delegate
        for resolved in agent.plugins:
            yield (
                agent,
                Declaration(
                    project_id=project_id,
                    project_root=Path(tree.project.root),
                    agent_path=str(agent.path),
                    is_root=agent.is_root,
                    resolved=resolved,
                    hooks=(),
                    designated_compactor=delegate == resolved.key,
                ),
            )


def effective_hooks(
    declared: tuple[Hook, ...] | None, manifest: Manifest, *, is_root: bool
) -> tuple[tuple[Hook, ...], tuple[Hook, ...], tuple[Hook, ...]]:
    """Return the hooks to fire, those listed but illegal here, and those the plugin lacks.

    Left out means all of the manifest's; primary-only hooks that a subagent gets by omission are
    left out silently, those it lists itself are the illegal ones (PH-AMB-09).
    """
    offered = manifest.hooks
    if declared is None:
        kept = tuple(hook for hook in offered if is_root or hook not in PRIMARY_ONLY_HOOKS)
        return kept, (), ()
    unknown = tuple(hook for hook in declared if hook not in offered)
    illegal = () if is_root else tuple(hook for hook in declared if hook in PRIMARY_ONLY_HOOKS)
    kept = tuple(hook for hook in declared if hook in offered and hook not in illegal)
    return kept, illegal, unknown


def check_project_half(declaration: Declaration, schemas: ConfigSchemas) -> HalfInvalid | None:
    """Check the declaration's configuration against the plugin's project schema."""
    half = declaration.project_half
    invalid = schemas.check_project(half)
    if invalid is not None:
        return invalid
    said = half.get("isolation")
    meant = declaration.resolved.isolation.value
    if schemas.has_isolation and said is not None and said != meant.value:
        error = f"isolation: the declaration says {meant.value}, its config says {said}"
        return HalfInvalid(Side.PROJECT, (error,))
    if declaration.resolved.inherits and declaration.isolation(schemas) is not Isolation.PROJECT:
        error = "isolation: the plugin's config has none; write isolation: project beside package"
        return HalfInvalid(Side.PROJECT, (error,))
    return None


def is_compactor(manifest: Manifest) -> bool:
    """Return whether the plugin claims the compactor role."""
    return PluginRole.COMPACTOR in manifest.roles
