"""Where MCP clients keep their servers, and reading such a file: JSON with comments, or TOML."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.mcp_foreign import (
    ForeignServer,
    Refused,
    parse_server,
    shown_name,
    without_references,
)
from kaged.config.files import is_missing, read_text
from kaged.config.problems import ConfigFileInvalid

MAX_BYTES: Final = 16 * 1024 * 1024
"""Some clients keep much else in the same file, histories of conversations for example."""
MAX_SERVERS: Final = 200

CLIENTS: Final = ("claude-code", "claude-desktop", "opencode", "codex", "zed", "vscode")
_AT_HOME: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "claude-code": (".claude.json",),
        "claude-desktop": (".config/Claude/claude_desktop_config.json",),
        "opencode": (".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
        "codex": (".codex/config.toml",),
        "zed": (".config/zed/settings.json",),
        "vscode": (".config/Code/User/mcp.json", ".config/Code/User/settings.json"),
    }
)
_IN_PROJECT: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "claude-code": (".mcp.json",),
        "opencode": ("opencode.json", "opencode.jsonc"),
        "codex": (".codex/config.toml",),
        "zed": (".zed/settings.json",),
        "vscode": (".vscode/mcp.json",),
    }
)
# Where the servers are in a file, by the keys of what leads there.
_TABLES: Final = (
    ("mcpServers",),
    ("mcp_servers",),
    ("context_servers",),
    ("mcp", "servers"),
    ("servers",),
    ("mcp",),
)
# Each of these ends in what it began with or at the end of the text, so that no text is searched
# again and again.
_STRING: Final = r'"(?:[^"\\]|\\.)*+"?'
_TOKENS: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:.*?\*/|.*\Z)", re.DOTALL)
_TRAILING: Final = re.compile(rf"{_STRING}|,(?=\s*+[}}\]])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A file of a client; one that lies in a project must not lead out of it."""

    path: Path
    project: Path | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A server that a file describes, or why it cannot be taken over."""

    file: Path
    server: ForeignServer | Refused


def files_of(clients: Sequence[str], home: Path, project: Path) -> tuple[ClientFile, ...]:
    """Return the files that these clients read, of the home and of a project."""
    mine = [ClientFile(home / one) for client in clients for one in _AT_HOME[client]]
    theirs = [
        ClientFile(project / one, project)
        for client in clients
        for one in _IN_PROJECT.get(client, ())
    ]
    known = {one.path for one in mine}
    return (*mine, *(one for one in theirs if one.path not in known))


def read_client(file: ClientFile, project: Path) -> tuple[Found, ...] | None:
    """Read the servers of a file; None when there is no such file.

    Raises:
        KagedError: `config_invalid`; it cannot be read, is too large, too deep, or no such file.
    """
    try:
        text = read_text(file.path, limit_bytes=MAX_BYTES, inside=file.project).text
    except ConfigFileInvalid as error:
        if is_missing(error):
            return None
        raise
    document = _parsed(text, file.path)
    tables = [_servers(document)]
    # Claude Code keeps what belongs to single projects in the same file, by their folders.
    of_projects = document.get("projects")
    if isinstance(of_projects, dict):
        own = of_projects.get(str(project))
        tables.append(own.get("mcpServers") if isinstance(own, dict) else None)
    found: list[Found] = []
    for table in tables:
        if not isinstance(table, dict):
            continue
        if len(table) > MAX_SERVERS:
            raise _invalid(file.path, f"names more than {MAX_SERVERS} servers")
        for name, value in table.items():
            server = parse_server(shown_name(name), value)
            if file.project is not None and isinstance(server, ForeignServer):
                server = without_references(server)
            found.append(Found(file.path, server))
    return tuple(found)


def _servers(document: Mapping[str, Any]) -> Any:
    for keys in _TABLES:
        found: Any = document
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return found
    return None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(plain_json(text))
    except RecursionError:
        raise _invalid(path, "is nested too deeply") from None
    except ValueError as error:
        # What the parsers say quotes at most a position, never a value.
        position = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise _invalid(path, f"is not valid {kind}{position}") from None
    if not isinstance(found, dict):
        raise _invalid(path, "holds no object")
    return found


def plain_json(text: str) -> str:
    """Return JSON without the comments and trailing commas that editors allow; lines stay."""

    def without(comment: re.Match[str]) -> str:
        piece = comment[0]
        is_open = piece.startswith("/*") and not piece.endswith("*/")
        if piece.startswith('"') or is_open or piece == "/*/":
            return piece
        return "\n" * piece.count("\n") or " "

    plain = _TOKENS.sub(without, text)
    return _TRAILING.sub(lambda one: one[0] if one[0].startswith('"') else "", plain)


def _invalid(path: Path, message: str) -> KagedError:
    return KagedError(
        f"{os.fspath(path)} {message}.",
        code="config_invalid",
        fix="Name the client to read with --from, or mend the file.",
    )
