"""The sections of MCP servers in config.toml, with their secrets in local.toml, and what runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kaged.base import JsonObject, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.context import daemon, locations
from kaged.cli.launch import wait_until
from kaged.cli.mcp_foreign import ForeignServer, NotTaken, plain_url, plain_words
from kaged.cli.model_file import reload_daemon
from kaged.cli.runner import DaemonClient

if TYPE_CHECKING:
    from kaged.config.tomledit import TomlEdit

KNOWN_S: Final = 10.0
START_S: Final = 90.0
LAST_LINES: Final = 10
# The runners of a registry's packages, the usual one first, with the words before the package.
_RUNNERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "npm": (("npx", "-y"), ("bunx",)),
    "pypi": (("uvx",), ("pipx", "run")),
}
_PACKAGES: Final = {
    "npm": re.compile(r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(?:@[A-Za-z0-9._+-]+)?"),
    "pypi": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:(?:==|@)[A-Za-z0-9._+!-]+)?"),
}


@dataclass(frozen=True, slots=True)
class Reach:
    """What the cage of a server is opened for."""

    net: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        net: Sequence[str] | None,
        read: Sequence[Path] | None,
        write: Sequence[Path] | None,
    ) -> Reach:
        """Take what the options say."""
        full = [tuple(str(one.absolute()) for one in paths or ()) for paths in (read, write)]
        return cls(tuple(net or ()), *full)

    def cage(self) -> JsonObject:
        """Return it as a section's `cage`."""
        rules = [("ro", one) for one in self.read] + [("rw", one) for one in self.write]
        found: JsonObject = {"fs": [{"mode": mode, "path": path} for mode, path in rules]}
        found["net"] = list(self.net)
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Written:
    """What the two files hold of one server."""

    section: JsonObject
    secrets: Mapping[str, str]


def own_name(original: str) -> str:
    """Return the name of a section for a server that may be called anything elsewhere."""
    from kaged.config.pluginwords import RESERVED_NAMES

    name = re.sub(r"[^a-z0-9]+", "-", original.lower()).strip("-")[:50].strip("-") or "server"
    if not name[0].isalpha():
        name = f"mcp-{name}"
    return f"{name}-mcp" if name in RESERVED_NAMES else name


def parse_source(name: str, words: Sequence[str]) -> ForeignServer:
    """Read `npm:PACKAGE`, `pypi:PACKAGE`, a URL or the words of a command."""
    registry, colon, package = words[0].partition(":")
    if colon and registry in _RUNNERS:
        command = (*_runner(registry), _checked_package(registry, package), *words[1:])
        return ForeignServer(name, plain_words(command))
    if words[0].startswith(("http://", "https://")):
        if words[1:]:
            raise NotTaken("An address has no further words.", fix="Leave them out.")
        return ForeignServer(name, url=plain_url(words[0]))
    return ForeignServer(name, plain_words(words))


def _checked_package(registry: str, package: str) -> str:
    if not _PACKAGES[registry].fullmatch(package):
        raise NotTaken(f"{package!r} is no name of a package of {registry}.")
    return package


def _runner(registry: str) -> tuple[str, ...]:
    for runner, *words in _RUNNERS[registry]:
        found = shutil.which(runner)
        if found is not None:
            return (found, *words)
    names = " or ".join(runner for runner, *_ in _RUNNERS[registry])
    raise NotTaken(
        f"Nothing on this machine runs packages of {registry}: there is no {names}.",
        fix=f"Install {names}, or install the package yourself and name its command behind --.",
    )


def written_of(name: str, server: ForeignServer, reach: Reach) -> Written:
    """Put together what is to be written. Raises ConfigFileInvalid: it is no section."""
    from kaged.config.toolsections import check_mcp_server

    entries = {one: f"mcp-{name}-{one}" for one in (*server.secrets, *server.missing)}
    section: dict[str, Any] = {
        "command": list(server.command),
        "url": server.url,
        "env": dict(server.env),
        "secrets": entries,
        "cage": reach.cage(),
    }
    section = {key: value for key, value in section.items() if value}
    if not server.enabled:
        section["enabled"] = False
    check_mcp_server(name, section)
    return Written(section, {entries[one]: value for one, value in server.secrets.items()})


