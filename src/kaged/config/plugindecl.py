"""`PluginDeclaration`: a plugin on one agent, and what subagents take over from the primary.

Inheritance exists in one case only: the primary declares a plugin with `isolation: project`, and a
subagent declares it again under the same key. Then the primary's declaration is the base and the
subagent's fields lie over it; lists are replaced, not joined. Package and isolation cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonValue
from kaged.config.containers import JsonTable, ListOf, MapOf, Mapped
from kaged.config.nodes import MapEntry, Node
from kaged.config.pluginwords import (
    PACKAGE_PATTERN,
    PRIMARY,
    PRIMARY_ONLY_HOOKS,
    SLUG_PATTERN,
    AgentPath,
    Hook,
    Isolation,
    PluginSource,
    parse_source,
    plugin_name_of,
)
from kaged.config.problems import KeyPath, Severity
from kaged.config.reading import DocumentPosition
from kaged.config.records import RecordShape, optional, record
from kaged.config.semver import VersionRange, parse_range
from kaged.config.shapes import Choice, TextShape

MAX_PLUGINS: Final = 100
_ISOLATIONS: Final = frozenset(isolation.value for isolation in Isolation)

_SECRET_WORD = re.compile(
    r"(?:^|_)(?:api_?key|access_?key|private_?key|token|secret|password|passwd|credentials?)$"
)


@record
class PluginDeclaration:
    """A plugin as one agent declares it.

    None means that the declaration does not say; it may be inherited, or the default applies.
    """

    package: str | None = optional(
        TextShape(
            max_chars=214, pattern=PACKAGE_PATTERN, means="a package name such as @scope/name"
        ),
        "The plugin's package; its last segment is the plugin's name. Required unless the primary "
        "shares the plugin with `isolation: project`.",
        default=None,
    )
    source: PluginSource | None = optional(
        Mapped(
            TextShape(max_chars=2000),
            parse_source,
            "`./path`, `https://github.com/…` or `git+https://…`",
            show=False,
        ),
        "Where to fetch the plugin from, after consent. Left out: the operator installs it.",
        default=None,
    )
    version: VersionRange | None = optional(
        Mapped(TextShape(max_chars=256), parse_range, "version constraint"),
        "Which versions will do, for example `^1.2`.",
        default=None,
    )
    isolation: Isolation | None = optional(
        Choice(Isolation),
        "`agent` (the default): each agent has the plugin for itself. `project`: the agents that "
        "declare it share it.",
        default=None,
    )
    hooks: tuple[Hook, ...] | None = optional(
        ListOf(Choice(Hook), unique=True),
        "Which of the plugin's hooks are used. Left out: all of them; an empty list: none.",
        default=None,
    )
    config: Mapping[str, JsonValue] | None = optional(
        JsonTable(),
        "Settings for the plugin. Secrets do not belong here but in `local.toml`.",
        default=None,
    )

    @property
    def isolation_alias(self) -> Isolation | None:
        """What `config.isolation` says, the other spelling of `isolation` (PH-AMB-24)."""
        said = None if self.config is None else self.config.get("isolation")
        return Isolation(said) if isinstance(said, str) and said in _ISOLATIONS else None

    @property
    def plugin_name(self) -> str | None:
        """The plugin's name by its package, if the package is given here."""
        return None if self.package is None else plugin_name_of(self.package)


def _check_declaration(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    config = node.child("config")
    if config is None:
        return
    section = f'[plugins."{given.get("package") or "<package>"}"]'
    for path, entry in _secret_entries(config, ("config",)):
        place.at(*path).error(
            entry.mark,
            f"{path[-1]} looks like a secret, and the project file is committed",
            f"put it into local.toml under {section}",
            "secret_in_project",
        )


PLUGINS_SHAPE: Final = MapOf(
    RecordShape(
        PluginDeclaration,
        unknown=Severity.ERROR,
        check=_check_declaration,
        hints=MappingProxyType(
            {
                "grants": "grants are given by the operator in local.toml, never by a project",
                "system_config": "secrets belong in local.toml under the package's name",
                "secrets": "secrets belong in local.toml under the package's name",
                "cage": "a plugin's cage follows from its manifest alone",
                "enabled": "plugins are enabled in config.toml: [plugins] enabled",
            }
        ),
    ),
    TextShape(max_chars=64, pattern=SLUG_PATTERN, means="a key (lower case, digits, _ and -)"),
    max_items=MAX_PLUGINS,
)


def _secret_entries(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, MapEntry]]:
    if isinstance(node.value, tuple):
        for index, item in enumerate(node.value):
            yield from _secret_entries(item, (*path, index))
    if isinstance(node.value, Mapping):
        for name, entry in node.value.items():
            if isinstance(entry.node.value, str):
                if entry.node.value and looks_secret(name):
                    yield (*path, name), entry
            else:
                yield from _secret_entries(entry.node, (*path, name))


