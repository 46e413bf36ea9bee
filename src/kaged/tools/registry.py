"""`ToolRegistry`: every tool that can be enabled, whoever brings it. One place for all sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.jsonschemas import compile_fault
from kaged.config.pluginwords import PLUGIN_NAME_PATTERN, RESERVED_NAMES
from kaged.kernel.policy import SeccompProfile
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
)
from kaged.tools.definition import Tool, ToolDefinition, ToolSource
from kaged.tools.errors import ToolError
from kaged.tools.schema import ParamSchema, schema_hash

BUILTIN_NAMESPACES: Final = frozenset(
    {"file", "edit", "search", "code", "debug", "shell", "kaged", "web"}
)
MAX_TOOLS: Final = 5000
MAX_NAME_CHARS: Final = 200
SYNTHETIC_PREFIX: Final = "agent-"  # names of the form agent-{key} belong to the tree of agents

_BUILTIN_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*")  # AT-REG-20
_OUTSIDE_NAME = re.compile(r"[a-z][a-z0-9-]*\.[A-Za-z0-9_-]+")  # AT-AMB-50
_OWNER = re.compile(PLUGIN_NAME_PATTERN)
_KNOWN_REQUIREMENTS = (FsRequirement, SeccompRequirement, NetRequirement, CapabilityRequirement)


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool in the registry, with what was worked out once.

    `actions` are the values of its `action` parameter, empty for a tool without one. `outside`
    marks tools of MCP servers and Lua scripts, which no agent declares as a plugin.
    """

    name: str
    tool: Tool
    params: ParamSchema
    schema_hash: str
    actions: tuple[str, ...]
    outside: bool = False
    source: str = ToolSource.BUILTIN.value  # a plain text: what is looked up most is cheapest so

    @property
    def definition(self) -> ToolDefinition:
        """The definition it was registered with."""
        return self.tool.definition


@dataclass(frozen=True, slots=True)
class FoundTool:
    """What a name stands for: a tool, and through an alias some of its arguments."""

    entry: RegisteredTool
    alias: str | None = None
    extra: JsonObject | None = None


