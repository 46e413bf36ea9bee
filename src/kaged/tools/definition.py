"""`ToolDefinition`: what a tool is; `Tool`: a definition with the handler that a source brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.requirements import ToolRequirement
from kaged.tools.call import ToolInvocation
from kaged.tools.result_text import PLAIN_VIEW, ResultView


class ToolSource(StrEnum):
    """Who brings a tool. Tools of outside MCP servers and Lua scripts count as `plugin`."""

    BUILTIN = "builtin"
    PLUGIN = "plugin"


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What a tool is called, what it takes and gives, and what it needs of its caller's cage.

    `parameters` and `returns` are JSON Schemas; `description` is written for a model.
    `principal_scope` "root-only" keeps a tool to the root agent.
    """

    name: str
    namespace: str
    description: str
    parameters: JsonObject
    returns: JsonObject
    requires: tuple[ToolRequirement, ...]
    source: ToolSource = ToolSource.BUILTIN
    plugin_name: str | None = None
    principal_scope: Literal["root-only"] | None = None
    version: str = "1"

    @property
    def root_only(self) -> bool:
        """Whether only the root agent may use the tool."""
        return self.principal_scope is not None


@dataclass(frozen=True, slots=True)
class PathParam:
    """A path that a call touches, read out of its arguments.

    With `search` it is a place to look from: it is enough that something readable lies below it.
    """

    field: str
    value: str
    search: bool = False


def no_paths(args: JsonObject) -> tuple[PathParam, ...]:  # noqa: ARG001 - the default of `paths`
    """Return no paths: the call touches none."""
    return ()


Handler: TypeAlias = "Callable[[ToolInvocation], Awaitable[JsonValue]]"
PathReader: TypeAlias = Callable[[JsonObject], tuple[PathParam, ...]]
RequirementReader: TypeAlias = Callable[[JsonObject], tuple[ToolRequirement, ...]]
ChangeReader: TypeAlias = Callable[[JsonObject], bool]
ParamCheck: TypeAlias = Callable[[JsonObject], None]


def one_path(field: str = "path", *, search: bool = False) -> PathReader:
    """Return the reader of the one path that a tool takes."""
    return lambda args: (PathParam(field, str(args[field]), search=search),)


_NO_ALIASES: Mapping[str, JsonObject] = MappingProxyType({})
_NO_ANNOTATIONS: Mapping[str, JsonValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tool:
    """What a source registers: a definition, the handler, and what a call's arguments mean.

    `paths` reads the paths out of validated arguments; they are resolved and decided before the
    handler runs and handed to it in that order. `requires_for` replaces the definition's
    `requires` where these depend on the arguments. `changes` says whether a call would change
    something, so that the audit log must be writable first. `check` refuses, with `InvalidParams`,
    what a schema cannot say. `aliases` are hidden names with the arguments they stand for.
    `reaches_net` tells policies that the tool may connect elsewhere; `labels` are on its results.
    `annotations` are what an outside server claims about it. `endpoint` is the address that calls
    go to by HTTP, with the headers that policies add. `view` says how results enter a window.
    """

    definition: ToolDefinition
    handler: Handler
    paths: PathReader = no_paths
    requires_for: RequirementReader | None = None
    changes: bool | ChangeReader = False
    check: ParamCheck | None = None
    aliases: Mapping[str, JsonObject] = field(default_factory=lambda: _NO_ALIASES)
    reaches_net: bool = False
    labels: frozenset[str] = frozenset()
    endpoint: str | None = None
    annotations: Mapping[str, JsonValue] = field(default_factory=lambda: _NO_ANNOTATIONS)
    view: ResultView = PLAIN_VIEW