def kept_sections() -> dict[str, Any]:
    """Return the sections of MCP servers as config.toml has them."""
    from kaged.config.files import Privacy

    return _table(locations().config_toml, ("mcp", "servers"), Privacy.TRUSTED)


def kept(name: str) -> Written | None:
    """Return what the files hold of a server; None when config.toml does not name it."""
    from kaged.config.files import Privacy

    section = kept_sections().get(name)
    if section is None:
        return None
    secrets = _table(locations().local_toml, ("secrets",), Privacy.PRIVATE)
    return Written(section, {one: text for one, text in secrets.items() if _is_of(name, one)})


def put(name: str, written: Written) -> None:
    """Write a server: first its secrets into local.toml, then its section; both or neither."""
    before = kept(name)
    _put_secrets(name, written.secrets)

    def change(edit: TomlEdit) -> None:
        edit.set(("mcp", "servers", name), written.section)

    try:
        _edit_config(change)
    except BaseException:
        _put_secrets(name, {} if before is None else before.secrets)
        raise


def take_away(name: str) -> None:
    """Remove a server with its secrets; comments around its section stay."""

    def change(edit: TomlEdit) -> None:
        edit.cut(("mcp", "servers", name))

    _edit_config(change)
    _put_secrets(name, {})


def let_read() -> None:
    """Let a daemon that runs read the files again."""
    with daemon(start=False) as client:
        if client.alive():
            reload_daemon(client)


def tried(client: DaemonClient, name: str) -> dict[str, Any]:
    """Let the daemon start a server; returns how it describes it when that is decided."""
    reload_daemon(client)
    found: dict[str, Any] = {}

    def known() -> bool:
        listed = client.get("/mcp/servers")["servers"]
        found.update(next((one for one in listed if one["name"] == name), {}))
        return bool(found)

    def decided() -> bool:
        return known() and found["state"] not in {"spawning", "stopped"}

    if not wait_until(known, SystemClock(), KNOWN_S):
        return {"note": "something else in config.toml is wrong, see `kaged doctor`"}
    if not wait_until(decided, SystemClock(), START_S):
        return {**found, "note": "it was not ready in time"}
    return found


def last_lines(client: DaemonClient, name: str) -> list[str]:
    """Return the last lines of a server's standard error."""
    from kaged.cli.client import DaemonRefused

    try:
        lines = client.get(f"/mcp/servers/{name}/logs")["lines"]
    except DaemonRefused:  # it could not take the section, so it has no such server
        return []
    return [str(one) for one in lines[-LAST_LINES:]]


def _is_of(name: str, entry: str) -> bool:
    """Return whether an entry of `[secrets]` is one of this server's; variables have no dash."""
    return entry.rpartition("-")[0] == f"mcp-{name}"


def _put_secrets(name: str, secrets: Mapping[str, str]) -> None:
    from kaged.config.editing import edit_toml
    from kaged.config.files import Privacy

    path = locations().local_toml
    before = _table(path, ("secrets",), Privacy.PRIVATE)
    old: Iterable[str] = [one for one in before if _is_of(name, one) and one not in secrets]
    if not old and not secrets:
        return

    def change(edit: TomlEdit) -> None:
        for one in old:
            edit.delete(("secrets", one))
        for one, value in secrets.items():
            edit.set(("secrets", one), value)

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    edit_toml(path, change, privacy=Privacy.PRIVATE)


def _edit_config(change: Any) -> None:
    from kaged.config.editing import edit_toml

    path = locations().config_toml
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    edit_toml(path, change)


def _table(path: Path, keys: tuple[str, ...], privacy: Any) -> dict[str, Any]:
    from kaged.config.files import is_missing, read_text
    from kaged.config.problems import ConfigFileInvalid
    from kaged.config.tomledit import TomlEdit

    try:
        found = TomlEdit(read_text(path, privacy=privacy).text, str(path)).get(keys)
    except KeyError:
        return {}
    except ConfigFileInvalid as error:
        if is_missing(error):
            return {}
        raise
    return dict(found) if isinstance(found, dict) else {}
