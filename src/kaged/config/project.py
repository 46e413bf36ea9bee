"""`Project` and `AgentSpec`: what `.kaged/project.yaml` says, as frozen types; `load_project`.

A project file is loaded whole or not at all, and everything that is wrong with it is reported in
one go, each problem with its line, key path and fix. Unknown keys are errors here: a misspelt
`cage` must not leave an agent uncaged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.cageblock import CageBlock, CageShape, CageWord
from kaged.config.containers import Later, MapOf
from kaged.config.files import file_problem, read_text
from kaged.config.nodes import Node
from kaged.config.plugindecl import (
    PLUGINS_SHAPE,
    PluginDeclaration,
    agent_nodes,
    check_plugins,
)
from kaged.config.pluginwords import SLUG_PATTERN, plugin_name_of
from kaged.config.problems import ConfigFileInvalid, KeyPath, Severity
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.prompts import Prompt, PromptShape
from kaged.config.reading import INVALID, DocumentPosition, Loaded, NoValue, Reading
from kaged.config.records import RecordShape, empty_map, key, optional, record, section, strict
from kaged.config.servers import DAP_SHAPE, LSP_SHAPE, DapBlock, LspBlock
from kaged.config.shapes import Choice, Flag, Number, Shape, TextShape, Whole, wrong_kind
from kaged.config.toolrules import ToolRule, ToolRulesShape, check_root_only
from kaged.config.workflows import WORKFLOWS_SHAPE, Workflow, check_agents
from kaged.config.yamldoc import parse_yaml

PROJECT_FILE: Final = "project.yaml"
PROJECT_VERSION: Final = 1
DEFAULT_MODEL: Final = "default"
"""The alias that no project needs to ask for."""
DEFAULT_MAX_STEPS: Final = 50
MAX_SUBAGENTS: Final = 100

SLUG: Final = TextShape(
    max_chars=64, pattern=SLUG_PATTERN, means="a slug (lower case, digits, _ and -)"
)


class CompactionStrategy(StrEnum):
    """What is done when an agent's context window is full."""

    DROP = "drop"
    SUMMARIZE = "summarize"
    DELEGATE = "delegate"


class OnDenied(StrEnum):
    """What happens when a call of an agent is refused for want of a grant."""

    DENY = "deny"
    ASK = "ask"


class TodoReview(StrEnum):
    """Whether the root reviews a subagent's proposed todos or takes them as they are."""

    AUTO = "auto"
    REVIEW = "review"


@record
class CompactionDelegate:
    """Which plugin compacts."""

    plugin: str = key(
        TextShape(max_chars=214),
        "The plugin, by its key on this agent, its name or its package.",
    )


@record
class Compaction:
    """How an agent's context window is kept from overflowing."""

    strategy: CompactionStrategy | None = optional(
        Choice(CompactionStrategy),
        "`drop` old messages, `summarize` them, or `delegate` to a plugin. `drop` by default, "
        "`delegate` when `delegate` is given.",
        default=None,
    )
    threshold: float | None = optional(
        Number(above=0),
        "When to compact: up to 1 a share of the window, above 1 a number of tokens.",
        default=None,
    )
    delegate: CompactionDelegate | None = optional(
        strict(CompactionDelegate),
        "The compactor plugin; required by strategy `delegate`, and implies it when given alone.",
        default=None,
    )