def looks_secret(name: str) -> bool:
    """Return whether a field so named holds a secret: `api_token` does, `token_style` does not."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return _SECRET_WORD.search(snake) is not None


def agent_nodes(primary: Node) -> Iterator[tuple[AgentPath, KeyPath, Node]]:
    """Walk the agents of a document as far as they are maps, the primary first, in file order."""
    waiting: list[tuple[AgentPath, KeyPath, Node]] = [(PRIMARY, ("primary",), primary)]
    while waiting:
        agent, path, node = waiting.pop(0)
        yield agent, path, node
        below = node.child("subagents")
        if below is None or not isinstance(below.value, Mapping):
            continue
        waiting[0:0] = [
            (AgentPath(f"{agent}.subagents.{name}"), (*path, "subagents", name), entry.node)
            for name, entry in below.value.items()
        ]


def check_plugins(primary: Node, top: DocumentPosition) -> None:
    """Check how the declarations of all agents fit together, as far as each can be read."""
    bases = _declarations(primary)
    for agent, path, node in agent_nodes(primary):
        for name, declaration in _declarations(node).items():
            place = top.at(*path, "plugins", name)
            if agent == PRIMARY:
                _check_self_contained(declaration, place)
            else:
                _check_subagent(name, declaration, bases.get(name), place)
                _warn_primary_only_hooks(agent, declaration, place)


def _check_subagent(name: str, node: Node, base: Node | None, place: DocumentPosition) -> None:
    own = _text(node, "isolation")
    if base is None or not _shares(base):
        if own is not None and own.value == Isolation.PROJECT:
            place.error(
                own,
                f"the primary does not declare {name} with isolation: project",
                f"declare primary.plugins.{name} with isolation: project, or remove it here",
                "isolation",
            )
            return
        _check_self_contained(node, place)
        return
    for field in ("package", "isolation"):
        mine, theirs = _text(node, field), _text(base, field)
        if mine is not None and theirs is not None and mine.value != theirs.value:
            place.at(field).error(
                mine,
                f"{field} cannot differ from the primary's ({theirs.value})",
                f"remove {field} here",
                "isolation",
            )


def _check_self_contained(node: Node, place: DocumentPosition) -> None:
    if node.entry("package") is None and isinstance(node.value, Mapping):
        place.at("package").error(node, "is missing", "add package", "missing_key")


def _warn_primary_only_hooks(agent: AgentPath, node: Node, place: DocumentPosition) -> None:
    hooks = node.child("hooks")
    for hook in hooks.value if hooks is not None and isinstance(hooks.value, tuple) else ():
        if hook.value in PRIMARY_ONLY_HOOKS:
            place.at("hooks").warn(
                hook,
                f"{hook.value} fires on the primary agent only, never on {agent}",
                "remove the hook here",
                "plugin.hook.illegal",
            )


def _shares(base: Node) -> bool:
    config = base.child("config")
    isolation = _text(base, "isolation") or (None if config is None else _text(config, "isolation"))
    return isolation is not None and isolation.value == Isolation.PROJECT


def _declarations(agent: Node) -> dict[str, Node]:
    plugins = agent.child("plugins")
    if plugins is None or not isinstance(plugins.value, Mapping):
        return {}
    return {name: entry.node for name, entry in plugins.value.items()}


def _text(node: Node, name: str) -> Node | None:
    found = node.child(name)
    return found if found is not None and isinstance(found.value, str) else None
