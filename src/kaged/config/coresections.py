"""Sections of `config.toml` about the daemon itself: address, access, data, cages, sessions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from kaged.base import KagedError
from kaged.config.cageblock import FullLimits
from kaged.config.containers import Hidden, ListOf, MapOf, Mapped
from kaged.config.hostvalues import BIND, NETWORK, Bind, HostPath, IpNetwork
from kaged.config.oidc import OIDC_SHAPE, OidcSection
from kaged.config.people_section import FrontEndSection
from kaged.config.pluginwords import MAX_PLUGIN_NAME_CHARS, PLUGIN_NAME_PATTERN
from kaged.config.problems import Severity
from kaged.config.records import RecordShape, empty_map, key, optional, record, section
from kaged.config.secret import Secret
from kaged.config.shapes import Choice, Flag, TextShape, Whole
from kaged.config.variables import WithVariables

DEFAULT_BIND: Final = ("127.0.0.1", 7460)

NAME: Final = TextShape(max_chars=64, pattern=r"[a-z][a-z0-9_+-]*", means="a lower-case name")
PLUGIN_NAME: Final = TextShape(
    max_chars=MAX_PLUGIN_NAME_CHARS, pattern=PLUGIN_NAME_PATTERN, means="a plugin name"
)


class AuthMode(StrEnum):
    """Whether callers over TCP must show who they are."""

    SECURE = "secure"
    INSECURE = "insecure"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look; `auto` is text on a terminal and JSON otherwise."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def parse_storage_url(text: str) -> str:
    """Read a database URL. Raises `storage_url_invalid`."""
    scheme, _, rest = text.partition("://")
    if scheme.partition("+")[0] != "sqlite":
        problem = "is not a SQLite URL; this version keeps its data in SQLite only"
    elif not rest.startswith("//"):
        problem = "names no absolute path; four slashes begin one"
    else:
        return text
    raise KagedError(
        problem,
        code="storage_url_invalid",
        fix="write sqlite:////absolute/path/kaged.db, or leave url out for the default",
    )


@record
class DaemonSection:
    """The daemon itself."""

    bind: Bind | None = key(
        BIND,
        "The TCP address of the HTTP API. The Unix socket is always there. Without this key the "
        "next free port is taken when another program, or another user's daemon, has this one.",
        default=Bind(*DEFAULT_BIND, chosen=False),
    )
    home: Path | None = optional(
        HostPath(),
        "Where data is kept (database, plugins, logs), if not in the usual place.",
        default=None,
    )
    opening_seconds: int = key(
        Whole(1, 600),
        "How long a run, move or call waits for the scripts, policies and plugins that guard its "
        "project, when these are still being loaded. Then it is refused.",
        default=30,
    )


@record
class AuthSection:
    """Who may use the HTTP API."""

    mode: AuthMode = key(
        Choice(AuthMode),
        "`insecure` authenticates no caller and therefore binds to loopback only.",
        default=AuthMode.SECURE,
    )
    operator: str = key(
        TextShape(max_chars=128),
        "The operator's id, as plugins and the audit log see it.",
        default="operator",
    )
    trusted_proxies: tuple[IpNetwork, ...] = key(
        ListOf(NETWORK),
        "Proxies whose `X-Kaged-User-Id` header is believed.",
        default=(),
    )
    front_end: FrontEndSection = section(
        "What else those proxies may say about a person, and in which headers.",
        factory=FrontEndSection,
        unknown=Severity.ERROR,
    )
    allowed_hosts: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=253)),
        "Further values of the Host header that are answered, for example behind a proxy.",
        default=(),
    )
    allowed_origins: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=300, pattern=r"https?://[^/\s]+", means="an origin")),
        "Further web origins that may use the API from a browser.",
        default=(),
    )
    oidc: OidcSection | None = optional(
        OIDC_SHAPE, "Signing in with OpenID Connect. Left out: nobody signs in.", default=None
    )


@record
class StorageSection:
    """Where the daemon keeps its data."""

    url: Secret[str] | None = optional(
        WithVariables(
            Hidden(Mapped(TextShape(max_chars=2000), parse_storage_url, "database URL", show=False))
        ),
        "The database. Left out: SQLite in the data directory.",
        default=None,
    )


@record
class SandboxSection:
    """Cages."""

    bwrap: Path | None = optional(
        HostPath(), "The bubblewrap program. Left out: found on the PATH.", default=None
    )
    no_sandbox: bool = key(
        Flag(),
        "Run agents' commands without a cage. Plugins are always caged.",
        default=False,
    )
    require_limits: bool = key(
        Flag(),
        "Start no cage while memory, processes or processors cannot be limited for the cage as a "
        "whole: `kaged doctor` shows whether they can, in the row `cage.limits`.",
        default=False,
    )
    runtimes: Mapping[str, Path] = key(
        MapOf(HostPath(), NAME),
        "Programs outside the system directories that plugins may be run with, by name.",
        default_factory=empty_map,
    )
    limits: FullLimits = section("Limits of every plugin's cage.", factory=FullLimits)
    agent_limits: FullLimits = section(
        "Limits of agents' cages, where the project says nothing else; what is left out is a "
        "[share of the machine](cage.md#limits-of-agents), which `kaged doctor` shows.",
        factory=FullLimits,
    )
    plugins: Mapping[str, FullLimits] = key(
        MapOf(RecordShape(FullLimits), PLUGIN_NAME),
        "Limits of single plugins, by name; what is left out comes from `sandbox.limits`.",
        default_factory=empty_map,
    )


@record
class SessionsSection:
    """The sessions of all projects."""

    idle_seconds: int = key(
        Whole(1, 7 * 24 * 3600),
        "After how many seconds without a run a session counts as idle and plugins are notified.",
        default=300,
    )
    read_tokens: int = key(
        Whole(500, 1_000_000),
        "How many tokens the result of one reading call may take of an agent's window; what is "
        "left out stays readable.",
        default=25_000,
    )
    result_tokens: int = key(
        Whole(500, 1_000_000),
        "The same for results of all other tools: commands, searches, plugins, MCP servers.",
        default=8_000,
    )


@record
class LoggingSection:
    """The daemon's log."""

    level: LogLevel = key(Choice(LogLevel), "How much is logged.", default=LogLevel.INFO)
    format: LogFormat = key(Choice(LogFormat), "How lines look.", default=LogFormat.AUTO)
    file: Path | None = optional(
        HostPath(), "A file to log to. Left out: standard error.", default=None
    )
