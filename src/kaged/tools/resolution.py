"""`resolve_tools`: which tools one agent has, and why. Computed once per session, then fixed.

In order: what is registered, the defaults of the agent's role, its `tools:` map, the rule that
keeps root-only tools to the root. The cage comes later, at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree, ResolvedAgent
from kaged.config.project import OnDenied
from kaged.config.toolrules import ToolRule, glob_matches
from kaged.tools.call import ToolInvocation
from kaged.tools.definition import Handler, Tool, ToolDefinition, ToolSource
from kaged.tools.errors import ToolError
from kaged.tools.registry import SYNTHETIC_PREFIX, RegisteredTool, ToolRegistry
from kaged.tools.schema import ParamSchema, schema_hash

ROOT_DEFAULTS: Final = (
    "kaged.issue",
    "kaged.workflow.*",
    "kaged.todo",
    "kaged.ask",
    "kaged.form",
    "kaged.checkpoint",
)
"""What the root agent has without asking (AT-RES-04, AT-RES-19); no other agent has defaults."""

OLD_GLOBS: Final[Mapping[str, str]] = MappingProxyType({"lsp.*": "code.lsp"})
"""Globs over names that tools no longer have (AT-RES-10)."""

DELEGATION_PARAMETERS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "minLength": 1,
            "description": "What the agent should do. It sees nothing of this conversation.",
        },
        "context": {"type": "object", "description": "Facts the agent needs, as JSON."},
    },
    "required": ["message"],
    "additionalProperties": False,
}
_DELEGATION_RETURNS: Final[JsonObject] = {"description": "What the agent answered."}
_NO_ACTIONS: frozenset[str] = frozenset()
_NO_REASONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EnabledTool:
    """A tool that an agent has. `why` says by which rule; `off` are its switched-off actions."""

    name: str
    why: str
    off: frozenset[str] = _NO_ACTIONS


@dataclass(frozen=True, slots=True)
class RuleWarning:
    """A key of an agent's `tools:` map that matches nothing now."""

    agent: str
    pattern: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class AgentTools:
    """The tools of one agent, fixed. `synthetic` are its `agent-{key}` tools.

    `off_because` tells, for tools that a rule switched off, which rule did. With `dry_run`, calls
    that would change something only tell so. With `asks`, a person is asked when a call is refused
    that a grant would let pass.
    """

    agent: str
    enabled: Mapping[str, EnabledTool]
    synthetic: Mapping[str, RegisteredTool]
    warnings: tuple[RuleWarning, ...] = ()
    off_because: Mapping[str, str] = field(default_factory=lambda: _NO_REASONS)
    dry_run: bool = False
    asks: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names of all its tools, sorted."""
        return sorted((*self.enabled, *self.synthetic))

    def export(self, registry: ToolRegistry) -> list[JsonObject]:
        """Return the tools as a model is told about them: name, description, parameters.

        A tool that left the registry is left out; a switched-off action does not show.
        """
        entries = [(registry.get(name), one.off) for name, one in self.enabled.items()]
        entries += [(one, _NO_ACTIONS) for one in self.synthetic.values()]
        exported: list[JsonObject] = [
            {
                "name": entry.name,
                "description": entry.definition.description,
                "parameters": _narrowed(entry.definition.parameters, off),
            }
            for entry, off in entries
            if entry is not None
        ]
        return sorted(exported, key=lambda one: str(one["name"]))


def resolve_tools(
    tree: AgentTree,
    agent_path: str,
    registry: ToolRegistry,
    *,
    plugins: Collection[str] | None = None,
    delegate: Handler | None = None,
    outside: Callable[[str], bool] = lambda _owner: True,
    also: str | None = None,
) -> AgentTools:
    """Decide which tools an agent of a project has.

    `plugins` are the plugins that the agent declares and may use; None takes its declarations as
    they stand. `delegate` answers the `agent-{key}` tools. `outside` says whether the operator lets
    the agent have tools of an outside owner, such as an MCP server, at all. `also` is a tool that a
    rule of its own switches on, to find out whether one could.

    Raises:
        KeyError: the project has no such agent.
    """
    agent = tree[agent_path]
    declared = {plugin.name for plugin in agent.plugins}
    usable = declared if plugins is None else declared & set(plugins)
    rules = [sourced.value for sourced in agent.tools]
    if also is not None:
        rules.append(ToolRule(also, True, 0))
    enabled: dict[str, EnabledTool] = {}
    off_because: dict[str, str] = {}
    for entry in registry.list():
        definition = entry.definition
        if definition.root_only and not agent.is_root:
            continue
        from_plugin = definition.source is ToolSource.PLUGIN and not entry.outside
        if from_plugin and definition.plugin_name not in usable:
            continue  # PH-TOOL-08: on every agent that declares the plugin, and on no other
        if entry.outside and not outside(definition.plugin_name or ""):
            continue
        default = _default(agent, entry, from_plugin=from_plugin)
        found, reason = _decide(entry, rules, default)
        if found is not None:
            enabled[entry.name] = found
        elif reason:
            off_because[entry.name] = reason
    return AgentTools(
        agent=agent.path,
        enabled=MappingProxyType(enabled),
        synthetic=MappingProxyType(_synthetic(tree, agent, delegate)),
        warnings=tuple(_warnings(agent, rules, registry)),
        off_because=MappingProxyType(off_because),
        dry_run=agent.dry_run.value,
        asks=agent.on_denied.value is OnDenied.ASK,
    )


# -- one tool ------------------------------------------------------------------------------------


def _default(agent: ResolvedAgent, entry: RegisteredTool, *, from_plugin: bool) -> str:
    """Return the reason why a tool is on before any rule is looked at; empty when it is off."""
    if from_plugin:
        return f"plugin {entry.definition.plugin_name} is declared on this agent"
    if agent.is_root and any(glob_matches(pattern, entry.name) for pattern in ROOT_DEFAULTS):
        return "default of the root agent"
    return ""


def _decide(
    entry: RegisteredTool, rules: list[ToolRule], default: str
) -> tuple[EnabledTool | None, str]:
    """Weigh the rules for a tool, and for each of its actions that has a name of its own."""
    children = _children(entry)
    rule = _best(rules, entry, None)
    on, why = _outcome(rule, default)
    by_action = {
        action: _outcome(_best(rules, entry, alias), default) for action, alias in children.items()
    }
    off = {action for action in entry.actions if not by_action.get(action, (on, why))[0]}
    if entry.actions and len(off) == len(entry.actions):
        return None, why
    if not entry.actions and not on:
        return None, why
    if not on:
        why = next(reason for known, reason in by_action.values() if known)
    return EnabledTool(entry.name, why, frozenset(off)), why


def _children(entry: RegisteredTool) -> dict[str, str]:
    """Return the actions that once were tools, with the names they had."""
    return {
        str(extra["action"]): alias
        for alias, extra in entry.tool.aliases.items()
        if set(extra) == {"action"}
    }


def _best(rules: list[ToolRule], entry: RegisteredTool, alias: str | None) -> ToolRule | None:
    """Return the most specific rule about a tool, or about the action behind an alias."""
    best: ToolRule | None = None
    for rule in rules:
        if _is_about(rule, entry, alias) and (best is None or rule.specificity >= best.specificity):
            best = rule
    return best


def _is_about(rule: ToolRule, entry: RegisteredTool, alias: str | None) -> bool:
    if rule.matches(entry.name) or (alias is not None and rule.matches(alias)):
        return True
    if OLD_GLOBS.get(rule.pattern) == entry.name:
        return True
    aliases = entry.tool.aliases
    if rule.exact:
        # A former name of the whole tool, such as search.ast_grep.
        return aliases.get(rule.pattern) == {}
    # A glob over all former children means the tool itself (AT-RES-10).
    return bool(aliases) and all(rule.matches(name) for name in aliases)


def _outcome(rule: ToolRule | None, default: str) -> tuple[bool, str]:
    if rule is None:
        return bool(default), default
    word = "true" if rule.enabled else "false"
    return rule.enabled, f"tools: {rule.pattern!r} {{enabled: {word}}} (line {rule.line})"


# -- around it -----------------------------------------------------------------------------------


def _synthetic(
    tree: AgentTree, agent: ResolvedAgent, delegate: Handler | None
) -> dict[str, RegisteredTool]:
    """Make the tools by which an agent sets its direct children to work (AT-RES-14)."""
    made: dict[str, RegisteredTool] = {}
    for path in agent.children:
        child = tree[path]
        name = f"{SYNTHETIC_PREFIX}{child.key}"
        definition = ToolDefinition(
            name=name,
            namespace="agent",
            description=child.spec.description or f"Give a task to the agent {child.key}.",
            parameters=DELEGATION_PARAMETERS,
            returns=_DELEGATION_RETURNS,
            requires=(),
        )
        made[name] = RegisteredTool(
            name=name,
            tool=Tool(definition, delegate or _nobody_listens),
            params=ParamSchema(DELEGATION_PARAMETERS),
            schema_hash=schema_hash(DELEGATION_PARAMETERS),
            actions=(),
        )
    return made


async def _nobody_listens(call: ToolInvocation) -> JsonValue:
    raise ToolError(
        f"{call.tool_name} is answered by the agent loop, and this call did not come from one",
        code="tool_not_found",
        fix="send the task to the agent in a session",
    )


def _warnings(
    agent: ResolvedAgent, rules: list[ToolRule], registry: ToolRegistry
) -> Iterable[RuleWarning]:
    for rule in rules:
        matched = any(
            _is_about(rule, entry, None) or any(map(rule.matches, entry.tool.aliases))
            for entry in registry.list()
        )
        if not matched:
            yield RuleWarning(
                agent=agent.path,
                pattern=rule.pattern,
                line=rule.line,
                message=f"tools: {rule.pattern!r} on {agent.path} matches no tool there is now",
            )


def _narrowed(parameters: JsonObject, off: frozenset[str]) -> JsonObject:
    """Take switched-off actions out of the schema that the agent sees (AT-RES-21)."""
    match parameters:
        case {"properties": {"action": {"enum": [*listed]} as action} as properties} if off:
            kept = [one for one in listed if one not in off]
            return {**parameters, "properties": {**properties, "action": {**action, "enum": kept}}}
        case _:
            return parameters
