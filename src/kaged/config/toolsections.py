"""Sections of `config.toml` about what agents use: plugins, language servers, Lua, MCP servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.config.cageblock import CREDENTIAL_NAME, ENV_NAME, MAX_CREDENTIALS, NET_TARGET
from kaged.config.containers import JsonTable, ListOf, MapOf, Mapped
from kaged.config.coresections import NAME, PLUGIN_NAME
from kaged.config.hostvalues import CommandShape, HostPath
from kaged.config.luagrants import GRANTS_SHAPE, LuaGrants
from kaged.config.nodes import Node
from kaged.config.pluginwords import RESERVED_NAMES, SourceKind
from kaged.config.problems import ConfigFileInvalid
from kaged.config.providers import HOST_CAGE_SHAPE, SECRET_ENV, HostCage
from kaged.config.reading import INVALID, DocumentPosition, Reading
from kaged.config.records import RecordShape, empty_map, key, optional, record
from kaged.config.secret import Secret
from kaged.config.sections import Sections, SectionsOf
from kaged.config.servers import OperatorDapAdapter, OperatorLspServer, check_adapter
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.tomldoc import parse_toml
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import ANYWHERE, NetTarget

MAX_SECONDS: Final = 24 * 3600
MAX_STORAGE_MB: Final = 1024 * 1024
MAX_OUTPUT_KB: Final = 3 * 1024  # an answer is one line, and lines have 4 MiB


class OptionalSource(StrEnum):
    """Plugin sources that the operator must allow first."""

    GIT_FILE = SourceKind.GIT_FILE.value
    GIT_HTTP_LOOPBACK = SourceKind.GIT_HTTP_LOOPBACK.value


def parse_owner_name(text: str) -> str:
    """Read a name that tools will be prefixed with.

    Raises `reserved_plugin_name` for built-in ones.
    """
    if text in RESERVED_NAMES:
        raise KagedError(
            "is the name of a built-in tool namespace",
            code="reserved_plugin_name",
            fix="choose another",
        )
    return text


@record
class PluginsSection:
    """Subprocess plugins, and the grants of Lua scripts."""

    dir: Path | None = optional(
        HostPath(),
        "Where plugins are installed. Left out: `plugins` in the data directory.",
        default=None,
    )
    enabled: tuple[str, ...] = key(
        ListOf(PLUGIN_NAME, unique=True),
        "The plugins that are started; edited by `kaged plugin enable` and `disable`.",
        default=(),
    )
    request_timeout_seconds: float = key(
        Number(1, MAX_SECONDS),
        "How long a method or tool of a plugin may take before the plugin is restarted.",
        default=30,
    )
    allow_sources: tuple[OptionalSource, ...] = key(
        ListOf(Choice(OptionalSource), unique=True),
        "Sources that are refused otherwise: local repositories and loopback HTTP.",
        default=(),
    )
    storage_mb: int = key(
        Whole(1, MAX_STORAGE_MB),
        "How many MiB a plugin's tables may take in the daemon's database.",
        default=256,
    )
    storage_mb_of: Mapping[str, int] = key(
        MapOf(Whole(1, MAX_STORAGE_MB), PLUGIN_NAME),
        "The same for single plugins, by name.",
        default_factory=empty_map,
    )
    capabilities: LuaGrants = key(
        GRANTS_SHAPE,
        "What single Lua scripts may do, by the script's name without `.lua`.",
        default_factory=LuaGrants,
    )
    config: Mapping[str, Mapping[str, JsonValue]] = key(
        MapOf(JsonTable()),
        "Settings of single Lua scripts, by name.",
        default_factory=empty_map,
    )


@record
class LspSection:
    """Language servers."""

    servers: Mapping[str, OperatorLspServer] = key(
        MapOf(RecordShape(OperatorLspServer), NAME),
        "Language servers, by language; a trusted project's own come first.",
        default_factory=empty_map,
    )
    idle_timeout_seconds: float = key(
        Number(1, MAX_SECONDS), "When an unused server is stopped.", default=600
    )
    request_timeout_seconds: float = key(
        Number(1, 600),
        "How long a server may take to answer before it is ended and started anew.",
        default=30,
    )


@record
class DapSection:
    """Debug adapters."""

    adapters: Mapping[str, OperatorDapAdapter] = key(
        MapOf(RecordShape(OperatorDapAdapter, check=check_adapter), NAME),
        "Debug adapters, by runtime; a trusted project's own come first.",
        default_factory=empty_map,
    )
    wait_seconds: float = key(
        Number(1, MAX_SECONDS), "How long a step may run before it is reported.", default=30
    )


def _one_place(target: NetTarget) -> NetTarget:
    if target == ANYWHERE:
        raise NetTargetInvalid(
            "everybody writes somewhere on the web", fix="name the places: host:port or host:*"
        )
    return target


@record
class LuaSection:
    """Lua scripts."""

    dir: Path | None = optional(
        HostPath(),
        "Where scripts lie. Left out: `lua` in the configuration directory.",
        default=None,
    )
    enabled: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=128), unique=True),
        "The scripts that are loaded, by name; an empty list loads all.",
        default=(),
    )
    required: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=128), unique=True),
        "The scripts, by name, without which no model is asked and no session moves: while one of "
        "them is not running, fails or takes too long, model calls are refused.",
        default=(),
    )
    net: tuple[NetTarget, ...] = key(
        ListOf(NET_TARGET),
        "Where `kage.http` may connect to; `*` is every public host.",
        default=(ANYWHERE,),
    )
    net_trusted: tuple[NetTarget, ...] = key(
        ListOf(Mapped(NET_TARGET, _one_place, "target (`host:port` or `host:*`)")),
        "Of these places, those where nobody outside writes: what `kage.http` gets from there does "
        "not make a session `untrusted`. They cannot redirect to other places.",
        default=(),
    )
    strict_context: bool = key(
        Flag(),
        "Give events that carry conversation text only to scripts that are granted `context`.",
        default=False,
    )


class ChangedTools(StrEnum):
    """What becomes of tools that an MCP server changed after they were agreed to."""

    HOLD = "hold"
    FOLLOW = "follow"


_LABEL: Final = TextShape(max_chars=200, pattern=r"\S+", means="a label without spaces")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_GLOB: Final = TextShape(max_chars=200, pattern=r"[A-Za-z0-9_./*-]+", means="a name or glob")


@record
class McpServerEntry:
    """An outside MCP server whose tools are offered as `<name>.<tool>`."""

    enabled: bool = key(Flag(), "Whether it is used.", default=True)
    command: tuple[str, ...] | None = optional(
        CommandShape(), "The program, for a stdio server.", default=None
    )
    url: str | None = optional(
        TextShape(max_chars=2000, pattern=r"https?://\S+", means="an http or https URL"),
        "The address, for an HTTP server.",
        default=None,
    )
    env: Mapping[str, Secret[str]] = key(
        SECRET_ENV, "Environment variables for it; `${VAR}` is replaced.", default_factory=empty_map
    )
    secrets: Mapping[str, str] = key(
        MapOf(TextShape(max_chars=256), ENV_NAME),
        "Further environment variables for it: each with the name of the entry of `[secrets]` in "
        "local.toml that holds its value.",
        default_factory=empty_map,
    )
    timeout_seconds: float = key(Number(1, MAX_SECONDS), "How long one call may take.", default=60)
    cage: HostCage = key(
        HOST_CAGE_SHAPE, "What it can reach; nothing by default.", default_factory=HostCage
    )
    credentials: tuple[str, ...] = key(
        ListOf(CREDENTIAL_NAME, max_items=MAX_CREDENTIALS, unique=True),
        "Credentials that it may use without seeing them, by name; `mcp` of "
        "`[credentials.NAME.for]` has to name it.",
        default=(),
    )
    agents: tuple[str, ...] = key(
        ListOf(_GLOB),
        "Agents whose `tools:` may name it, as paths or globs; an empty list is all of them.",
        default=(),
    )
    projects: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=4000)),
        "Projects that may use it, by id, name or folder; an empty list is all of them.",
        default=(),
    )
    allow_tools: tuple[str, ...] = key(
        ListOf(_GLOB), "The tools to take from it, as the server spells them.", default=("*",)
    )
    deny_tools: tuple[str, ...] = key(
        ListOf(_GLOB), "Tools never to take from it; stronger than `allow_tools`.", default=()
    )
    changed_tools: ChangedTools = key(
        Choice(ChangedTools),
        "What to do with a tool that is new or reads differently than when it was agreed to.",
        default=ChangedTools.HOLD,
    )
    max_output_kb: int = key(
        Whole(1, MAX_OUTPUT_KB), "How many KiB of one answer are handed on.", default=256
    )
    labels: tuple[str, ...] = key(
        ListOf(_LABEL, max_items=16),
        "Labels that policies see on everything that it returns.",
        default=("untrusted",),
    )


def _check_mcp_server(_: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    if (node.entry("command") is None) == (node.entry("url") is None):
        place.error(node, "needs either command or url", "give exactly one of the two")


MCP_SERVERS: Final = SectionsOf(
    RecordShape(McpServerEntry, check=_check_mcp_server), Mapped(PLUGIN_NAME, parse_owner_name)
)


def check_mcp_server(name: str, values: JsonObject) -> None:
    """Check a section before it is written; variables that it names count as set.

    Raises:
        ConfigFileInvalid: with everything that is wrong with it.
    """
    import tomlkit  # noqa: PLC0415 - slow to import, needed only for edits

    parsed = parse_toml(tomlkit.dumps({name: values}), f"[mcp.servers.{name}]")
    env = values.get("env")
    texts = env.values() if isinstance(env, dict) else ()
    named = {one: "" for text in texts for one in _VARIABLE.findall(str(text))}
    reading = Reading(f"[mcp.servers.{name}]", base=Path("/"), environ=named)
    reading.add(parsed.problems)
    found = INVALID if parsed.node is None else MCP_SERVERS.read(parsed.node, reading.top)
    sections = reading.finish(found).value
    if sections.broken:
        raise ConfigFileInvalid(sections.broken[name])


@record
class McpSection:
    """Outside MCP servers."""

    servers: Sections[McpServerEntry] = key(
        MCP_SERVERS,
        "Servers, by the name that their tools are prefixed with.",
        default_factory=Sections,
    )
