"""`AgentTree`: every agent of a project with its settings decided, each with where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agent_limits import agent_defaults
from kaged.config.cageblock import CageBlock, CageWord
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig, ModelEntry
from kaged.config.plugindecl import PluginDeclaration
from kaged.config.pluginwords import (
    PRIMARY,
    PRIMARY_ONLY_HOOKS,
    AgentPath,
    Hook,
    Isolation,
    PluginSource,
    plugin_name_of,
)
from kaged.config.problems import DEFAULT, KeyPath, Origin, Problem, format_key_path
from kaged.config.project import (
    AgentSpec,
    CompactionStrategy,
    OnDenied,
    Project,
    TodoReview,
)
from kaged.config.prompts import Prompt
from kaged.config.reading import Loaded
from kaged.config.restricting import restrict
from kaged.config.sealing import seal_policy
from kaged.config.semver import VersionRange
from kaged.config.toolrules import ToolRule
from kaged.kernel.policy import CagePolicy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and where it came from."""

    value: T
    origin: Origin


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model of an agent: its alias, and the operator's entry for it if there is one.

    An alias nobody knows is no problem of the project; it is reported when a session starts.
    `problems` says why an entry that exists cannot be used.
    """

    alias: str
    entry: ModelEntry | None
    entry_origin: Origin | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedPlugin:
    """A plugin on an agent after inheritance.

    `hooks` None means all that the plugin has; primary-only hooks that a subagent merely inherits
    are left out. `own_config` and `base_config` are kept apart because their values are merged
    anew at each call (PH-AMB-58); `config` is the merge as of now.
    """

    key: str
    package: Sourced[str]
    isolation: Sourced[Isolation]
    isolation_by_config: bool
    hooks: Sourced[tuple[Hook, ...] | None]
    source: Sourced[PluginSource | None]
    version: Sourced[VersionRange | None]
    own_config: Mapping[str, JsonValue]
    base_config: Mapping[str, JsonValue]
    config_origins: Mapping[str, Origin]
    inherits: bool

    @property
    def name(self) -> str:
        """The plugin's name by its package."""
        return plugin_name_of(self.package.value)

    @property
    def config(self) -> Mapping[str, JsonValue]:
        """The base's fields with the agent's own over them; lists are replaced, not joined."""
        return MappingProxyType({**self.base_config, **self.own_config})


@dataclass(frozen=True, slots=True)
class ResolvedCompaction:
    """How an agent compacts: the strategy, when, and the plugin key that does it, if one does."""

    strategy: CompactionStrategy
    threshold: float | None
    delegate: str | None


@dataclass(frozen=True, slots=True)
class ResolvedAgent:
    """One agent with everything decided that needs no tool registry."""

    path: AgentPath
    key: str
    spec: AgentSpec
    model: Sourced[ModelChoice]
    system_prompt: Sourced[Prompt]
    cage: Sourced[CagePolicy | None]
    tools: tuple[Sourced[ToolRule], ...]
    plugins: tuple[ResolvedPlugin, ...]
    compaction: Sourced[ResolvedCompaction]
    max_steps: Sourced[int]
    dry_run: Sourced[bool]
    on_denied: Sourced[OnDenied]
    todo_review: Sourced[TodoReview]
    children: tuple[AgentPath, ...]

    @property
    def is_root(self) -> bool:
        """Whether this is the primary agent."""
        return self.path == PRIMARY


@dataclass(frozen=True, slots=True)
class AgentTree:
    """The agents of a project by path, the primary first, parents before children.

    `restricted`: they are those of `restrict`, because nobody agreed to what the files ask for.
    """

    project: Project
    agents: Mapping[AgentPath, ResolvedAgent]
    warnings: tuple[Problem, ...]
    restricted: bool = False

    def __iter__(self) -> Iterator[ResolvedAgent]:
        """Return the agents, parents before children."""
        return iter(self.agents.values())

    def __getitem__(self, path: str) -> ResolvedAgent:
        """Return the agent at a path. Raises KeyError when there is none."""
        return self.agents[AgentPath(path)]

    @property
    def primary(self) -> ResolvedAgent:
        """The root agent."""
        return self.agents[PRIMARY]


def resolve_agents(
    project: Loaded[Project],
    daemon: Loaded[DaemonConfig],
    local: Loaded[LocalConfig],
    *,
    restricted: bool = False,
) -> AgentTree:
    """Decide every setting of every agent. Pure: looks at nothing but its arguments.

    With `restricted` the agents are those of a project that nobody has agreed to yet.
    """
    taken = restrict(project) if restricted else project
    resolver = _Resolver(taken, daemon, local)
    agents = {agent.path: agent for agent in resolver.walk()}
    return AgentTree(taken.value, MappingProxyType(agents), taken.warnings, restricted)


