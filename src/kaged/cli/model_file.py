"""The section of a model in local.toml, written by a command; comments and other sections stay."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from kaged.base import JsonValue, KagedError, SystemClock
from kaged.cli.context import locations
from kaged.cli.launch import wait_until
from kaged.cli.runner import DaemonClient

RELOADED: Final = "daemon.config_reloaded"
RELOAD_S: Final = 30.0


def sections() -> dict[str, dict[str, Any]]:
    """Return the sections of `[models]` as they are written."""
    from kaged.config.files import Privacy, is_missing, read_text
    from kaged.config.problems import ConfigFileInvalid
    from kaged.config.tomledit import TomlEdit

    path = locations().local_toml
    try:
        text = read_text(path, privacy=Privacy.PRIVATE).text
        found = TomlEdit(text, str(path)).get(("models",))
    except KeyError:
        return {}
    except ConfigFileInvalid as error:
        if is_missing(error):
            return {}
        raise
    listed = found if isinstance(found, dict) else {}
    return {name: dict(one) for name, one in listed.items() if isinstance(one, dict)}


def write_section(alias: str, values: dict[str, Any] | None) -> None:
    """Write the section of an alias; None takes it away. The file is private from the start."""
    from kaged.config.editing import edit_toml
    from kaged.config.files import Privacy
    from kaged.config.tomledit import TomlEdit

    def change(edit: TomlEdit) -> None:
        if values is None:
            edit.delete(("models", alias))
            return
        try:
            known = edit.get(("models", alias))
        except KeyError:
            known = {}
        for name in known if isinstance(known, dict) else ():
            if name not in values:
                edit.delete(("models", alias, name))
        for name, value in values.items():
            edit.set(("models", alias, name), _plain(value))

    path = locations().local_toml
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    edit_toml(path, change, privacy=Privacy.PRIVATE)


def reload_daemon(client: DaemonClient) -> None:
    """Let the daemon read its files again, and wait until it has.

    Raises:
        KagedError: `daemon_unreachable`; it did not.
    """
    before = _last_reload(client)
    os.kill(int(client.get("/status")["pid"]), signal.SIGHUP)
    if not wait_until(lambda: _last_reload(client) != before, SystemClock(), RELOAD_S):
        raise KagedError(
            "The daemon did not read its files again: one of them may be wrong.",
            code="daemon_unreachable",
            fix="`kaged doctor` shows what is wrong. After `kaged daemon stop` the next command "
            "starts it with the files as they are.",
        )


def as_written(key: str) -> str:
    """Return a key as local.toml writes what is no variable."""
    return key.replace("${", "$${")


def _last_reload(client: DaemonClient) -> Any:
    found = client.get("/audit", {"event": RELOADED, "limit": 1})["items"]
    return found[0]["seq"] if found else None


def _plain(value: Any) -> JsonValue:
    """Return a value as plain JSON: what was read from a file brings its own types."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