@record
class AgentSpec:
    """One agent: its model and prompt, what it may reach, and the agents below it."""

    model: str = key(
        TextShape(max_chars=128, pattern=r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", means="a model alias"),
        "The alias of a model; the operator's `local.toml` says which one it is.",
    )
    system_prompt: Prompt = key(PromptShape(), "The agent's instructions.")
    description: str = key(
        TextShape(min_chars=0, max_chars=2000, one_line=False),
        "What the agent is for; shown to its parent as the description of `agent-<key>`.",
        default="",
    )
    cage: CageBlock | CageWord | None = optional(
        CageShape(),
        "What the agent can reach. Left out: the primary is uncaged, any other agent has an empty "
        "cage and reaches nothing.",
        default=None,
    )
    tools: tuple[ToolRule, ...] = key(
        ToolRulesShape(), "Which tools are on, by name or glob.", default=()
    )
    plugins: Mapping[str, PluginDeclaration] = key(
        PLUGINS_SHAPE, "The plugins of this agent.", default_factory=empty_map
    )
    subagents: Mapping[str, AgentSpec] = key(
        MapOf(Later(lambda: AGENT_SHAPE), SLUG, max_items=MAX_SUBAGENTS),
        "The agents that this one can call, by key.",
        default_factory=empty_map,
    )
    compaction: Compaction = section(
        "What to do when the context window is full.", factory=Compaction, unknown=Severity.ERROR
    )
    max_steps: int = key(
        Whole(1, 100_000), "How many model steps a run may take.", default=DEFAULT_MAX_STEPS
    )
    dry_run: bool = key(
        Flag(),
        "Tools that would change something only report what they would do; counts for all agents "
        "below, too.",
        default=False,
    )
    on_denied: OnDenied = key(
        Choice(OnDenied),
        "`ask`: a call that is refused for a path, a host, a named grant or a tool becomes a "
        "question to the person of the run; `deny`: it is refused.",
        default=OnDenied.DENY,
    )
    todo_review: TodoReview = key(
        Choice(TodoReview),
        "Subagents only: whether the root reviews the todos that this agent proposes.",
        default=TodoReview.REVIEW,
    )


@record
class ProjectTitle:
    """The project's name for people."""

    name: str = key(TextShape(max_chars=200), "The name; the slug is made of it.")
    description: str = key(
        TextShape(min_chars=0, max_chars=4000, one_line=False), "What it is about.", default=""
    )


class _TitleShape(Shape[ProjectTitle]):
    """A slug, or a map with name and description."""

    WORDS = "slug or table"
    _MAP: Final = strict(ProjectTitle)

    def read(self, node: Node, place: DocumentPosition) -> ProjectTitle | NoValue:
        """Read either form."""
        if isinstance(node.value, Mapping):
            return self._MAP.read(node, place)
        if not isinstance(node.value, str):
            return wrong_kind(node, place, "text (a slug) or a map with name and description")
        slug = SLUG.read(node, place)
        return INVALID if isinstance(slug, NoValue) else ProjectTitle(name=slug)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return both forms."""
        return {"oneOf": [SLUG.schema(defs), self._MAP.schema(defs)]}


@record
class ProjectDsl:
    """The project file."""

    primary: AgentSpec = key(Later(lambda: AGENT_SHAPE), "The root agent.")
    version: int = key(
        Whole(PROJECT_VERSION, PROJECT_VERSION),
        "The version of this file format.",
        default=PROJECT_VERSION,
    )
    project: ProjectTitle | None = optional(
        _TitleShape(), "The project's name. Left out: made of the directory's name.", default=None
    )
    lsp: LspBlock = key(LSP_SHAPE, "Language servers.", default_factory=LspBlock)
    dap: DapBlock = key(DAP_SHAPE, "Debug adapters.", default_factory=DapBlock)
    workflows: Mapping[str, Workflow] = key(
        WORKFLOWS_SHAPE, "Named jobs.", default_factory=empty_map
    )
    instructions: bool = key(
        Flag(),
        "Whether the project's `AGENTS.md` (or `CLAUDE.md`) is part of the prompts of its agents.",
        default=True,
    )


def _check_agent(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    is_root = place.path == ("primary",)
    review = node.child("todo_review")
    if is_root and review is not None:
        place.at("todo_review").error(
            review, "is for subagents only; the primary has no parent", "remove it"
        )
    tools = node.child("tools")
    if not is_root and tools is not None and "tools" in given:
        below = place.at("tools")
        check_root_only(given["tools"], tools, below, ".".join(map(str, place.path)))


AGENT_SHAPE: Final = RecordShape(
    AgentSpec,
    unknown=Severity.ERROR,
    check=_check_agent,
    hints=MappingProxyType(
        {
            "prompt": "did you mean system_prompt?",
            "agents": "did you mean subagents?",
            "capabilities": "named grants belong into the cage: cage.capabilities",
        }
    ),
)

_OPERATOR_HINT: Final = "this belongs to the operator's config.toml, not to a project"
PROJECT_SHAPE: Final = RecordShape(
    ProjectDsl,
    unknown=Severity.ERROR,
    hints=MappingProxyType(
        {
            "tools": "tools are set per agent: write them under primary.tools",
            "plugins": "plugins are declared per agent: write them under primary.plugins",
            "cage": "cages are set per agent: write it under primary.cage",
            "subagents": "write them under primary.subagents",
            "agents": "write them under primary.subagents",
            "models": "models are set by the operator in local.toml: [models.<alias>]",
            "secrets": "secrets belong in the operator's local.toml, never in a project",
            "capabilities": _OPERATOR_HINT,
            "skills": _OPERATOR_HINT,
            "mcp": _OPERATOR_HINT,
            "providers": _OPERATOR_HINT,
            "sandbox": _OPERATOR_HINT,
        }
    ),
)


@dataclass(frozen=True, slots=True)
class Project:
    """A loaded project. `root` is absolute with every link resolved."""

    root: Path
    file: Path
    slug: str
    name: str
    description: str
    dsl: ProjectDsl

    @property
    def primary(self) -> AgentSpec:
        """The root agent."""
        return self.dsl.primary

    @property
    def workflows(self) -> Mapping[str, Workflow]:
        """The named jobs."""
        return self.dsl.workflows


def agent_specs(primary: AgentSpec) -> Iterator[tuple[KeyPath, AgentSpec]]:
    """Return every agent below and with a primary, each with its place in the project file."""
    waiting: list[tuple[KeyPath, AgentSpec]] = [(("primary",), primary)]
    while waiting:
        path, spec = waiting.pop()
        yield path, spec
        waiting += [((*path, "subagents", name), one) for name, one in spec.subagents.items()]


def load_project(root: Path | str) -> Loaded[Project]:
    """Read `.kaged/project.yaml` of the project at `root`.

    Blocks on the disk and may take a second for the largest files that are read at all; call it
    off the event loop.

    Raises:
        ConfigFileInvalid: with every problem of the file; nothing of it is loaded.
    """
    real_root = Path(os.path.realpath(root))
    if not real_root.is_dir():
        raise ConfigFileInvalid(
            [file_problem(root, "not_a_directory", "is not a directory", "name the project root")]
        )
    found = read_text(
        real_root / KAGED_DIR / PROJECT_FILE,
        inside=real_root,
        fix_missing=f"run `kaged project init {real_root}`",
    )
    return parse_project(found.text, real_root)


def parse_project(text: str, root: Path) -> Loaded[Project]:
    """Read the text of a project file as if it lay in `root`; prompts are read from there.

    Raises:
        ConfigFileInvalid: as `load_project`.
    """
    file = root / KAGED_DIR / PROJECT_FILE
    reading = Reading(str(file), root=root)
    loaded = reading.read(parse_yaml(text, str(file)), _read_document)
    title = loaded.value.project
    slug = slugify(root.name if title is None else title.name)
    project = Project(
        root=root,
        file=file,
        slug=slug,
        name=slug if title is None else title.name,
        description="" if title is None else title.description,
        dsl=loaded.value,
    )
    return Loaded(project, loaded.warnings, loaded.provenance)


def slugify(name: str) -> str:
    """Make a slug of any name: lower case, digits and hyphens, beginning with a letter."""
    slug = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:64].rstrip("-_")
    if not slug:
        return "project"
    return slug if slug[0].isalpha() else f"p-{slug}"[:64]


def _read_document(node: Node, top: DocumentPosition) -> ProjectDsl | NoValue:
    """Read the file, and check what concerns several agents as far as it can be read."""
    dsl = PROJECT_SHAPE.read(node, top)
    primary, workflows = node.child("primary"), node.child("workflows")
    if primary is not None:
        check_plugins(primary, top)
        _check_delegates(primary, top)
        if workflows is not None:
            known = frozenset(str(agent) for agent, _, _ in agent_nodes(primary))
            check_agents(workflows, known, top)
    return dsl


def _check_delegates(primary: Node, top: DocumentPosition) -> None:
    shared = primary.child("plugins")
    for _, path, agent in agent_nodes(primary):
        compaction = agent.child("compaction")
        if compaction is None or not isinstance(compaction.value, Mapping):
            continue
        place = top.at(*path, "compaction")
        delegate = compaction.child("delegate")
        strategy = compaction.child("strategy")
        if strategy is not None and strategy.value == "delegate" and delegate is None:
            place.at("delegate").error(
                strategy,
                "is missing: strategy delegate needs to know the plugin",
                "add delegate: { plugin: <key> }",
                "missing_key",
            )
        named = None if delegate is None else delegate.child("plugin")
        if named is None or not isinstance(named.value, str):
            continue
        if named.value not in _delegate_names(agent.child("plugins"), shared):
            place.at("delegate", "plugin").error(
                named,
                f"{place.show(named.value)} is not declared on this agent",
                "declare the plugin under plugins of the same agent",
                "unknown_plugin",
            )


def _delegate_names(own: Node | None, shared: Node | None) -> set[str]:
    """Return every name that a plugin of an agent goes by: key, plugin name, package."""
    names: set[str] = set()
    if own is None or not isinstance(own.value, Mapping):
        return names
    for name, entry in own.value.items():
        names.add(name)
        base = None if shared is None else shared.child(name)
        for declaration in (entry.node, base):
            package = None if declaration is None else declaration.child("package")
            if package is not None and isinstance(package.value, str):
                names.update({package.value, plugin_name_of(package.value)})
                break
    return names