class _Resolver:
    def __init__(
        self, project: Loaded[Project], daemon: Loaded[DaemonConfig], local: Loaded[LocalConfig]
    ) -> None:
        self._project = project.value
        self._origins = project.provenance
        self._local = local
        self._limits = daemon.value.sandbox.agent_limits.over(agent_defaults().limits)
        self._seal = daemon.value.tools.protect_kaged

    def walk(self) -> Iterator[ResolvedAgent]:
        waiting: list[tuple[KeyPath, str, AgentSpec]] = [
            (("primary",), "primary", self._project.primary)
        ]
        dry_runs: dict[KeyPath, Sourced[bool]] = {}
        while waiting:
            path, key, spec = waiting.pop(0)
            # Below an agent that must not change anything nobody may: it could ask them to.
            above = dry_runs.get(path[:-2])
            said = Sourced(spec.dry_run, self._origin((*path, "dry_run")))
            dry_runs[path] = above if above is not None and above.value else said
            yield self._agent(path, key, spec, dry_runs[path])
            waiting[0:0] = [
                ((*path, "subagents", name), name, child) for name, child in spec.subagents.items()
            ]

    def _agent(
        self, path: KeyPath, key: str, spec: AgentSpec, dry_run: Sourced[bool]
    ) -> ResolvedAgent:
        agent = AgentPath(".".join(map(str, path)))
        return ResolvedAgent(
            path=agent,
            key=key,
            spec=spec,
            model=Sourced(self._model(spec.model), self._origin((*path, "model"))),
            system_prompt=Sourced(spec.system_prompt, self._origin((*path, "system_prompt"))),
            cage=self._cage(path, spec),
            tools=tuple(
                Sourced(rule, self._origin((*path, "tools", rule.pattern))) for rule in spec.tools
            ),
            plugins=tuple(
                self._plugin(path, name, declaration) for name, declaration in spec.plugins.items()
            ),
            compaction=self._compaction(path, spec),
            max_steps=Sourced(spec.max_steps, self._origin((*path, "max_steps"))),
            dry_run=dry_run,
            on_denied=Sourced(spec.on_denied, self._origin((*path, "on_denied"))),
            todo_review=Sourced(spec.todo_review, self._origin((*path, "todo_review"))),
            children=tuple(AgentPath(f"{agent}.subagents.{name}") for name in spec.subagents),
        )

    def _origin(self, path: KeyPath) -> Origin:
        return self._origins.get(format_key_path(path), DEFAULT)

    def _model(self, alias: str) -> ModelChoice:
        models = self._local.value.models
        key_path = format_key_path(("models", alias))
        return ModelChoice(
            alias=alias,
            entry=models.good.get(alias),
            entry_origin=self._local.provenance.get(key_path),
            problems=models.broken.get(alias, ()),
        )

    def _cage(self, path: KeyPath, spec: AgentSpec) -> Sourced[CagePolicy | None]:
        origin = self._origin((*path, "cage"))
        match spec.cage:
            case CageWord():
                return Sourced(None, origin)
            case CageBlock():
                written = spec.cage.policy(self._project.root, self._limits)
                return Sourced(seal_policy(written, self._project.root, self._seal), origin)
            case None if path == ("primary",):
                return Sourced(None, Origin(None, None, "default: the primary is uncaged"))
            case None:
                empty = CageBlock().policy(self._project.root, self._limits)
                return Sourced(empty, Origin(None, None, "default: a subagent reaches nothing"))

    def _compaction(self, path: KeyPath, spec: AgentSpec) -> Sourced[ResolvedCompaction]:
        block = spec.compaction
        delegate = None if block.delegate is None else self._plugin_key(spec, block.delegate.plugin)
        strategy = block.strategy
        if strategy is None:
            strategy = CompactionStrategy.DELEGATE if delegate else CompactionStrategy.DROP
        resolved = ResolvedCompaction(strategy, block.threshold, delegate)
        return Sourced(resolved, self._origin((*path, "compaction")))

    def _plugin_key(self, spec: AgentSpec, named: str) -> str:
        """Find the key that a delegate means: by key first, then plugin name, then package."""
        if named in spec.plugins:
            return named
        packages = {key: self._package_of(key, item) for key, item in spec.plugins.items()}
        by_name = (key for key, package in packages.items() if plugin_name_of(package) == named)
        by_package = (key for key, package in packages.items() if package == named)
        return next(by_name, None) or next(by_package, None) or named

    def _package_of(self, key: str, declaration: PluginDeclaration) -> str:
        base = self._project.primary.plugins.get(key)
        return declaration.package or (base.package if base else None) or ""

    def _plugin(self, path: KeyPath, key: str, own: PluginDeclaration) -> ResolvedPlugin:
        here: KeyPath = (*path, "plugins", key)
        base: PluginDeclaration | None = None
        if path != ("primary",):
            shared = self._project.primary.plugins.get(key)
            said = None if shared is None else shared.isolation or shared.isolation_alias
            if said is Isolation.PROJECT:
                base = shared
        there: KeyPath = ("primary", "plugins", key)

        def pick(field: str, fallback: T) -> Sourced[T]:
            for declaration, place in ((own, here), (base, there)):
                value = None if declaration is None else getattr(declaration, field)
                if value is not None:
                    return Sourced(value, self._origin((*place, field)))
            return Sourced(fallback, DEFAULT)

        hooks: Sourced[tuple[Hook, ...] | None] = pick("hooks", None)
        if own.hooks is None and hooks.value is not None and path != ("primary",):
            kept = tuple(hook for hook in hooks.value if hook not in PRIMARY_ONLY_HOOKS)
            hooks = Sourced(kept, hooks.origin)
        # Inherited together with the package; what stands here cannot differ (PH-AMB-24).
        leading, place = (own, here) if base is None else (base, there)
        isolation: Sourced[Isolation] = pick("isolation", Isolation.AGENT)
        alias = leading.isolation_alias
        by_config = alias is not None and leading.isolation is None and own.isolation is None
        if by_config and alias is not None:
            isolation = Sourced(alias, self._origin((*place, "config", "isolation")))
        base_config = {} if base is None or base.config is None else base.config
        own_config = own.config or {}
        return ResolvedPlugin(
            key=key,
            package=pick("package", ""),
            isolation=isolation,
            isolation_by_config=by_config,
            hooks=hooks,
            source=pick("source", None),
            version=pick("version", None),
            own_config=MappingProxyType(dict(own_config)),
            base_config=MappingProxyType(dict(base_config)),
            config_origins=MappingProxyType(
                {
                    **{name: self._origin((*there, "config", name)) for name in base_config},
                    **{name: self._origin((*here, "config", name)) for name in own_config},
                }
            ),
            inherits=base is not None,
        )