class ToolRegistry:
    """Holds tools by name. Being in it gives no agent access to anything (AT-REG-23)."""

    def __init__(self) -> None:
        self._tools: dict[str, RegisteredTool] = {}
        self._found: dict[str, FoundTool] = {}
        self._watchers: tuple[Callable[[], None], ...] = ()

    def __len__(self) -> int:
        """Count the tools; aliases are not counted."""
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        """Return whether a tool has this name; aliases do not count."""
        return name in self._tools

    # -- coming and going ----------------------------------------------------------------------

    def register(self, tool: Tool, *, outside: bool = False) -> RegisteredTool:
        """Take in a tool. `outside` says that it comes from an MCP server or a Lua script.

        Raises:
            ToolError: `tool_definition_invalid`; the definition breaks a rule; the message says
                which.
            ToolError: `reserved_plugin_name`; its owner has the name of a built-in namespace.
            ToolError: `tool_name_collision`; the name, or that of an alias, is taken; the first
                stays.
        """
        entry = _checked(tool, outside=outside)
        names = [entry.name, *tool.aliases]
        for name in names:
            first = self._found.get(name)
            if first is not None or names.count(name) > 1:
                theirs = None if first is None else first.entry.definition.plugin_name
                owner = "it has itself" if first is None else theirs or "built in"
                raise ToolError(
                    f"there is a tool named {name} already ({owner})",
                    code="tool_name_collision",
                    fix="rename one of the two",
                    name=name,
                )
        if len(self._tools) >= MAX_TOOLS:
            raise ToolError(
                f"there are {MAX_TOOLS} tools, which is the limit", code="tool_definition_invalid"
            )
        self._tools[entry.name] = entry
        self._found[entry.name] = FoundTool(entry)
        for alias, extra in tool.aliases.items():
            self._found[alias] = FoundTool(entry, alias, dict(extra))
        self._changed()
        return entry

    def register_all(self, tools: Iterable[Tool]) -> None:
        """Take in the tools that come with the daemon; those of skills have their own owner."""
        for tool in tools:
            self.register(tool, outside=tool.definition.source is ToolSource.PLUGIN)

    def withdraw(self, name: str) -> bool:
        """Take a tool out again; returns whether it was there."""
        entry = self._tools.pop(name, None)
        if entry is None:
            return False
        for known in (name, *entry.tool.aliases):
            del self._found[known]
        self._changed()
        return True

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change; returns a function that ends this."""
        self._watchers = (*self._watchers, callback)

        def end() -> None:
            self._watchers = tuple(one for one in self._watchers if one is not callback)

        return end

    def _changed(self) -> None:
        for callback in self._watchers:
            callback()

    # -- looking -------------------------------------------------------------------------------

    def find(self, name: str) -> FoundTool | None:
        """Return what a name or alias stands for."""
        return self._found.get(name)

    def get(self, name: str) -> RegisteredTool | None:
        """Return the tool of a canonical name."""
        return self._tools.get(name)

    def list(self, namespace: str | None = None) -> tuple[RegisteredTool, ...]:
        """Return the tools, or those of one namespace, by name."""
        return tuple(
            entry
            for _, entry in sorted(self._tools.items())
            if namespace is None or entry.definition.namespace == namespace
        )

    def names(self, namespace: str | None = None) -> tuple[str, ...]:
        """Return the canonical names, sorted."""
        return tuple(entry.name for entry in self.list(namespace))


def outside_name(owner: str, tool: str) -> str:
    """Return the name under which a tool of an MCP server or Lua script is registered."""
    return f"{owner}.{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"


def _checked(tool: Tool, *, outside: bool) -> RegisteredTool:
    definition = tool.definition
    _check_texts(definition)
    if definition.source is ToolSource.PLUGIN:
        _check_plugin(definition, outside=outside)
    else:
        _check_builtin(definition)
    if definition.principal_scope not in (None, "root-only"):
        raise _invalid(definition, "principal_scope can only be root-only")
    for requirement in definition.requires:
        if not isinstance(requirement, _KNOWN_REQUIREMENTS):  # pyright: ignore[reportUnnecessaryIsInstance] - sources are not all typed
            raise _invalid(definition, f"unknown requirement {requirement!r}")
    for part in ("parameters", "returns"):
        schema: JsonObject = getattr(definition, part)
        if not isinstance(schema, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise _invalid(definition, f"{part} must be a JSON Schema")
        fault = compile_fault(schema)
        if fault is not None:
            raise _invalid(definition, f"{part} {fault[1]}")
    return RegisteredTool(
        name=definition.name,
        tool=tool,
        params=ParamSchema(definition.parameters),
        schema_hash=schema_hash(definition.parameters),
        actions=_actions(definition.parameters),
        outside=outside,
        source=definition.source.value,
    )


def _check_texts(definition: ToolDefinition) -> None:
    for part in ("name", "namespace", "description", "version"):
        value = getattr(definition, part)
        if not isinstance(value, str) or not value:
            raise _invalid(definition, f"{part} must be a text")
    if len(definition.name) > MAX_NAME_CHARS:
        raise _invalid(definition, f"the name is longer than {MAX_NAME_CHARS} characters")
    if definition.name.startswith(SYNTHETIC_PREFIX) and "." not in definition.name:
        raise _invalid(definition, "names of the form agent-{key} belong to the tree of agents")
    if definition.parameters.get("type") != "object":
        raise _invalid(definition, "parameters must be the schema of an object")


def _check_builtin(definition: ToolDefinition) -> None:
    if definition.plugin_name is not None:
        raise _invalid(definition, "a built-in tool has no plugin_name")
    if definition.namespace not in BUILTIN_NAMESPACES:
        known = ", ".join(sorted(BUILTIN_NAMESPACES))
        raise _invalid(definition, f"the namespace of a built-in tool is one of {known}")
    if not _BUILTIN_NAME.fullmatch(definition.name):
        raise _invalid(definition, "names are lower-case words with dots between them")
    if definition.name.partition(".")[0] != definition.namespace:
        raise _invalid(definition, f"the name must begin with {definition.namespace}.")
    if definition.parameters.get("additionalProperties") is not False:
        raise _invalid(definition, "built-in parameters need additionalProperties: false")


def _check_plugin(definition: ToolDefinition, *, outside: bool) -> None:
    owner = definition.plugin_name
    if not owner or not _OWNER.fullmatch(owner):
        raise _invalid(definition, "a tool of a plugin needs plugin_name, a plugin's name")
    if owner in RESERVED_NAMES:
        raise ToolError(
            f"{owner!r} is the name of a built-in tool namespace",
            code="reserved_plugin_name",
            fix="choose another name",
        )
    if definition.namespace != owner:
        raise _invalid(definition, f"the namespace of its tools is {owner}")
    pattern = _OUTSIDE_NAME if outside else _PLUGIN_NAME
    if not pattern.fullmatch(definition.name) or not definition.name.startswith(f"{owner}."):
        raise _invalid(definition, f"the name must be {owner}. and one word")
    if definition.principal_scope is not None:
        raise _invalid(definition, "principal_scope is for built-in tools")
    for requirement in definition.requires:
        if isinstance(requirement, SeccompRequirement) and (
            requirement.profile is SeccompProfile.RELAXED
        ):
            raise _invalid(
                definition,
                "plugins run under the default profile and cannot ask for relaxed seccomp",
            )


def _actions(parameters: JsonObject) -> tuple[str, ...]:
    match parameters:
        case {"properties": {"action": {"enum": [*listed]}}}:
            return tuple(one for one in listed if isinstance(one, str))
        case _:
            return ()


def _invalid(definition: ToolDefinition, why: str) -> ToolError:
    name = str(definition.name)[:MAX_NAME_CHARS]
    return ToolError(
        f"tool {name} cannot be registered: {why}", code="tool_definition_invalid", name=name
    )
