"""The words of plugins: hooks, roles, isolation, names that are taken, where packages come from."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Final, NewType
from urllib.parse import urlsplit

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.projectpaths import ProjectPathInvalid, parse_project_path

AgentPath = NewType("AgentPath", str)
"""An agent's place in the tree: `primary`, `primary.subagents.coder`."""

PRIMARY: Final = AgentPath("primary")

MANIFEST_NAME: Final = "kaged-plugin.yaml"
PLUGIN_NAME_PATTERN: Final = r"[a-z][a-z0-9-]*"
MAX_PLUGIN_NAME_CHARS: Final = 64
PACKAGE_PATTERN: Final = r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*"
SLUG_PATTERN: Final = r"[a-z][a-z0-9_-]*"

RESERVED_NAMES: Final = frozenset(
    {
        "file",
        "edit",
        "search",
        "code",
        "debug",
        "shell",
        "compute",
        "project",
        "kaged",
        "web",
        "discover",
        "media",
        "job",
        "system",
    }
)
"""Names no plugin, MCP server or Lua script may have, because tools would be named after them."""

HOST_KEYS: Final = ("installed", "local", "enabled", "grants")
"""Keys of a plugin's `local.toml` section that belong to the host, never to the plugin."""


class Hook(StrEnum):
    """The moments a plugin can subscribe to."""

    ON_SESSION_START = "on_session_start"
    ON_SESSION_IDLE = "on_session_idle"
    PRE_COMPACT = "pre_compact"
    POST_COMPACT = "post_compact"


PRIMARY_ONLY_HOOKS: Final = frozenset({Hook.ON_SESSION_START, Hook.ON_SESSION_IDLE})
"""Hooks about sessions, which only the primary agent has."""


class PluginRole(StrEnum):
    """What a plugin may do with the answers of its hooks."""

    OBSERVER = "observer"
    COMPACTOR = "compactor"


class Isolation(StrEnum):
    """Whether each declaring agent has the plugin for itself or the project shares it."""

    AGENT = "agent"
    PROJECT = "project"


class SourceKind(StrEnum):
    """The ways a plugin can be fetched."""

    PATH = "path"
    GITHUB = "github"
    GIT_HTTPS = "git+https"
    GIT_FILE = "git+file"
    GIT_HTTP_LOOPBACK = "git+http-loopback"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Where a plugin comes from: a kind, and the path or address to use."""

    kind: SourceKind
    location: str


_FORMS: Final = "./path, https://github.com/… or git+https://…"


def parse_source(text: str) -> PluginSource:
    """Read the `source` of a declaration.

    `git+file://` and loopback `git+http://` are read, too; whether they may be used is the
    operator's setting.

    Raises:
        KagedError: `plugin_source_invalid`; any other address, or a path that leaves the project.
    """
    if text.startswith("./"):
        try:
            return PluginSource(SourceKind.PATH, parse_project_path(text))
        except ProjectPathInvalid as error:
            raise KagedError(error.message, code="plugin_source_invalid", fix=error.fix) from error
    scheme, found, _ = text.partition("://")
    try:
        address = urlsplit(text.removeprefix("git+"))
        host = address.hostname or ""
    except ValueError:
        raise KagedError(
            "is no address", code="plugin_source_invalid", fix=f"supported: {_FORMS}"
        ) from None
    if address.username is not None or address.password is not None:
        raise KagedError(
            "may not hold a user name or password",
            code="plugin_source_invalid",
            fix="let git's own credential store supply it",
        )
    kind: SourceKind | None = None
    if scheme == "https" and host == "github.com":
        kind = SourceKind.GITHUB
    elif scheme == "git+https" and host:
        kind = SourceKind.GIT_HTTPS
    elif scheme == "git+file" and address.path.startswith("/") and not host:
        kind = SourceKind.GIT_FILE
    elif scheme == "git+http" and _is_loopback(host):
        kind = SourceKind.GIT_HTTP_LOOPBACK
    if not found or kind is None or address.path in {"", "/"}:
        raise KagedError(
            "is not supported as a source", code="plugin_source_invalid", fix=f"supported: {_FORMS}"
        )
    return PluginSource(kind, text.removeprefix("git+"))


def plugin_name_of(package: str) -> str:
    """Return the plugin name that a package stands for: its last segment."""
    return package.rpartition("/")[2]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
